"""A ledger that has lived: the rows of tests/past/, written while each schema was the newest.

Plain SQL, one file per schema, and none of our code: today's could not have written them. Once a
schema is released, its file is not edited any more.
"""

import hashlib
from pathlib import Path
from typing import Final

from gateway.base.secrets import Secret
from gateway.privacy.encryption import KeyRing

DIRECTORY: Final = Path(__file__).parents[1] / "past"
RING: Final = KeyRing([Secret(hashlib.sha256(b"a key of the past").digest())])
HANDLER: Final = "handlers.count"
HEADERS: Final = {"content-type": "application/json", "x-note": "of the past"}
ERRORS: Final = {
    "dead": "Traceback: ValueError: boom",
    "sealed": "Traceback: no such customer as Zebra-4711",
}
"""The error of the only attempt of each event."""

RESULTS: Final = {"acted": {"id": "re_1"}, "sealed": {"id": "re_2"}}
"""The result of the effect `receipt` of each event."""


def lived_at(version: int) -> str:
    """Return the SQL for rows of the kinds that this schema has added, if it has."""
    file = DIRECTORY / f"{version:04}.sql"
    return file.read_text(encoding="utf-8") if file.exists() else "select"


def body_of(event_id: str) -> bytes:
    return f'{{"id":"{event_id}","n":1}}'.encode()
