"""How many bytes of bodies a worker may lease."""

from datetime import UTC, datetime
from uuid import uuid4

from gateway.base.model import Event, Lease
from gateway.worker.intake import SMALL_BYTES, HeldBytes

MIB = 1024**2


def make_lease(body_bytes: int) -> Lease:
    event = Event(
        id="evt_1", type="a", route="r", provider="stripe", account=None, livemode=None,
        occurred_at=None, received_at=datetime.now(UTC), headers={}, body=b"",
    )  # fmt: skip
    return Lease(
        delivery_id=1, token=uuid4(), handler="h", attempt=1, event=event, run=1,
        body_bytes=body_bytes,
    )  # fmt: skip


def test_large_bodies_use_up_the_room_until_they_are_freed() -> None:
    held = HeldBytes(32 * MIB, slots=16)
    first, second = make_lease(20 * MIB), make_lease(20 * MIB)
    held.add(first)
    assert held.room.large == 12 * MIB
    held.add(second)
    assert held.is_full
    assert held.remove(first)
    assert held.room.large == 12 * MIB
    assert not held.remove(second)  # there was room before
    assert held.room.large == 32 * MIB


def test_a_lease_is_freed_once() -> None:
    held = HeldBytes(MIB, slots=1)
    lease = make_lease(MIB)
    held.add(lease)
    assert held.remove(lease)
    assert not held.remove(lease)


def test_small_bodies_do_not_count() -> None:
    held = HeldBytes(32 * MIB, slots=16)
    assert held.room.small == SMALL_BYTES
    held.add(make_lease(SMALL_BYTES))
    assert held.room.large == 32 * MIB


def test_small_bodies_of_all_slots_take_at_most_a_quarter_of_the_limit() -> None:
    slots = 1000
    room = HeldBytes(MIB, slots=slots).room
    assert room.small * 2 * slots <= MIB / 4
