"""Names of routes and handlers, and their identities in the ledger.

A route or a handler that was never renamed is its own identity. One that was (`formerly`) keeps the
identity that it has had from the start, so that deduplication, effects, idempotency keys, ordering
and encryption continue as before. Its current name is displayed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Final

from gateway.base.errors import Problem


class NameKind(StrEnum):
    """The kind of thing that has a name."""

    ROUTE = "route"
    HANDLER = "handler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aliases:
    """The names of all routes, or of all handlers, as far as any of them was renamed."""

    identities: Mapping[str, str] = field(default_factory=dict)
    """Identities by name, for names that are not identities themselves."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Current names by identity, if they differ."""

    def identity(self, name: str) -> str:
        """Return the identity of a name. An identity is returned unchanged."""
        return self.identities.get(name, name)

    def label(self, identity: str) -> str:
        """Return the current name of an identity."""
        return self.labels.get(identity, identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of renamed routes and handlers."""

    routes: Aliases = field(default_factory=Aliases)
    handlers: Aliases = field(default_factory=Aliases)

    def __bool__(self) -> bool:
        return any((one.identities or one.labels) for one in (self.routes, self.handlers))

    def of(self, kind: NameKind) -> Aliases:
        return self.routes if kind is NameKind.ROUTE else self.handlers

    def labelled(self, value: Any) -> Any:
        """Return rows and documents with current names in place of identities."""
        if isinstance(value, list):
            return [self.labelled(item) for item in value]
        if is_dataclass(value) and not isinstance(value, type):
            held = {item.name: getattr(value, item.name) for item in fields(value)}
            return replace(value, **self.labelled(held))
        if not isinstance(value, dict):
            return value
        return {key: self._labelled(key, item) for key, item in value.items()}

    def _labelled(self, key: str, value: Any) -> Any:
        if key == "handlers" and isinstance(value, list):  # a worker lists them as "route handler"
            return [self._pair(i) if isinstance(i, str) else self.labelled(i) for i in value]
        if key == NameKind.ROUTE and isinstance(value, str):
            return self.routes.label(value)
        if key == NameKind.HANDLER and isinstance(value, str):
            return self.handlers.label(value)
        return (
            value if key == "headers" else self.labelled(value)
        )  # headers of the sender stay unchanged

    def _pair(self, text: str) -> str:
        route, space, handler = text.partition(" ")
        return f"{self.routes.label(route)}{space}{self.handlers.label(handler)}"


NO_NAMES: Final = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A name in the code or configuration of a process, with its former names."""

    kind: NameKind
    name: str
    formerly: tuple[str, ...]
    problem: Callable[[str, str], Problem]
    """Make a problem, given the found and the expected value."""


def guess_names(declared: Iterable[Declared]) -> Names:
    """Resolve names by `formerly` alone, for a process that starts while the ledger is unreachable.

    Its claims are resolved again when they are stored.
    """
    aliases: dict[NameKind, tuple[dict[str, str], dict[str, str]]] = {k: ({}, {}) for k in NameKind}
    for one in declared:
        if one.formerly:
            identities, labels = aliases[one.kind]
            identity = one.formerly[-1]
            identities.update(dict.fromkeys((one.name, *one.formerly[:-1]), identity))
            labels[identity] = one.name
    routes, handlers = (Aliases(identities=i, labels=b) for i, b in aliases.values())
    return Names(routes=routes, handlers=handlers)
