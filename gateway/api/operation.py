"""An operation: what it is called, what it takes, what it answers, and what carries it out."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from gateway.api.office import Office

PREFIX = "/api/v1"


class Params(BaseModel):
    """What an operation takes. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


P = TypeVar("P", bound=Params)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[P, R]):
    """One row of the API, and what the command of the same name does."""

    name: str
    method: str
    path: str
    """Under the prefix; `{name}` are parameters."""
    summary: str
    params: type[P]
    result: Any
    """The type of the answer, for the document and for whoever reads it from afar."""
    run: Callable[[Office, P], Awaitable[R]]
    status: int = 200

    @property
    def in_path(self) -> tuple[str, ...]:
        """The parameters that stand in the path."""
        return tuple(re.findall(r"{(\w+)(?::\w+)?}", self.path))

    @property
    def in_body(self) -> bool:
        """Whether the other parameters come as a JSON body, and not in the query."""
        return self.method in {"POST", "PUT"}
