"""Limits of requests and body bytes in flight, and the half that is reserved."""

import pytest

from gateway.base.errors import Overloaded
from gateway.http.admission import Admission, ConnectionLimit


def make_admission(
    *, max_requests: int, max_bytes: int, reserves: bool
) -> tuple[Admission, list[str]]:
    """Return it with the list of the pipelining connections that it evicts."""
    evicted: list[str] = []
    pipelining = ConnectionLimit[str](
        "pipelined request", max_members=9, max_bytes=9999, send_away=evicted.append
    )
    admission = Admission(
        max_requests=max_requests, max_bytes=max_bytes, reserves=reserves, pipelining=pipelining
    )
    return admission, evicted


def test_senders_that_retry_leave_half_of_the_requests_to_others() -> None:
    admission, _ = make_admission(max_requests=4, max_bytes=1000, reserves=True)
    with admission.enter(retries=True), admission.enter(retries=True):
        with pytest.raises(Overloaded, match="2 requests of senders that retry in flight"):
            admission.enter(retries=True)
        with (
            admission.enter(retries=False),
            admission.enter(retries=False),
            pytest.raises(Overloaded, match="4 requests in flight"),
        ):
            admission.enter(retries=False)
    assert (admission.requests, admission.bytes) == (0, 0)


def test_senders_that_retry_leave_half_of_the_bytes_to_others() -> None:
    admission, _ = make_admission(max_requests=9, max_bytes=1000, reserves=True)
    with (
        admission.enter(retries=True) as one,
        admission.enter(retries=True) as other,
        admission.enter(retries=False) as never,
    ):
        one.hold(300)
        with pytest.raises(Overloaded, match="300 body bytes of senders that retry"):
            other.hold(201)
        other.hold(200)
        never.hold(500)
        with pytest.raises(Overloaded, match="1000 body bytes in flight"):
            never.hold(1)
    with admission.enter(retries=True) as again:
        again.hold(500)


def test_a_body_larger_than_the_shared_half_passes_alone() -> None:
    admission, _ = make_admission(max_requests=9, max_bytes=1000, reserves=True)
    with admission.enter(retries=True) as large, admission.enter(retries=True) as small:
        large.hold(400)
        large.hold(400)
        with pytest.raises(Overloaded):
            small.hold(1)


def test_nothing_is_reserved_if_every_sender_retries() -> None:
    admission, _ = make_admission(max_requests=2, max_bytes=1000, reserves=False)
    with admission.enter(retries=True) as one, admission.enter(retries=True) as other:
        one.hold(500)
        other.hold(500)


def test_requests_that_wait_in_a_pipeline_are_in_flight() -> None:
    admission, evicted = make_admission(max_requests=3, max_bytes=1000, reserves=False)
    with admission.enter():
        admission.wait("one", 200)
        admission.wait("other", 300)
        assert (admission.requests, admission.bytes) == (3, 500)
        assert not evicted


def test_requests_that_wait_give_way_to_those_that_have_their_turn() -> None:
    admission, evicted = make_admission(max_requests=3, max_bytes=1000, reserves=False)
    admission.wait("one", 0)
    admission.wait("other", 0)
    with admission.enter(), admission.enter():
        assert evicted == ["one"]
        with admission.enter():
            assert evicted == ["one", "other"]
            with pytest.raises(Overloaded, match="3 requests in flight"):
                admission.enter()
            admission.wait("late", 0)
            assert evicted[2:] == ["late"]


def test_bytes_that_wait_give_way_to_those_of_bodies() -> None:
    admission, evicted = make_admission(max_requests=9, max_bytes=1000, reserves=False)
    admission.wait("one", 400)
    admission.wait("other", 400)
    with admission.enter() as place:
        place.hold(500)
        assert (evicted, admission.bytes) == (["one"], 900)
        admission.wait("other", 501)
        assert (evicted, admission.bytes) == (["one", "other"], 500)
