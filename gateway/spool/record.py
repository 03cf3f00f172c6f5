"""A claim as bytes on disk: self-describing, with a checksum, so that damage is seen and not read.

magic · length of the facts · length of the body · checksum of all that follows and of the lengths ·
the facts as JSON · the body
"""

import hashlib
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from gateway.ledger.claims import Claim
from gateway.model import Envelope, ReplayPolicy

MAGIC: Final = b"\xffGWSPL1\xff"
"""Begins a record, and can be in none: facts are UTF-8, which has no such byte, and a body that has
it is written in another way. Else a sender could put a whole record into a body, and after damage
the search for the next one would find an event that nobody has verified."""

LENGTHS: Final = struct.Struct(">II")
CHECKSUM_BYTES: Final = 16
HEAD_BYTES: Final = len(MAGIC) + LENGTHS.size + CHECKSUM_BYTES
CHUNK_BYTES: Final = 1024 * 1024


class Unreadable(OSError):
    """A whole record that this code does not understand: another version wrote it."""


class Kept(NamedTuple):
    """A whole record and where it ends."""

    claim: Claim
    offset: int
    end: int


class Damaged(NamedTuple):
    """Bytes that are no whole record: torn by a crash, or spoilt by the disk."""

    offset: int
    end: int


def encode(claim: Claim) -> bytes:
    """One record."""
    envelope = claim.envelope
    facts = orjson.dumps(
        {
            "route": claim.route,
            "provider": claim.provider,
            "event_id": envelope.id,
            "type": envelope.type,
            "account": envelope.account,
            "object_id": envelope.object_id,
            "livemode": envelope.livemode,
            "occurred_at": envelope.occurred_at,
            "received_at": claim.received_at,
            "digest": claim.digest.hex(),
            "guard": None if claim.guard is None else claim.guard.hex(),
            "window_s": None if claim.window is None else claim.window.total_seconds(),
            "headers": claim.headers,
            "replay": claim.replay,
            "handlers": claim.handlers,
            "order_keys": dict(claim.order_keys),
            "verified_by": claim.verified_by,
            "clock_s": claim.clock_s,
            "key_id": claim.key_id,
            "unverified": claim.unverified,
            "trace": claim.trace,
            "base64": MAGIC in claim.body,
        }
    )
    body = b64encode(claim.body) if MAGIC in claim.body else claim.body
    lengths = LENGTHS.pack(len(facts), len(body))
    return b"".join((MAGIC, lengths, _checksum(lengths, facts, body), facts, body))


def scan(stream: BinaryIO, start: int, end: int) -> Iterator[Kept | Damaged]:
    """What lies between two places, in order. After damage it goes on at the next whole record."""
    offset = start
    while offset < end:
        kept = _read(stream, offset, end)
        if kept is None:
            found = _next_record(stream, offset + 1, end)
            yield Damaged(offset, found)
            offset = found
        else:
            yield kept
            offset = kept.end


def _read(stream: BinaryIO, offset: int, end: int) -> Kept | None:
    stream.seek(offset)
    head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    lengths = head[len(MAGIC) : len(MAGIC) + LENGTHS.size]
    facts_bytes, body_bytes = LENGTHS.unpack(lengths)
    record_end = offset + HEAD_BYTES + facts_bytes + body_bytes
    if record_end > end:
        return None
    facts, body = stream.read(facts_bytes), stream.read(body_bytes)
    if _checksum(lengths, facts, body) != head[-CHECKSUM_BYTES:]:
        return None
    try:
        return Kept(_claim(orjson.loads(facts), body), offset, record_end)
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the record at {offset} was written by another version") from error


def _next_record(stream: BinaryIO, offset: int, end: int) -> int:
    """Where the next whole record begins; the end where there is none."""
    while offset < end:
        stream.seek(offset)
        chunk = stream.read(min(CHUNK_BYTES, end - offset))
        place = chunk.find(MAGIC)
        if place >= 0:
            if _read(stream, offset + place, end) is not None:
                return offset + place
            offset += place + 1
        elif offset + len(chunk) >= end:
            break
        else:
            offset += len(chunk) - len(MAGIC) + 1  # it may begin in one chunk and end in the next
    return end


def _checksum(lengths: bytes, facts: bytes, body: bytes) -> bytes:
    checksum = hashlib.blake2b(lengths, digest_size=CHECKSUM_BYTES)
    checksum.update(facts)
    checksum.update(body)
    return checksum.digest()


def _claim(facts: dict[str, Any], body: bytes) -> Claim:
    return Claim(
        route=facts["route"],
        provider=facts["provider"],
        envelope=Envelope(
            id=facts["event_id"],
            type=facts["type"],
            account=facts["account"],
            object_id=facts.get("object_id"),
            livemode=facts["livemode"],
            occurred_at=_moment(facts["occurred_at"]),
        ),
        received_at=datetime.fromisoformat(facts["received_at"]),
        digest=bytes.fromhex(facts["digest"]),
        headers=facts["headers"],
        body=b64decode(body) if facts.get("base64") else body,
        replay=None if facts["replay"] is None else ReplayPolicy(facts["replay"]),
        handlers=tuple(facts["handlers"]),
        order_keys=facts.get("order_keys", {}),  # files of before there was an order have none
        spooled=True,
        verified_by=facts.get("verified_by"),
        clock_s=facts.get("clock_s"),
        key_id=facts.get("key_id"),  # nor of before there were keys
        unverified=facts.get("unverified", False),
        trace=facts.get("trace"),
        guard=None if facts.get("guard") is None else bytes.fromhex(facts["guard"]),
        window=None if facts.get("window_s") is None else timedelta(seconds=facts["window_s"]),
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
