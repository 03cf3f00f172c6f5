"""Ordering keys: deliveries with the same key run one at a time, in the order of their ids."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.base.model import OnDead
from gateway.ledger.connection import QUERIES, Executor

KEYS_A_LOOK: Final = 2000
KEYS_A_STATEMENT: Final = 100
"""Each key is a lock until the end of the statement, and the server has room for some thousands."""


class OrderingKey(NamedTuple):
    """An ordering key of a handler."""

    route: str
    handler: str
    key: str


FIRST: Final = OrderingKey("", "", "")


async def advance(ledger: Executor, turns: Iterable[OrderingKey]) -> list[int]:
    """Let the first waiting delivery of each key run. Return the ids of those deliveries."""
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
    """Store, per handler, whether a dead delivery blocks the later ones of its key."""
    routes = [route for (route, _), _ in policies]
    handlers = [handler for (_, handler), _ in policies]
    await ledger.execute(
        QUERIES["keep_policies"], routes, handlers, [str(on_dead) for _, on_dead in policies]
    )


class StuckKeys:
    """Finds keys with waiting deliveries of which none may run, a batch at each call.

    They exist only if a process was killed between adding a delivery and advancing its key, if the
    handler no longer has ordering, or if the tables were changed by hand.
    """

    def __init__(self) -> None:
        self._mark = FIRST

    async def free(self, ledger: Executor) -> list[int]:
        """Advance the stuck keys. Return the ids of deliveries that may run now."""
        rows = await ledger.fetch(QUERIES["find_stuck"], *self._mark, KEYS_A_LOOK)
        turns = [OrderingKey(row["route"], row["handler"], row["key"]) for row in rows]
        self._mark = turns[-1] if len(turns) == KEYS_A_LOOK else FIRST
        stuck = [turn for turn, row in zip(turns, rows, strict=True) if row["is_stuck"]]
        return await advance(ledger, stuck)
