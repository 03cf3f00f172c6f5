"""How the last reload of a serve process went, for whoever looks at the whole."""

import os
import socket
from datetime import timedelta
from typing import Final

from gateway.ledger.connection import Executor
from gateway.ledger.queries import QUERIES

KEPT: Final = timedelta(days=7)
"""How long one of a process is kept that was killed, and never said that it ends."""

DONE: Final = "done"
REFUSED: Final = "refused"


async def keep_reload(ledger: Executor, outcome: str, error: str | None) -> None:
    """Of this process."""
    await ledger.execute(QUERIES["keep_reload"], KEPT, *_me(), outcome, error)


async def forget_reload(ledger: Executor) -> None:
    """When this process ends."""
    await ledger.execute(QUERIES["forget_reload"], *_me())


def _me() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()
