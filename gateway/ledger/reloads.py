"""Uses of each secret, counted in memory and added to the ledger every few seconds."""

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.ledger.connection import QUERIES, Executor


async def end_session(ledger: Executor, session: str, until: datetime) -> None:
    """End a session in every process, until it would have expired by itself."""
    await ledger.execute(QUERIES["end_session"], session, until)


async def has_ended(ledger: Executor, session: str) -> bool:
    """Return whether the session was ended by a log-out."""
    return bool(await ledger.fetchval(QUERIES["has_ended"], session))


KEPT: Final = timedelta(days=7)
"""How long the row of a process is kept that was killed and could not delete it."""

DONE: Final = "done"
REFUSED: Final = "refused"


async def keep_reload(ledger: Executor, outcome: str, error: str | None) -> None:
    """Store the result of a reload of this process."""
    await ledger.execute(QUERIES["keep_reload"], KEPT, *_me(), outcome, error)


async def forget_reload(ledger: Executor) -> None:
    """Delete the row of this process, when it ends."""
    await ledger.execute(QUERIES["forget_reload"], *_me())


def _me() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


USES_KEPT: Final = timedelta(days=400)
"""How long an unused secret is kept in the statistics: longer than any rotation takes."""

NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Use:
    """Counts how often a secret of a route verified a request in this process, and when last."""

    __slots__ = ("count", "kept", "last_at")

    def __init__(self) -> None:
        self.count = 0
        self.kept = 0
        """The number of uses that are already in the ledger."""
        self.last_at = NEVER

    def note(self, now: datetime) -> None:
        """Count one use.

        It is called for every request, and from several threads: a count that is lost between them
        does no harm, because the time matters more.
        """
        self.count += 1
        self.last_at = now


class SecretUses:
    """The uses of secrets in one process, by route and reference."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], Use] = {}

    def of(self, route: str, secret: str) -> Use:
        """Return the same object each time, so that the count survives a reload."""
        return self._uses.setdefault((route, secret), Use())

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """Yield the counts since the process started."""
        for (route, secret), use in sorted(self._uses.items()):
            yield route, secret, use.count

    async def flush(self, ledger: Executor) -> None:
        """Add the new uses to the ledger. If that fails, they are kept for the next time."""
        fresh = [
            (key, use, use.count, use.last_at)
            for key, use in sorted(self._uses.items())
            if use.count > use.kept
        ]
        if not fresh:
            return
        await ledger.execute(
            QUERIES["add_secret_uses"],
            USES_KEPT,
            [route for (route, _), *_ in fresh],
            [secret for (_, secret), *_ in fresh],
            [count - use.kept for _, use, count, _ in fresh],
            [last_at for *_, last_at in fresh],
        )
        for _, use, count, _ in fresh:
            use.kept = count


async def read_secret_uses(ledger: Executor) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the uses in all processes, by route and reference."""
    rows = await ledger.fetch(QUERIES["list_secret_uses"])
    return {(row["route"], row["secret"]): dict(row) for row in rows}
