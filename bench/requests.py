"""Signed requests as they go over the wire, written to a file before anything is measured."""

import hashlib
import hmac
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from gateway.providers.samples import make_sample

SECRET = b"whsec_bench"
STRIPE_PATH = "/webhooks/stripe"
GITHUB_PATH = "/webhooks/github"
TYPE = "payment_intent.succeeded"
GITHUB_BYTES = 25_000
APART = 1_000
"""New requests between one and its repetition: the first must have been answered by then."""
REPEAT_EVERY = 5
"""20 % duplicates."""
BUFFER_BYTES = 1024**2


def write_stripe(file: Path, count: int, *, sender: bytes = b"") -> None:
    """About 3 KB each, all ids new."""
    _write(file, stripe_requests(count, sender=lambda: sender))


def write_forged(file: Path, count: int, sender: Callable[[], bytes]) -> None:
    """The same, signed with another secret."""
    _write(file, stripe_requests(count, sender=sender, secret=b"whsec_of_a_forger"))


def one_address() -> bytes:
    """Always the same, as a proxy tells it."""
    return b"203.0.113.7"


def any_address() -> bytes:
    """One of 2**64 networks."""
    return b"2001:db8:%s::1" % b":".join(os.urandom(2).hex().encode() for _ in range(2))


def write_duplicates(file: Path, count: int) -> None:
    """The same with every fifth a repetition of an earlier one, byte for byte."""
    _write(file, _repeating(stripe_requests(count), count))


def write_github(file: Path, count: int) -> None:
    """Pushes of about 25 KB, all ids and all bodies new: the same bytes again would be a replay."""
    _write(file, _github(count))


def stripe_body() -> tuple[bytes, bytes]:
    """A Stripe event in two parts, between which its id belongs."""
    sample = make_sample("stripe", TYPE, now=datetime.now(UTC))
    before, after = sample.body.split(sample.id.encode(), 1)
    return before, after


def _write(file: Path, requests: Iterable[bytes]) -> None:
    with file.open("wb", buffering=BUFFER_BYTES) as sink:
        for request in requests:
            sink.write(struct.pack("<I", len(request)))
            sink.write(request)


def stripe_requests(
    count: int, *, sender: Callable[[], bytes] = bytes, secret: bytes = SECRET
) -> Iterator[bytes]:
    """With new ids, signed now; behind a proxy where a sender is named."""
    before, after = stripe_body()
    stamp = str(int(datetime.now(UTC).timestamp())).encode()
    for _ in range(count):
        body = b"%sevt_%s%s" % (before, _random_hex(), after)
        signature = hmac.digest(secret, stamp + b"." + body, hashlib.sha256).hex().encode()
        address = sender()
        forwarded = b"x-forwarded-for: %s\r\n" % address if address else b""
        yield (
            b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"%sstripe-signature: t=%s,v1=%s\r\ncontent-length: %d\r\n\r\n%s"
        ) % (STRIPE_PATH.encode(), forwarded, stamp, signature, len(body), body)


def _repeating(requests: Iterator[bytes], count: int) -> Iterator[bytes]:
    sent: deque[bytes] = deque(maxlen=APART)
    for number in range(count):
        if number % REPEAT_EVERY == REPEAT_EVERY - 1 and len(sent) == APART:
            yield sent[0]
        else:
            request = next(requests)
            sent.append(request)
            yield request


def _github(count: int) -> Iterator[bytes]:
    head = uuid4().hex
    before, after = _push_body(head).split(head.encode(), 1)
    for _ in range(count):
        body = before + _random_hex() + after
        signature = hmac.digest(SECRET, body, hashlib.sha256).hex().encode()
        yield (
            b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"user-agent: GitHub-Hookshot/bench\r\nx-github-event: push\r\n"
            b"x-github-delivery: %s\r\nx-hub-signature-256: sha256=%s\r\n"
            b"content-length: %d\r\n\r\n%s"
        ) % (GITHUB_PATH.encode(), str(uuid4()).encode(), signature, len(body), body)


def _random_hex() -> bytes:
    return os.urandom(16).hex().encode()  # a quarter of what uuid4 takes


def _push_body(head: str) -> bytes:
    """A push of so many commits that it is as large as wanted."""
    payload: dict[str, Any] = orjson.loads(
        make_sample("github", "push", now=datetime.now(UTC)).body
    )
    payload["after"] = head
    commit = payload["commits"][0]
    while len(orjson.dumps(payload)) < GITHUB_BYTES:
        payload["commits"].append(commit)
    return orjson.dumps(payload)
