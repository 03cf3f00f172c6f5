"""Parameters of operations, as HTTP and the command line give them, and cursors of listings."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import orjson
from pydantic import BeforeValidator, Field, StringConstraints, TypeAdapter
from typing_extensions import TypedDict

from gateway.api.operation import Params
from gateway.base.errors import NotFound
from gateway.base.problems import Unexpected, describe
from gateway.base.times import Moment
from gateway.ledger.filter import Filter

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""A string of one line."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
"""An id chosen by a provider."""


def _plain(value: object) -> object:
    """Reject numbers such as 1_0, +10 and 10.0 in a path, which pydantic would accept."""
    if isinstance(value, str) and not re.fullmatch("[1-9][0-9]{0,18}", value):
        raise Unexpected(found=describe(value), expected="the id of a row, in digits")
    return value


def _integer(value: object) -> object:
    """Accept 10.0 as an integer, because it is one in JSON Schema, which describes the API.

    https://json-schema.org/draft/2020-12/json-schema-core#section-4.2.2
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


INTEGER: Final = BeforeValidator(_integer)
"""For integers in a JSON body."""

RowId = Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(_plain)]
"""The id of a row in the ledger."""


class FilterParams(Params):
    """The filters of every listing."""

    route: Annotated[Text | None, Field(description="Only this route.")] = None
    type: Annotated[Text | None, Field(description="Only these event types (invoice.*).")] = None
    handler: Annotated[Text | None, Field(description="Only this handler.")] = None
    since: Annotated[Moment | None, Field(description="Not before: 2h (ago), or a time.")] = None
    until: Annotated[Moment | None, Field(description="Before: 10m (ago), or a time.")] = None
    account: Annotated[Text | None, Field(description="Only of this account.")] = None

    @property
    def filter(self) -> Filter:
        names = FilterParams.model_fields.keys() | {"error", "cause", "effect"}
        return Filter(**{n: v for n, v in self if n in names})


T = TypeVar("T")


LONGEST_PAGE: Final = 1000


class Page(TypedDict, Generic[T]):
    """One page of a listing, and the cursor of the next page."""

    items: list[T]
    next: str | None


class PageParams(Params):
    """The page of a listing."""

    after: Annotated[
        str | None,
        Field(max_length=4000, description="What the page before gave as `next`."),
    ] = None
    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many rows at the most.")
    ] = 100


class Cursor(Generic[T]):
    """A cursor of a listing: the values of its sort columns as an opaque string."""

    def __init__(self, *columns: str, values: type[T]) -> None:
        self._columns = columns
        self._values = TypeAdapter(values)

    def read(self, after: str | None) -> T | tuple[None, ...]:
        """Decode a cursor. At the start of a listing all values are None. Raises NotFound."""
        if after is None:
            return (None,) * len(self._columns)
        return self.place(after)

    def place(self, after: str) -> T:
        """Decode a cursor that was returned earlier. Raises NotFound."""
        try:
            return self._values.validate_json(urlsafe_b64decode(after.encode()))
        except ValueError:
            raise NotFound("after: found a text that no listing gave as `next`") from None

    def page(
        self,
        rows: Sequence[Mapping[str, Any]],
        limit: int,
        *,
        end: Sequence[Any] | None = None,
    ) -> Page[Any]:
        """Build a page from up to `limit` + 1 rows. The extra row shows that there is a next page.

        If there are fewer rows, but not all candidates were examined, the next page continues from
        `end`.
        """
        items = list(rows[:limit])
        if len(rows) <= limit:
            return {"items": items, "next": None if end is None else self.write(end)}
        last = [items[-1][column] for column in self._columns]
        return {"items": items, "next": self.write(last)}

    def write(self, values: Sequence[Any]) -> str:
        """Encode a cursor."""
        return urlsafe_b64encode(orjson.dumps(values)).decode()


BY_ID: Final = Cursor("id", values=tuple[Annotated[int, Field(ge=0, le=2**63 - 1)]])
"""The cursor of listings that are ordered by the id of their rows."""
