"""Signed Stripe events as they go over the wire: all ids new, about 3 KB each."""

import hashlib
import hmac
import struct
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from gateway.samples import make_sample

SECRET = b"whsec_bench"
PATH = "/webhooks/stripe"
TYPE = "payment_intent.succeeded"


def write_requests(file: Path, count: int) -> None:
    """Length-prefixed requests, one after the other."""
    sample = make_sample("stripe", TYPE, now=datetime.now(UTC))
    before, after = sample.body.split(sample.id.encode(), 1)
    stamp = str(int(datetime.now(UTC).timestamp())).encode()
    with file.open("wb") as sink:
        for _ in range(count):
            body = before + b"evt_" + uuid4().hex.encode() + after
            request = _head(body, stamp) + body
            sink.write(struct.pack("<I", len(request)) + request)


def _head(body: bytes, stamp: bytes) -> bytes:
    digest = hmac.digest(SECRET, stamp + b"." + body, hashlib.sha256).hex().encode()
    return (
        b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"stripe-signature: t=%s,v1=%s\r\ncontent-length: %d\r\n\r\n"
    ) % (PATH.encode(), stamp, digest, len(body))
