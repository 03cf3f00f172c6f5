"""Resolves the names of routes and handlers to identities, and keeps renames.

One row for each name: (kind, name, identity). The row stays when `formerly` is removed from the
code. No other row moves, so that old and new code run side by side and a rollback works.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import asyncpg

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.names import Aliases, Declared, NameKind, Names
from gateway.config.registry import Registry
from gateway.config.routes import Config
from gateway.ledger.connection import QUERIES, Connection, Executor, Pooled
from gateway.ledger.partitions import prepare
from gateway.ledger.pauses import list_known_handlers

LOCK: Final = 0x6777206E616D6573
"""The advisory lock that lets one process at a time keep names: "gw names" in ASCII."""

HISTORY: Final = {NameKind.ROUTE: "find_route_history", NameKind.HANDLER: "find_handler_history"}
RAN: Final = {NameKind.ROUTE: "has events", NameKind.HANDLER: "has run"}

Row = tuple[NameKind, str, str, bool]
"""Kind, name, identity, and whether the name is the current one."""


async def load_names(ledger: Executor) -> Names:
    """Read the names of renamed routes and handlers."""
    return _names_of(await ledger.fetch(QUERIES["list_names"]))


async def settle_names(
    connection: Connection | Pooled, declared: Sequence[Declared], *, keep: bool = True
) -> Names:
    """Resolve the names of a process, and keep those that were renamed (unless `keep` is False).

    Raise ConfigInvalid if two names that stand for one thing both have a history of their own, or
    if two names of the process stand for one identity.
    """
    known = await load_names(connection)
    if not known and not any(one.formerly for one in declared):
        return known
    async with connection.transaction():
        if keep:
            await connection.execute(QUERIES["lock_names"], LOCK)
            known = await load_names(connection)
        rows, problems = list[Row](), list[Problem]()
        for kind in NameKind:
            settling = _Settling(connection, kind, known.of(kind))
            await settling.settle([one for one in declared if one.kind is kind])
            rows += settling.rows
            problems += settling.problems
        if problems:
            raise ConfigInvalid(problems)
        if rows and keep:
            await connection.execute(QUERIES["keep_names"], *zip(*rows, strict=True))
    return _with_rows(known, rows, declared)


async def prepare_routes(connection: Connection | Pooled, config: Config) -> None:
    """Prepare the ledger for the routes after a migration, before anything is claimed.

    Resolves the names of routes, stores the retention of each, and creates the daily partitions of
    the next days. Raises ConfigInvalid.
    """
    names = await settle_names(connection, config.declared_names())
    await prepare(connection, config.identified(names).retention)


async def find_lost_handlers(connection: Connection | Pooled, registry: Registry) -> list[str]:
    """Return the handlers with a history that the registry (identified) does not have."""
    known = {handler for _, handler in await list_known_handlers(connection)}
    missing = sorted(known - {item.handler for item in registry.subscriptions})
    rows = await connection.fetch(QUERIES[HISTORY[NameKind.HANDLER]], missing)
    return [row["name"] for row in rows]


class _Settling:
    """The names of one kind."""

    def __init__(self, connection: Connection | Pooled, kind: NameKind, known: Aliases) -> None:
        self._connection = connection
        self._kind = kind
        self._known = known
        self.rows: list[Row] = []
        self.problems: list[Problem] = []

    async def settle(self, declared: Iterable[Declared]) -> None:
        taken: dict[str, Declared] = {}
        for one in declared:
            identity = await self._identity(one)
            other = taken.setdefault(identity, one)
            if other is not one:
                self.problems.append(
                    one.problem(
                        f"{other.name} and {one.name}, which are names of one {self._kind}: the"
                        f" ledger keeps what it did under {identity}",
                        "one of them, and another name for the other: a name that was renamed is"
                        " not given to anything else",
                    )
                )
            elif identity != one.name or one.formerly or identity in self._renamed:
                self._note(one, identity)

    @property
    def _renamed(self) -> set[str]:
        return set(self._known.identities.values())

    def _candidates(self, one: Declared) -> list[str]:
        """Return the identities of the names of a thing. Only one of them may have a history."""
        return list(dict.fromkeys(map(self._known.identity, (one.name, *one.formerly))))

    def _note(self, one: Declared, identity: str) -> None:
        if self._known.label(identity) != one.name:
            self.rows.append((self._kind, one.name, identity, True))
        # The other candidates never ran, such as a typing error in `formerly`: their names move.
        given_up = {other for other in self._candidates(one) if other != identity}
        moving = [name for name, other in self._known.identities.items() if other in given_up]
        self.rows += [
            (self._kind, name, identity, False)
            for name in dict.fromkeys((*one.formerly, *moving))
            if name not in (one.name, identity) and self._known.identity(name) != identity
        ]

    async def _identity(self, one: Declared) -> str:
        """Return the identity of a name: the only one of its names that has a history."""
        candidates = self._candidates(one)
        if len(candidates) == 1:
            return candidates[0]
        rows = await self._connection.fetch(QUERIES[HISTORY[self._kind]], candidates)
        with_history = {row["name"] for row in rows}
        found = [name for name in candidates if name in with_history]
        if len(found) > 1:
            self.problems.append(self._both(one, found))
        if found:
            return found[0]
        # Nothing has run yet: the identity that running code has, unless it was a typing error,
        # or the oldest name, under which running old code will keep what it does.
        kept = [name for name in candidates if name in self._renamed and name in one.formerly]
        return [*kept, candidates[-1]][0]

    def _both(self, one: Declared, found: Sequence[str]) -> Problem:
        first, *others = found
        histories = f"{first} {RAN[self._kind]} and {' and '.join(others)} {RAN[self._kind]}, too"
        if self._kind is NameKind.ROUTE:
            keep = f"name the route {others[0]} again"
        else:
            keep = f'write @handler(..., name="{others[0]}")'
        formerly = f"{one.name} formerly {', '.join(one.formerly)}"
        return one.problem(
            f"{formerly}, but {histories}: their keys and effects cannot be merged",
            f"one name with a history. To go on with that of {others[0]}, {keep} without formerly;"
            f" to go on with that of {first}, remove formerly, and do not replay to it what"
            f" {others[0]} has done",
        )


def _names_of(rows: Iterable[asyncpg.Record]) -> Names:
    aliases = {kind: (dict[str, str](), dict[str, str]()) for kind in NameKind}
    for row in rows:
        identities, labels = aliases[NameKind(row["kind"])]
        if row["name"] != row["identity"]:
            identities[row["name"]] = row["identity"]
        labels[row["identity"]] = row["name"]
    return _made(aliases)


def _with_rows(known: Names, rows: Iterable[Row], declared: Iterable[Declared]) -> Names:
    """Return the names with new rows.

    A process shows its own names, even if another process with other names has started since.
    """
    aliases = {
        kind: (dict(known.of(kind).identities), dict(known.of(kind).labels)) for kind in NameKind
    }
    for kind, name, identity, _ in rows:
        if name != identity:
            aliases[kind][0][name] = identity
    for one in declared:
        identities, labels = aliases[one.kind]
        identity = identities.get(one.name, one.name)
        if identity != one.name or identity in labels:
            labels[identity] = one.name
    return _made(aliases)


def _made(aliases: dict[NameKind, tuple[dict[str, str], dict[str, str]]]) -> Names:
    routes, handlers = (Aliases(identities=i, labels=b) for i, b in aliases.values())
    return Names(routes=routes, handlers=handlers)
