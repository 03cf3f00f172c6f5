"""Records on disk: what was written is read back, and nothing else is."""

import io
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.base.model import Envelope, RepeatPolicy
from gateway.ledger.claims import Claim
from gateway.receive.spool.file import MAGIC, DamagedRecord, SpoolRecord, encode, scan

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
MOMENT = datetime(2026, 11, 16, 2, 0, 0, 123456, tzinfo=UTC)


def make_claim(event_id: str = "evt_1", body: bytes = b"{}") -> Claim:
    return Claim(
        route="github",
        provider="github",
        envelope=Envelope(id=event_id, type="push"),
        received_at=MOMENT,
        digest=b"\0" * 32,
        headers={"x-github-event": "push"},
        body=body,
        repeats=RepeatPolicy.REFUSE,
        handlers=("handlers.repos.remember",),
        spooled=True,
    )


def read(content: bytes) -> list[SpoolRecord | DamagedRecord]:
    return list(scan(io.BytesIO(content), 0, len(content)))


def ids(found: list[SpoolRecord | DamagedRecord]) -> list[str]:
    return [item.claim.envelope.id for item in found if isinstance(item, SpoolRecord)]


@given(
    event_id=TEXT,
    type=TEXT,
    account=st.none() | TEXT,
    livemode=st.none() | st.booleans(),
    occurred_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    body=st.binary(max_size=200),
    headers=st.dictionaries(TEXT, TEXT, max_size=3),
    repeats=st.none() | st.sampled_from(RepeatPolicy),
    handlers=st.lists(TEXT, max_size=3).map(tuple),
    window=st.none() | st.integers(0, 10**7).map(lambda s: timedelta(seconds=s)),
)
def test_a_claim_comes_back_as_it_was(
    event_id: str,
    type: str,
    account: str | None,
    livemode: bool | None,
    occurred_at: datetime | None,
    body: bytes,
    headers: dict[str, str],
    repeats: RepeatPolicy | None,
    handlers: tuple[str, ...],
    window: timedelta | None,
) -> None:
    claim = make_claim()._replace(
        envelope=Envelope(
            id=event_id, type=type, account=account, livemode=livemode, occurred_at=occurred_at
        ),
        body=body,
        headers=headers,
        repeats=repeats,
        handlers=handlers,
        window=window,
    )
    content = encode(claim)
    assert read(content + content) == [
        SpoolRecord(claim, 0, len(content)),
        SpoolRecord(claim, len(content), 2 * len(content)),
    ]


def test_a_file_cut_anywhere_keeps_what_was_whole_and_names_the_rest() -> None:
    first, second = encode(make_claim("evt_1")), encode(make_claim("evt_2"))
    content = first + second
    for length in range(len(content) + 1):
        found = read(content[:length])
        whole = (length >= len(first)) + (length >= len(content))
        assert ids(found) == ["evt_1", "evt_2"][:whole]
        torn = length - len(first) if whole == 1 else length if whole == 0 else 0
        assert [f.end - f.offset for f in found if isinstance(f, DamagedRecord)] == [torn] * (
            torn > 0
        )


def test_any_byte_that_changed_is_noticed_and_the_neighbours_are_kept() -> None:
    records = [encode(make_claim(f"evt_{n}", body=b'{"n":1}' * 3)) for n in range(3)]
    content, start = b"".join(records), len(records[0])
    for place in range(start, start + len(records[1])):
        spoilt = bytearray(content)
        spoilt[place] ^= 0x20
        found = read(bytes(spoilt))
        assert ids(found) == ["evt_0", "evt_2"], place
        assert [f for f in found if isinstance(f, DamagedRecord)] == [
            DamagedRecord(start, start + len(records[1]))
        ]


def test_a_lost_middle_and_garbage_with_magic_in_it_are_stepped_over() -> None:
    one, two = encode(make_claim("evt_1")), encode(make_claim("evt_2"))
    garbage = b"\0" * 3_000_000 + MAGIC + b"\xff" * 100 + MAGIC
    found = read(one + garbage + two)
    assert ids(found) == ["evt_1", "evt_2"]
    assert [f for f in found if isinstance(f, DamagedRecord)] == [
        DamagedRecord(len(one), len(one) + len(garbage))
    ]


def test_no_body_can_hold_a_record() -> None:
    """Bodies need not be JSON. Where one is torn, what a sender wrote into it is no event."""
    forged = encode(make_claim("evt_forged"))
    claim = make_claim("evt_1", body=b"--x\r\n" + forged + b"\r\n--x--")
    content = encode(claim)
    assert read(content) == [SpoolRecord(claim, 0, len(content))]
    for spoilt in (b"\0" + content[1:], content[:-1] + b"\0", content[:-1]):
        assert ids(read(spoilt + encode(make_claim("evt_2")))) == ["evt_2"]


def test_a_record_that_straddles_two_chunks_of_the_search_is_found() -> None:
    two = encode(make_claim("evt_2"))
    for pad in range(1024 * 1024 - 4, 1024 * 1024 + 4):
        assert ids(read(b"x" * pad + two)) == ["evt_2"], pad
