"""Which secret verified, noted in memory and added to the ledger every few seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES

KEPT: Final = timedelta(days=400)
"""How long a secret that nothing uses is remembered: longer than anybody takes to rotate it."""

NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Use:
    """How often one secret of a route verified in this process, and when it did so last."""

    __slots__ = ("count", "kept", "last_at")

    def __init__(self) -> None:
        self.count = 0
        self.kept = 0
        """So many of them are in the ledger."""
        self.last_at = NEVER

    def note(self, now: datetime) -> None:
        """One more. On the path of every request, and from several threads: one that gets lost
        between them does no harm, the time is what matters."""
        self.count += 1
        self.last_at = now


class SecretUses:
    """Those of one process, by route and reference."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], Use] = {}

    def of(self, route: str, secret: str) -> Use:
        """The same one each time, so that a reload goes on counting."""
        return self._uses.setdefault((route, secret), Use())

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """Since the process began."""
        for (route, secret), use in sorted(self._uses.items()):
            yield route, secret, use.count

    async def flush(self, ledger: Executor) -> None:
        """Adds what is new to the ledger. What it does not take is kept for the next time."""
        fresh = [
            (key, use, use.count, use.last_at)
            for key, use in sorted(self._uses.items())
            if use.count > use.kept
        ]
        if not fresh:
            return
        await ledger.execute(
            QUERIES["add_secret_uses"],
            KEPT,
            [route for (route, _), *_ in fresh],
            [secret for (_, secret), *_ in fresh],
            [count - use.kept for _, use, count, _ in fresh],
            [last_at for *_, last_at in fresh],
        )
        for _, use, count, _ in fresh:
            use.kept = count


async def read_secret_uses(ledger: Executor) -> dict[tuple[str, str], dict[str, Any]]:
    """Of all processes, by route and reference."""
    rows = await ledger.fetch(QUERIES["list_secret_uses"])
    return {(row["route"], row["secret"]): dict(row) for row in rows}
