"""Times from outside at both ends of the calendar: in range, or refused; never an error."""

import hmac
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.base.errors import BadJob, BadPayload, BadSignature, RequestRejected, StaleTimestamp
from gateway.base.model import Envelope
from gateway.base.problems import Unexpected
from gateway.base.times import (
    EARLIEST,
    LATEST,
    Moment,
    Time,
    UtcTime,
    from_unix,
    parse_iso,
    parse_moment,
    parse_time,
    to_utc,
)
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.entries import entry_names, read_scheme
from gateway.providers.publish import LONGEST_DELAY, read_job
from gateway.providers.samples.changes import read_time, write_time
from gateway.providers.schemes.build import make_provider
from gateway.providers.schemes.planting import plant
from gateway.providers.schemes.sections import HmacSection
from gateway.worker.policy import retry_after
from gateway.worker.statements import ordered_version

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
OFFSETS = ["Z", "+00:00", "+23:59", "-23:59", "+14:00", "-12:00", "+23:59:59.999999", ""]
ENDS = [
    *("0001-01-01T00:00:00", "0001-01-01T23:59:59.999999", "0001-01-02T00:00:00"),
    *("9999-12-31T23:59:59", "9999-12-31T23:59:59.999999", "9999-12-31T00:00:00"),
    *("9999-12-30T00:00:00", "1969-12-31T23:59:59", "1970-01-01T00:00:00"),
]
NUMBERS = [
    *("0", "-1", "1", "-0", "1e3", "1.5", "nan", "NaN", "inf", "-inf", "Infinity", "0x10", "1_0"),
    *("253402300799", "253402300800", "253402214400", "253402214401", "999999999999"),
    *("253402300799999", "253402300800000", "999999999999999", "1793534400", "1793534400000"),
    *("1793534400000000", "9" * 13, "9" * 30, "9" * 400, "-62135596800", "62135596800"),
    *("\u0661\u0667", "+1793534400", " 1793534400", "1793534400 "),
]
ODD = [
    *("", " ", "T", "0000-00-00T00:00:00Z", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"),
    *("2026-02-30T00:00:00Z", "2026-11-18T24:00:00Z", "2026-11-18T23:59:60Z", "2026-W01-1"),
    *("-2026-11-18T00:00:00Z", "2026-11-18T00:00:00+24:00", "20261118T000000Z", "9" * 100),
    *("infinity", "-infinity", "now", "epoch", "4714-11-23 BC", "294276-12-31T23:59:59Z"),
]
TEXTS = [*(end + offset for end in ENDS for offset in OFFSETS), *NUMBERS, *ODD]
DATES = [
    *("Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359", "Fri, 31 Dec 9999"),
    *("Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Wed, 18 Nov 2026"),
    *("Wed, 18 Nov 2026 12:00:00 +9999", "Wed, 18 Nov 2026 12:00:00 -99999999", "1 Jan 99999"),
    *("Wed, 18 Nov 2026 24:00:00 GMT", "Wed, 31 Feb 2026 12:00:00 GMT", "Wed, 18 Nov -1 0:0:0"),
]
floats = st.floats(allow_nan=True, allow_infinity=True)
any_json = st.one_of(st.integers(), floats, st.text(), st.booleans(), st.none(), st.lists(floats))
any_text = st.one_of(
    st.text(),
    st.integers().map(str),
    floats.map(str),
    st.datetimes(timezones=st.timezones() | st.just(UTC), allow_imaginary=False).map(
        datetime.isoformat
    ),
)


def in_range(moment: datetime | None) -> bool:
    return moment is None or (moment.utcoffset() == timedelta(0) and EARLIEST <= moment <= LATEST)


def described(unit: str, *, is_signed: bool) -> Any:
    """A sender with its time in a header: signed, or as information."""
    at = {"at": "header.x-time", "unit": unit}
    said: dict[str, Any] = {"timestamp": at, "signed": "{timestamp}.{body}"}
    if not is_signed:
        said = {"occurred_at": at}
    section = HmacSection.model_validate(
        {"signature": {"at": "header.x-signature"}, "type": "x", **said}
    )
    return make_provider("x", "hmac", section)


UNITS = ["s", "ms", "s_or_ms", "iso"]
SIGNED = {unit: described(unit, is_signed=True) for unit in UNITS}
TOLD = {unit: described(unit, is_signed=False) for unit in UNITS}


def check_signed(unit: str, text: str) -> None:
    """A time that is signed, and so part of a request that is verified."""
    provider, body = SIGNED[unit], b"{}"
    sent = provider.sign(body, secret=b"key", id="", type="x", now=NOW)
    headers = {**sent.headers, "x-time": text}

    signed = text.encode("latin-1", "replace") + b"." + body
    headers["x-signature"] = hmac.digest(b"key", signed, "sha256").hex()
    try:
        provider.verify(
            Incoming(headers, body), keys=[b"key"], now=NOW, tolerance=provider.tolerance
        )
    except (BadSignature, StaleTimestamp):
        return
    assert text[:10] in (str(int(NOW.timestamp())), f"{NOW:%Y-%m-%d}") or "2026" in text


def check_told(unit: str, text: str) -> None:
    """A time that protects nothing, such as Shopify's unsigned header."""
    envelope = TOLD[unit].read(Incoming({"x-time": text}, b"{}"))
    assert in_range(envelope.occurred_at)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_senders_time_is_in_range_or_left_out(unit: str, text: str) -> None:
    check_told(unit, text)
    check_signed(unit, text)


@given(st.sampled_from(UNITS), any_text)
def test_whatever_a_sender_writes_as_its_time_is_no_error(unit: str, text: str) -> None:
    check_told(unit, text)
    check_signed(unit, text)


def test_the_time_that_leaves_year_9999_in_utc_is_no_time() -> None:
    """For Shopify the header is not signed: anybody who captured a request could change it."""
    headers = {
        "x-shopify-topic": "orders/create",
        "x-shopify-webhook-id": "1",
        "x-shopify-triggered-at": "9999-12-31T23:59:59-23:59",
    }
    assert PROVIDERS["shopify"].read(Incoming(headers, b"{}")).occurred_at is None


def occurrences() -> Iterator[Any]:
    for name in sorted(entry_names()):
        section = read_scheme(name)
        if section.occurred_at is not None:
            yield pytest.param(name, section.occurred_at.at, id=name)


@pytest.mark.parametrize(("name", "place"), list(occurrences()))
def test_no_entry_of_the_catalogue_fails_at_a_time(name: str, place: Any) -> None:
    provider = PROVIDERS[name]
    drafts = provider.drafts
    assert drafts is not None
    _, body = drafts.make(drafts.example, NOW)
    odd: list[Any] = [1.5, -1.5, 1e308, 5e-324, 10**400, -(10**400), True, None, [], {}]
    for value in [*TEXTS, *odd]:
        headers: dict[str, str] = {}
        document = json.loads(body)
        if place.source == "header":
            headers[place.name] = str(value)[:1000]
        elif isinstance(document, dict):
            plant(document, place.keys, value)
        try:
            envelope: Envelope = provider.read(Incoming(headers, json.dumps(document).encode()))
        except BadPayload:
            continue
        assert in_range(envelope.occurred_at), value


def test_a_time_with_a_fraction_of_a_second_is_read() -> None:
    section = HmacSection.model_validate(
        {
            "signature": {"at": "header.x-signature"},
            "type": "x",
            "occurred_at": {"at": "json.timestamp"},
        }
    )
    read = make_provider("x", "hmac", section).read
    envelope = read(Incoming({}, b'{"timestamp": 1793534400.5}'))
    assert envelope.occurred_at == datetime(2026, 11, 1, 12, 0, 0, 500_000, UTC)
    for odd in (b"1e308", b"-1e308", b"-0.5", b"253402300800.5"):
        assert read(Incoming({}, b'{"timestamp": %b}' % odd)).occurred_at is None


def test_a_time_in_seconds_or_milliseconds_is_read_by_its_digits() -> None:
    provider = TOLD["s_or_ms"]
    moment = datetime(2026, 11, 1, 12, tzinfo=UTC)
    for text in ("1793534400", "1793534400000"):
        assert provider.read(Incoming({"x-time": text}, b"{}")).occurred_at == moment
    for text in ("17935344000000", "179353440000"):
        found = provider.read(Incoming({"x-time": text}, b"{}")).occurred_at
        assert found is None or found.year > 7000


def stripe(created: object, kind: str) -> Envelope:
    event = {"id": "evt_1", "type": "x", "livemode": False, "object": kind, "created": created}
    return PROVIDERS["stripe"].read(Incoming({}, json.dumps(event).encode()))


@given(st.sampled_from(["event", "v2.core.event"]), st.one_of(any_json, any_text))
def test_the_time_of_a_stripe_event_is_in_range_or_refused(kind: str, created: object) -> None:
    with suppress(BadPayload):
        assert in_range(stripe(created, kind).occurred_at)


@pytest.mark.parametrize("text", TEXTS)
def test_the_time_of_a_thin_stripe_event_at_the_ends_is_in_range_or_refused(text: str) -> None:
    with suppress(BadPayload):
        assert in_range(stripe(text, "v2.core.event").occurred_at)


@pytest.mark.parametrize("text", NUMBERS)
def test_the_signed_time_of_stripe_is_refused_or_stale(text: str) -> None:
    body = b"{}"
    signed = PROVIDERS["stripe"].sign(body, secret=b"whsec_x", id="", type="", now=NOW)
    _, _, signature = signed.headers["stripe-signature"].partition(",")
    headers = {"stripe-signature": f"t={text},{signature}".encode("ascii", "replace").decode()}
    with pytest.raises(RequestRejected):
        PROVIDERS["stripe"].verify(
            Incoming(headers, body), keys=[b"whsec_x"], now=NOW, tolerance=timedelta(minutes=5)
        )


@given(st.one_of(any_json, st.floats(0, 1e7), st.integers(0, 10**8)))
def test_the_delay_of_a_job_is_within_its_bounds_or_refused(seconds: object) -> None:
    body = json.dumps({"payload": 1, "delaySeconds": seconds}).encode()
    with suppress(BadJob, BadPayload):
        assert timedelta(0) <= read_job("mails", {}, body).delay <= LONGEST_DELAY


PARSERS = [parse_time, parse_moment, parse_iso]
TYPES: list[TypeAdapter[datetime]] = [TypeAdapter(Time), TypeAdapter(Moment), TypeAdapter(UtcTime)]


def check_people(text: str) -> None:
    """`since`, `until`, `expires_at`, cursors, and times of an API."""
    for parse in PARSERS:
        with suppress(ValueError):
            assert in_range(parse(text)), parse
    for adapter in TYPES:
        with suppress(ValidationError, Unexpected):
            assert in_range(adapter.validate_python(text))


@pytest.mark.parametrize("text", TEXTS)
def test_a_time_that_people_or_an_api_write_is_in_range_or_refused(text: str) -> None:
    check_people(text)


@given(any_text)
def test_whatever_people_or_an_api_write_as_a_time_is_no_error(text: str) -> None:
    check_people(text)


@given(st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False))
def test_a_time_object_is_in_range_and_in_utc_or_refused(moment: datetime) -> None:
    for adapter in TYPES:
        with suppress(ValidationError, Unexpected):
            assert in_range(adapter.validate_python(moment))


