"""What is in the spool, read from outside: by `gateway status`, whoever owns the files."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gateway.spool.file import SUFFIX, TORN
from gateway.spool.record import Kept, scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """The spool of a data directory, of all processes that share it."""

    events: int = 0
    bytes: int = 0
    oldest_at: datetime | None = None
    unreadable: tuple[str, ...] = ()
    """Set aside, or not to be read at all: a person has to look at them."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """How many are encrypted under which key."""


def look_at(directory: Path) -> Stock:
    """Counts what is there. A file may go while it is being read: then the ledger has it."""
    events, size, moments, keys = 0, 0, list[datetime](), Counter[str]()
    unreadable = list(directory.glob(f"*{TORN}"))
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            if not path.is_file():
                raise OSError("not a file")
            end = path.stat().st_size
            with path.open("rb") as stream:
                for found in scan(stream, 0, end):
                    if isinstance(found, Kept):
                        events += 1
                        moments.append(found.claim.received_at)
                        if found.claim.key_id is not None:
                            keys[found.claim.key_id] += 1
        except FileNotFoundError:
            continue
        except OSError:
            unreadable.append(path)
            continue
        size += end
    return Stock(
        events=events,
        bytes=size,
        oldest_at=min(moments, default=None),
        unreadable=tuple(map(str, sorted(unreadable))),
        keys=dict(keys),
    )
