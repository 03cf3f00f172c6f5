"""Every parser of times from outside: a time in range, or a refusal."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from gateway.base.errors import BadPayload
from gateway.base.times import EARLIEST, LATEST, from_unix, parse_iso, parse_moment
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.samples.changes import read_time, write_time
from gateway.providers.schemes import moments
from gateway.worker.policy import retry_after
from tests.fuzz.target import Check, Finding, Stage, Target

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    text = data.decode("latin-1")
    for parse in (parse_iso, parse_moment):
        with suppress(ValueError):
            _check_range(parse(text))
    for unit in moments.UNIT_EXPECTED:
        seconds = moments.parse_moment(text, unit)
        if seconds is not None:
            _check_range(from_unix(seconds))
    headers = {"x-shopify-topic": "x", "x-shopify-webhook-id": "1", "x-shopify-triggered-at": text}
    occurred_at = PROVIDERS["shopify"].read(Incoming(headers, b"{}")).occurred_at
    _check_range(NOW if occurred_at is None else occurred_at)
    body = b'{"id":"evt_1","object":"event","type":"x","livemode":true,"created":' + data + b"}"
    with suppress(BadPayload):
        _check_range(PROVIDERS["stripe"].read(Incoming({}, body)).occurred_at or NOW)
    wait = retry_after(text, NOW)
    if wait is not None and wait < timedelta(0):
        raise Finding(f"a wait of {wait}")
    moment = read_time(text)
    if moment is not None:
        write_time(text, moment)


def _check_range(moment: datetime) -> None:
    if not EARLIEST <= moment <= LATEST:
        raise Finding(f"{moment} is out of range")


def _seeds() -> list[bytes]:
    ends = (b"0001-01-01T00:00:00", b"9999-12-31T23:59:59", b"2026-11-18T12:00:00.5")
    offsets = (b"Z", b"+23:59", b"-23:59", b"+14:00", b"")
    numbers = (b"0", b"1793534400", b"1793534400000", b"253402300800", b"-1", b"1e308", b"nan")
    dates = (
        b"Fri, 31 Dec 9999 23:59:59 -2359",
        b"Mon, 01 Jan 0001 00:00:00 +2359",
        b"2h",
        b"36500d",
    )
    return [*(end + offset for end in ends for offset in offsets), *numbers, *dates]


TARGET = Target("times", _seeds, _open)
