"""Keyset paging: a listing goes on behind the last row that was seen, however many came since."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from gateway.api.operation import Params
from gateway.errors import NotFound

T = TypeVar("T")


LONGEST_PAGE: Final = 1000


class Page(TypedDict, Generic[T]):
    """Some rows of a listing, and where the next ones begin."""

    items: list[T]
    next: str | None


class PageParams(Params):
    """Which part of a listing."""

    after: Annotated[
        str | None,
        Field(max_length=4000, description="What the page before gave as `next`."),
    ] = None
    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many rows at the most.")
    ] = 100


class Cursor(Generic[T]):
    """A place in a listing, as text that nobody needs to read: the values of its sort columns."""

    def __init__(self, *columns: str, values: type[T]) -> None:
        self._columns = columns
        self._values = TypeAdapter(values)

    def read(self, after: str | None) -> T | tuple[None, ...]:
        """The values; all None at the beginning of the listing. Raises NotFound."""
        if after is None:
            return (None,) * len(self._columns)
        return self.place(after)

    def place(self, after: str) -> T:
        """The values of a place that was written once. Raises NotFound."""
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
        """A page of rows of which one more was asked for than it has; where there are fewer, but
        not all were looked at, the next one goes on from the end."""
        items = list(rows[:limit])
        if len(rows) <= limit:
            return {"items": items, "next": None if end is None else self.write(end)}
        last = [items[-1][column] for column in self._columns]
        return {"items": items, "next": self.write(last)}

    def write(self, values: Sequence[Any]) -> str:
        """The text of a place."""
        return urlsafe_b64encode(orjson.dumps(values)).decode()