@given(st.one_of(floats, st.integers()))
def test_unix_seconds_are_in_range_or_a_value_error(seconds: float) -> None:
    with suppress(ValueError):
        assert in_range(from_unix(seconds))


def test_the_ends_of_the_range_themselves_are_in_it_in_every_zone() -> None:
    for moment in (EARLIEST, LATEST):
        assert to_utc(moment) == moment
        assert from_unix(moment.timestamp()) == moment
        for hours in (-23, 23):
            there = moment.astimezone(_zone(hours))
            assert parse_iso(there.isoformat()) == moment
    for moment in (EARLIEST - timedelta(microseconds=1), LATEST + timedelta(microseconds=1)):
        with pytest.raises(ValueError, match="out of range"):
            to_utc(moment)


def _zone(hours: int) -> Any:

    return timezone(timedelta(hours=hours))


@given(
    st.datetimes(timezones=st.timezones(), allow_imaginary=False),
    st.integers(0, 2**32).map(from_unix),
)
def test_a_version_is_in_range_or_a_value_error(version: datetime, received_at: datetime) -> None:
    try:
        found = ordered_version(version, received_at)
    except ValueError as error:
        assert "out of range" in str(error)  # noqa: PT017 (either is right)
    else:
        assert timedelta(0) <= found - to_utc(version) < timedelta(seconds=1)


@pytest.mark.parametrize("text", [*DATES, *TEXTS])
def test_a_retry_after_header_is_a_duration_or_nothing(text: str) -> None:
    wait = retry_after(text, NOW)
    assert wait is None or wait >= timedelta(0)


@given(any_text)
def test_whatever_stands_in_retry_after_is_no_error(text: str) -> None:
    wait = retry_after(text, NOW)
    assert wait is None or wait >= timedelta(0)


@given(st.one_of(any_json, any_text))
def test_a_time_in_a_recorded_sample_can_be_written_again(value: object) -> None:
    moment = read_time(value)
    if moment is not None:
        assert read_time(write_time(value, moment)) is not None
