"""Sessions of the console that were ended before their time: what a log-out leaves behind."""

from datetime import datetime

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES


async def end_session(ledger: Executor, session: str, until: datetime) -> None:
    """Lets nobody in with it any more, in any process, until it would have run out by itself."""
    await ledger.execute(QUERIES["end_session"], session, until)


async def has_ended(ledger: Executor, session: str) -> bool:
    """Whether somebody has logged out of it."""
    return bool(await ledger.fetchval(QUERIES["has_ended"], session))
