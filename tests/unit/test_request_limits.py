"""How much is taken: of a route's events, and of what one address gets refused."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.base.errors import NotFromHere, TooMany
from gateway.base.model import Rate
from gateway.base.networks import make_networks
from gateway.http.client_address import Addresses
from gateway.http.limits import (
    BURST_PERIODS,
    COST_BYTES,
    KNOWN_S,
    LONGEST_S,
    MOST_ADDRESSES,
    RENEW_S,
    Limiters,
    RejectionLimiter,
    TokenBucket,
)
from gateway.providers import PROVIDERS
from gateway.providers.provider import Integrity
from gateway.receive.access import SMALL_BYTES, AccessPolicy
from tests.unit.test_client_address import scope
from tests.unit.test_routes import a_route

SECOND = timedelta(seconds=1)
RATE = Rate(count=20, period=SECOND)
BURST = BURST_PERIODS * RATE.count
BAD = "198.51.100.7"
GOOD = "198.51.100.8"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def strangers(clock: Clock, addresses: Addresses | None = None) -> RejectionLimiter:
    return RejectionLimiter(addresses or Addresses(None), RATE, clock)


def refuse(table: RejectionLimiter, count: int, address: str = BAD) -> None:
    for _ in range(count):
        table.refused(scope(address))


def test_a_burst_of_a_period_is_taken_and_then_as_many_as_come_back() -> None:
    clock = Clock()
    allowance = TokenBucket(Rate(count=5, period=SECOND), clock)
    assert [allowance.take() for _ in range(5)] == [0.0] * 5
    assert allowance.take() == pytest.approx(0.2, abs=1e-3)
    clock.now += 0.2
    assert allowance.take() == 0.0
    assert allowance.take() > 0
    clock.now += 3600
    assert [allowance.take() > 0 for _ in range(7)] == [False] * 5 + [True] * 2


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 3)), max_size=200))
def test_never_more_than_a_burst_and_what_the_time_gives(
    moves: Iterable[tuple[float, int]],
) -> None:
    clock, rate = Clock(), Rate(count=7, period=SECOND)
    allowance, taken, began = TokenBucket(rate, clock), 0, clock.now
    for pause_s, events in moves:
        clock.now += pause_s
        taken += 0 if allowance.take(events) else events
        assert taken <= rate.count * (1 + clock.now - began) + 3


def test_whoever_waits_as_told_is_taken() -> None:
    clock = Clock()
    allowance = TokenBucket(Rate(count=3, period=timedelta(minutes=1)), clock)
    for _ in range(20):
        wait_s = allowance.take()
        if wait_s:
            clock.now += wait_s
            assert allowance.take() == 0.0


def test_a_batch_is_taken_whole_and_paid_for_after() -> None:
    clock = Clock()
    allowance = TokenBucket(Rate(count=10, period=SECOND), clock)
    assert allowance.take(50) == 0.0
    assert allowance.take() == pytest.approx(4.1, abs=1e-3)


def test_after_too_many_an_address_is_not_looked_at() -> None:
    clock = Clock()
    table = strangers(clock)
    refuse(table, BURST)
    assert not table.are_over(scope(BAD))
    refuse(table, 1)
    assert table.are_over(scope(BAD))
    assert not table.are_over(scope(GOOD))


def test_a_few_are_looked_at_all_the_same_so_that_it_finds_back() -> None:
    clock = Clock()
    table = strangers(clock)
    looked_at = 0
    for _ in range(10_000):
        clock.now += 0.001
        if not table.are_over(scope(BAD)):
            looked_at += 1
            table.refused(scope(BAD))
    assert looked_at == pytest.approx(BURST + 10 * RATE.count, abs=2)


def test_a_verified_sender_is_always_looked_at_whatever_else_comes_from_its_address() -> None:
    clock = Clock()
    table = strangers(clock)
    table.verified(scope(GOOD))
    refuse(table, 10 * BURST, GOOD)
    assert not table.are_over(scope(GOOD))
    clock.now += KNOWN_S
    refuse(table, BURST + 1, GOOD)
    assert table.are_over(scope(GOOD))
    table.verified(scope(GOOD))
    assert not table.are_over(scope(GOOD))


def test_a_sender_that_keeps_coming_stays_known() -> None:
    clock = Clock()
    table = strangers(clock)
    for _ in range(100):
        table.verified(scope(GOOD))
        clock.now += KNOWN_S / 3
        refuse(table, BURST + 1, GOOD)
        assert not table.are_over(scope(GOOD))


def test_large_bodies_count_for_what_they_cost_and_no_debt_is_for_long() -> None:
    clock = Clock()
    table = strangers(clock)
    table.refused(scope(BAD), COST_BYTES * BURST)
    assert table.are_over(scope(BAD))
    table.refused(scope(BAD), 1024 * COST_BYTES * BURST)
    clock.now += LONGEST_S
    assert not table.are_over(scope(BAD))


def test_the_addresses_of_a_64_count_as_one() -> None:
    table = strangers(Clock())
    for number in range(BURST + 1):
        table.refused(scope(f"2001:db9::{number:x}"))
    assert table.are_over(scope("2001:db9::ffff"))
    assert not table.are_over(scope("2001:db9:0:1::1"))


def test_memory_is_bounded_and_what_is_forgotten_is_looked_at() -> None:
    table = strangers(Clock())
    refuse(table, BURST + 1)
    assert table.are_over(scope(BAD))
    for number in range(MOST_ADDRESSES):
        table.refused(scope(f"2001:db9:{number >> 8:x}:{number & 255:x}::1"))
        table.verified(scope(f"2001:dba:{number >> 8:x}:{number & 255:x}::1"))
    assert len(table) == MOST_ADDRESSES
    assert not table.are_over(scope(BAD))
    table.verified(scope(GOOD))
    assert len(table._known) == MOST_ADDRESSES


@example([("verified", 0, KNOWN_S, 1), ("refused", 0, KNOWN_S, BURST)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["refused", "verified", "asked"]),
            st.integers(0, 3),
            st.sampled_from([0.0, 0.01, 1.0, 100.0, KNOWN_S]),
            st.integers(1, 2 * BURST),
        ),
        max_size=60,
    )
)
def test_whatever_happens_only_those_who_were_refused_often_are_not_looked_at(
    steps: list[tuple[str, int, float, int]],
) -> None:
    clock = Clock()
    table = strangers(clock)
    refusals, verified_at = [0] * 4, [-1e9] * 4
    for what, who, pause_s, times in steps:
        clock.now += pause_s
        asking = scope(f"198.51.100.{who}")
        if what == "verified":
            table.verified(asking)
            refusals[who], verified_at[who] = 0, clock.now
        for _ in range(times if what == "refused" else 0):
            table.refused(asking)
            refusals[who] += 1
        for address in range(4):
            if table.are_over(scope(f"198.51.100.{address}")):
                assert refusals[address] > BURST
                assert clock.now - verified_at[address] >= KNOWN_S - RENEW_S


def test_a_proxy_that_nobody_named_shuts_nobody_out() -> None:
    """Also right after a start, when no sender is known yet."""
    table = strangers(Clock())
    for _ in range(10 * BURST):
        table.refused(scope("10.0.0.5", ("x-forwarded-for", BAD)))
    assert not table.are_over(scope("10.0.0.5", ("x-forwarded-for", GOOD)))


def test_whoever_writes_the_header_itself_counts_as_itself() -> None:
    table = strangers(Clock())
    for number in range(BURST + 1):
        table.refused(scope(BAD, ("x-forwarded-for", f"1.2.3.{number}")))
    assert table.are_over(scope(BAD, ("x-forwarded-for", "8.8.8.8")))


def test_behind_a_trusted_proxy_each_counts_for_itself() -> None:
    table = strangers(Clock(), Addresses(make_networks(["10.0.0.5"])))
    for _ in range(BURST + 1):
        table.refused(scope("10.0.0.5", ("x-forwarded-for", BAD)))
    assert table.are_over(scope("10.0.0.5", ("x-forwarded-for", f"{GOOD}, {BAD}")))
    assert not table.are_over(scope("10.0.0.5", ("x-forwarded-for", GOOD)))


def test_without_an_address_nobody_is_counted() -> None:
    table = strangers(Clock())
    for _ in range(2 * BURST):
        table.refused(scope(None))
        table.verified(scope(None))
    assert not table.are_over(scope(None))
    assert len(table) == 0


def a_gate(limiters: Limiters | None = None, **route: object) -> AccessPolicy:
    addresses = Addresses(None)
    limiters = Limiters(addresses, RATE) if limiters is None else limiters
    return AccessPolicy(a_route(**route), addresses, limiters)


def test_a_route_without_a_list_takes_from_anywhere() -> None:
    a_gate().check_address(scope(None))


def test_a_list_lets_in_whom_it_names() -> None:
    gate = a_gate(allow=make_networks(["198.51.100.0/29"]))
    gate.check_address(scope(BAD))
    gate.check_address(scope(f"::ffff:{BAD}"))
    for other in (GOOD, "::1", None):
        with pytest.raises(NotFromHere):
            gate.check_address(scope(other))
    with pytest.raises(NotFromHere):
        gate.check_address(scope(GOOD, ("x-forwarded-for", BAD)))


def test_a_limit_says_when_to_come_again() -> None:
    gate = a_gate(limit=Rate(count=2, period=timedelta(minutes=1)))
    gate.take(2)
    gate.take(0)
    with pytest.raises(TooMany) as refused:
        gate.take()
    assert 0 < refused.value.wait_s <= 30
    gate.take(0)


def test_a_sender_that_does_not_come_again_is_looked_at_while_that_costs_little() -> None:
    limiters = Limiters(Addresses(None), RATE)
    stripe, github = a_gate(limiters), a_gate(limiters, provider=PROVIDERS["github"])
    assert github.limiter is stripe.limiter
    refuse(stripe.limiter, 2 * BURST)
    small, large = (
        scope(BAD, ("content-length", str(size))) for size in (SMALL_BYTES, SMALL_BYTES + 1)
    )
    assert [gate.is_closed_to(small) for gate in (stripe, github)] == [True, False]
    assert [gate.is_closed_to(large) for gate in (stripe, github)] == [True, True]
    for unsaid in ("", "-1", "\xb2", "9" * 5000):
        assert github.is_closed_to(scope(BAD, ("content-length", unsaid)))
    assert github.is_closed_to(scope(BAD, ("transfer-encoding", "chunked")))


def test_a_token_is_not_compared_without_limit_because_its_sender_never_retries() -> None:
    never_retries = replace(PROVIDERS["github"], integrity=Integrity.NONE)
    gate = a_gate(provider=never_retries)
    refuse(gate.limiter, 2 * BURST)
    assert gate.is_closed_to(scope(BAD, ("content-length", "0")))


def test_each_credential_has_its_own_limiter() -> None:
    limiters = Limiters(Addresses(None), RATE)
    admin, read = limiters.of("admin"), limiters.of("read")
    read.verified(scope(BAD))
    refuse(admin, 2 * BURST)
    refuse(read, 2 * BURST)
    assert (admin.are_over(scope(BAD)), read.are_over(scope(BAD))) == (True, False)
    assert (admin.knows(scope(BAD)), read.knows(scope(BAD))) == (False, True)
    assert limiters.of("admin") is admin


def test_an_address_that_is_counted_for_two_credentials_is_one_address() -> None:
    limiters = Limiters(Addresses(None), RATE)
    for credential in ("admin", "read"):
        refuse(limiters.of(credential), 1)
        refuse(limiters.of(credential), 1, GOOD)
    assert len(limiters) == 2
