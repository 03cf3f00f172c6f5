"""Rate limits: verified events per route, and rejected requests per address."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from starlette.types import Scope

from gateway.base.model import Rate
from gateway.http.client_address import Addresses


class Throttle:
    """Allow at most `per_second` calls per second, and count the rest."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = 0
        self._used = 0
        self._left_out = 0

    def allow(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        if self._used > self._per_second:
            self._left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out


MOST_ADDRESSES: Final = 8192
"""Past this number, the least recently rejected address is forgotten, and checked again."""

BURST_PERIODS: Final = 5
"""Large enough that a sender whose secret was changed too early is not taken for an attack."""

COST_BYTES: Final = 64 * 1024
"""A rejected body counts as one more request per 64 KiB: hashing is the expensive part."""

LONGEST_S: Final = 60.0
KNOWN_S: Final = 600.0
RENEW_S: Final = 60.0
EPSILON_S: Final = 1e-6

Clock = Callable[[], float]


class TokenBucket:
    """A token bucket in one number: the time until which all capacity is used up (GCRA)."""

    __slots__ = ("_clock", "_each_s", "_slack_s", "_until")

    def __init__(self, rate: Rate, clock: Clock = time.monotonic) -> None:
        period_s = rate.period.total_seconds()
        self._clock = clock
        self._each_s = period_s / rate.count
        self._slack_s = period_s - self._each_s + EPSILON_S
        self._until = clock()

    def take(self, events: int = 1) -> float:
        """Take capacity for events. Return 0 on success, or else the seconds to wait.

        The events of one request are always taken together: partly, the request could never
        succeed.
        """
        now = self._clock()
        wait_s = self._until - now - self._slack_s
        if wait_s > 0:
            return wait_s
        self._until = max(self._until, now) + events * self._each_s
        return 0.0


class RejectionLimiter:
    """Limiter of the rejected requests of each address.

    Requests of an address with too many rejections are answered without being checked, so they cost
    no more than the response. But an address from which a verified request came is always checked:
    a sender must not be locked out because of requests that others send from the same address,
    which may be a shared egress, an attacker's own account at the same provider, or a proxy that is
    not configured as trusted. Forgotten addresses are checked again: a flood from very many
    addresses costs the checks, but never locks out a sender.
    """

    def __init__(self, addresses: Addresses, rate: Rate, clock: Clock = time.monotonic) -> None:
        period_s = rate.period.total_seconds()
        self._addresses = addresses
        self._clock = clock
        self._each_s = period_s / rate.count
        self._slack_s = BURST_PERIODS * period_s + EPSILON_S
        self._until: OrderedDict[int, float] = OrderedDict()
        """By group, with times as in `TokenBucket`.

        The most recently rejected group is at the end.
        """
        self._known: OrderedDict[int, float] = OrderedDict()
        """When the last verified request of each group arrived."""

    def __len__(self) -> int:
        return len(self._until)

    def are_over(self, scope: Scope) -> bool:
        """Return whether the address has had too many rejections.

        Costs nothing if there are none at all.
        """
        if not self._until:
            return False
        client = self._addresses.of(scope)
        until = None if client is None else self._until.get(client.group)
        return until is not None and until - self._clock() > self._slack_s

    def knows(self, scope: Scope) -> bool:
        """Return whether a verified request came from this address recently."""
        client = self._addresses.of(scope)
        return client is not None and self._is_known(client.group)

    def refused(self, scope: Scope, body_bytes: int = 0) -> None:
        """Count a request that was checked and rejected."""
        client = self._addresses.of(scope)
        if client is None or self._is_known(client.group) or self._addresses.is_masked(scope):
            return
        now = self._clock()
        cost_s = self._each_s * (1 + body_bytes // COST_BYTES)
        until = max(self._until.get(client.group, now), now) + cost_s
        self._until[client.group] = min(until, now + self._slack_s + LONGEST_S)
        self._until.move_to_end(client.group)
        if len(self._until) > MOST_ADDRESSES:
            self._until.popitem(last=False)

    def verified(self, scope: Scope) -> None:
        """Record the address of a verified request. On the hot path: usually just one look-up."""
        client = self._addresses.of(scope)
        if client is None:
            return
        now = self._clock()
        seen = self._known.get(client.group)
        if seen is not None and now - seen < RENEW_S:
            return
        if seen is None:
            self._addresses.tell_of_proxy(scope)
        self._known[client.group] = now
        self._known.move_to_end(client.group)
        self._until.pop(client.group, None)
        if len(self._known) > MOST_ADDRESSES:
            self._known.popitem(last=False)

    def counted(self) -> Iterable[int]:
        """Return the groups of addresses whose rejected requests are counted."""
        return self._until.keys()

    def _is_known(self, group: int) -> bool:
        seen = self._known.get(group)
        return seen is not None and self._clock() - seen < KNOWN_S


class Limiters:
    """One limiter for each credential that can be guessed, and one for all signatures.

    A verified request excuses its address from the limit of that credential only: otherwise the
    holder of a lesser token could guess a better one without limit.
    """

    def __init__(self, addresses: Addresses, rate: Rate) -> None:
        self._addresses = addresses
        self._rate = rate
        self._by_credential: dict[Hashable, RejectionLimiter] = {}

    def of(self, credential: Hashable) -> RejectionLimiter:
        """Return the limiter of a credential: the same one for each endpoint that accepts it."""
        if credential not in self._by_credential:
            self._by_credential[credential] = RejectionLimiter(self._addresses, self._rate)
        return self._by_credential[credential]

    def __len__(self) -> int:
        """Return the number of addresses whose rejected requests are counted."""
        return len({group for one in self._by_credential.values() for group in one.counted()})
