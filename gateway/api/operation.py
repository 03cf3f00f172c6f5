"""One operation: its path, parameters and result, and the function that runs it."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from gateway.base.names import NameKind
from gateway.operations.context import OperationContext

PREFIX = "/api/v1"


class Params(BaseModel):
    """The parameters of an operation. Unknown names are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NAMED: Final = {"route": NameKind.ROUTE, "to_route": NameKind.ROUTE, "handler": NameKind.HANDLER}
"""Parameters that hold names of routes or handlers."""

P = TypeVar("P", bound=Params)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P, R]):
    """An operation of the Admin API, used by the command of the same name."""

    name: str
    method: str
    path: str
    """The path below the prefix. `{name}` is a parameter."""
    summary: str
    params: type[P]
    result: Any
    """The type of the result, for the OpenAPI document and for remote callers."""
    run: Callable[[OperationContext, P], Awaitable[R]]
    """The function. It uses identities, and `perform` translates them to current names."""
    status: int = 200

    async def perform(self, office: OperationContext, params: P) -> R:
        """Run the operation for a caller that uses the current names of routes and handlers.

        Former names are accepted too.
        """
        names = await office.read_names()
        if not names:
            return await self.run(office, params)
        given = {
            field: names.of(kind).identity(name)
            for field, kind in NAMED.items()
            if isinstance(name := getattr(params, field, None), str)
        }
        answer: R = names.labelled(await self.run(office, params.model_copy(update=given)))
        return answer

    @property
    def in_path(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)(?::\w+)?}", self.path))

    @property
    def in_body(self) -> bool:
        """Whether the other parameters are in a JSON body instead of the query."""
        return self.method in {"POST", "PUT"}
