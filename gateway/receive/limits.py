"""How many events a route takes, and how many refused requests of one address are looked at."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from starlette.types import Scope

from gateway.model import Rate
from gateway.receive.address import Addresses

MOST_ADDRESSES: Final = 8192
"""Past it the one that was refused longest ago is forgotten, and looked at again like anybody."""

BURST_PERIODS: Final = 5
"""A sender whose secret was changed a moment too early is not taken for an attack."""

COST_BYTES: Final = 64 * 1024
"""A refused body costs as many requests as it has of these: to hash is what is dear."""

LONGEST_S: Final = 60.0
KNOWN_S: Final = 600.0
RENEW_S: Final = 60.0
EPSILON_S: Final = 1e-6

Clock = Callable[[], float]


class Allowance:
    """A token bucket in one number: the moment up to which everything is spoken for (GCRA)."""

    __slots__ = ("_clock", "_each_s", "_slack_s", "_until")

    def __init__(self, rate: Rate, clock: Clock = time.monotonic) -> None:
        period_s = rate.period.total_seconds()
        self._clock = clock
        self._each_s = period_s / rate.count
        self._slack_s = period_s - self._each_s + EPSILON_S
        self._until = clock()

    def take(self, events: int = 1) -> float:
        """0 where they are taken, else the seconds after which to come again. However many come
        in one request are taken whole: in parts they would never come again."""
        now = self._clock()
        wait_s = self._until - now - self._slack_s
        if wait_s > 0:
            return wait_s
        self._until = max(self._until, now) + events * self._each_s
        return 0.0


class Strangers:
    """The refused requests of each address.

    Whoever has had too many is answered without a look, at the price of the answer. But an address
    from which a verified request came is always looked at: a sender must not be shut out for what
    others send from the same address, be it a shared egress, an attacker's own account at the same
    provider, or a proxy that nobody has named as trusted. And what is forgotten is looked at again:
    a flood from very many addresses costs the look, and never locks anybody out.
    """

    def __init__(self, addresses: Addresses, rate: Rate, clock: Clock = time.monotonic) -> None:
        period_s = rate.period.total_seconds()
        self._addresses = addresses
        self._clock = clock
        self._each_s = period_s / rate.count
        self._slack_s = BURST_PERIODS * period_s + EPSILON_S
        self._until: OrderedDict[int, float] = OrderedDict()
        """By group, as in `Allowance`; whoever was refused last is at the end."""
        self._known: OrderedDict[int, float] = OrderedDict()
        """When a verified request last came from there."""

    def __len__(self) -> int:
        return len(self._until)

    def are_over(self, scope: Scope) -> bool:
        """Whether its address has had too many. Costs nothing while nobody is refused."""
        if not self._until:
            return False
        client = self._addresses.of(scope)
        until = None if client is None else self._until.get(client.group)
        return until is not None and until - self._clock() > self._slack_s

    def knows(self, scope: Scope) -> bool:
        """Return whether a verified request came from this address lately."""
        client = self._addresses.of(scope)
        return client is not None and self._is_known(client.group)

    def refused(self, scope: Scope, body_bytes: int = 0) -> None:
        """Counts one that was looked at, and was nobody's."""
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
        """Remembers from where. On the path of every request: no more than a look-up, mostly."""
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

    A verified request excuses its address from the limit of that credential and of no other:
    otherwise the holder of a lesser token could guess a better one without limit.
    """

    def __init__(self, addresses: Addresses, rate: Rate) -> None:
        self._addresses = addresses
        self._rate = rate
        self._by_credential: dict[Hashable, Strangers] = {}

    def of(self, credential: Hashable) -> Strangers:
        """Return the limiter of a credential: the same one for each endpoint that accepts it."""
        if credential not in self._by_credential:
            self._by_credential[credential] = Strangers(self._addresses, self._rate)
        return self._by_credential[credential]

    def __len__(self) -> int:
        """Return the number of addresses whose rejected requests are counted."""
        return len({group for one in self._by_credential.values() for group in one.counted()})
