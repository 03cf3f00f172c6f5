"""Whose turn it is: deliveries with an order key run one at a time, in the order of their ids."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES
from gateway.model import OnDead

KEYS_A_LOOK: Final = 2000
KEYS_A_STATEMENT: Final = 100
"""Each is a lock until the end of the statement, and the server has room for some thousands."""


class Turn(NamedTuple):
    """A key of a handler."""

    route: str
    handler: str
    key: str


FIRST: Final = Turn("", "", "")


async def advance(ledger: Executor, turns: Iterable[Turn]) -> list[int]:
    """Gives the turn to the first of each key that waits for it; returns what may run now."""
    wanted = list(dict.fromkeys(turns))
    given: list[int] = []
    for first in range(0, len(wanted), KEYS_A_STATEMENT):
        columns = zip(*wanted[first : first + KEYS_A_STATEMENT], strict=True)
        rows = await ledger.fetch(QUERIES["advance"], *map(list, columns))
        given += [row["id"] for row in rows if row["id"] is not None]
    return given


async def keep_policies(
    ledger: Executor, policies: Sequence[tuple[tuple[str, str], OnDead]]
) -> None:
    """Says what a dead delivery means to those behind it, per handler."""
    routes = [route for (route, _), _ in policies]
    handlers = [handler for (_, handler), _ in policies]
    await ledger.execute(
        QUERIES["keep_policies"], routes, handlers, [str(on_dead) for _, on_dead in policies]
    )


class StuckTurns:
    """Finds keys for which something waits although nothing has the turn, some at each look.

    There are some only where a process was killed between adding a delivery and giving it the turn,
    where its handler has an order no more, or where a person changed the tables by hand.
    """

    def __init__(self) -> None:
        self._mark = FIRST

    async def free(self, ledger: Executor) -> list[int]:
        """Gives the turn where it is nobody's; returns what may run now."""
        rows = await ledger.fetch(QUERIES["find_stuck"], *self._mark, KEYS_A_LOOK)
        turns = [Turn(row["route"], row["handler"], row["key"]) for row in rows]
        self._mark = turns[-1] if len(turns) == KEYS_A_LOOK else FIRST
        stuck = [turn for turn, row in zip(turns, rows, strict=True) if row["is_stuck"]]
        return await advance(ledger, stuck)
