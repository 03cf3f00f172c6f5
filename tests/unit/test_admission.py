"""Limits of requests and body bytes in flight, and the half that is reserved."""

import pytest

from gateway.errors import Overloaded
from gateway.receive.admission import Admission


def test_senders_that_retry_leave_half_of_the_requests_to_others() -> None:
    admission = Admission(max_requests=4, max_bytes=1000, reserves=True)
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
    admission = Admission(max_requests=9, max_bytes=1000, reserves=True)
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
    admission = Admission(max_requests=9, max_bytes=1000, reserves=True)
    with admission.enter(retries=True) as large, admission.enter(retries=True) as small:
        large.hold(400)
        large.hold(400)
        with pytest.raises(Overloaded):
            small.hold(1)


def test_nothing_is_reserved_if_every_sender_retries() -> None:
    admission = Admission(max_requests=2, max_bytes=1000, reserves=False)
    with admission.enter(retries=True) as one, admission.enter(retries=True) as other:
        one.hold(500)
        other.hold(500)
