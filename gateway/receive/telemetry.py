"""Hooks around `receive`: counters, statistics, log lines and traces."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from gateway.base.errors import Overloaded, RequestRejected, StorageUnavailable
from gateway.config.routes import Route
from gateway.http.limits import Throttle
from gateway.ledger.claims import Claim
from gateway.ledger.statistics import ACKNOWLEDGED, REQUESTS, MinuteStats
from gateway.receive.answers import Taken
from gateway.receive.metrics import EXPECTED, Metrics
from gateway.receive.reading import Items, ReceivedRequest

if TYPE_CHECKING:  # opentelemetry, which is an extra
    from gateway.telemetry.spans import Traces

COMPLAINTS_PER_SECOND: Final = 20
FLOODS_PER_SECOND: Final = 1

MakeDurable = Callable[[ReceivedRequest, Items], Awaitable[list[Taken]]]

log = structlog.get_logger("gateway.receive")


class RouteTelemetry:
    """The counters, statistics and log lines of one route."""

    def __init__(self, route: Route, metrics: Metrics, stats: MinuteStats) -> None:
        name = self._name = route.name
        self._retries = route.provider.retries
        self._stats = stats
        self._requests = metrics.requests
        self._outcomes = {one: metrics.requests.labels(name, one) for one in EXPECTED}
        self.conflicts, self.flagged, self.spooled, self.unverified = (
            counter.labels(name)
            for counter in (metrics.conflicts, metrics.flagged, metrics.spooled, metrics.unverified)
        )
        self._shed = metrics.shed.labels(name, str(self._retries).lower())
        self._acknowledge = metrics.acknowledge.labels(name)
        self.log: Final = log.bind(route=name)
        self.complaints: Final = Throttle(COMPLAINTS_PER_SECOND)
        self._floods = Throttle(FLOODS_PER_SECOND)

    def count(self, outcome: str) -> None:
        """Count a request. The counter of each outcome is looked up only once."""
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._requests.labels(self._name, outcome)
        counter.inc()
        self._stats.add(self._name, REQUESTS, outcome)

    def complain(self, event: str, **fields: str | bool) -> None:
        """Log a warning, but only a few per second: senders can cause any number of them."""
        if self.complaints.allow():
            self.log.warning(event, left_out_before=self.complaints.take_left_out(), **fields)

    def acknowledged(self, seconds: float) -> None:
        self._acknowledge.observe(seconds)
        self._stats.add(self._name, REQUESTS, ACKNOWLEDGED, seconds)

    def rejected_unexamined(self, address: str) -> None:
        """Report a request of an address from which too many requests were rejected."""
        self.count("TOO_MANY_REFUSED")
        if self._floods.allow():
            left_out = self._floods.take_left_out()
            self.log.warning("not_looked_at", left_out_before=left_out, address=address)

    def shed(self, overloaded: Overloaded) -> None:
        self.count(overloaded.code)
        self._shed.inc()
        self.complain("request_shed", reason=overloaded.reason, sender_retries=self._retries)

    def rejected(self, rejection: RequestRejected) -> None:
        self.count(rejection.code)
        self.complain("request_refused", code=rejection.code, reason=rejection.reason)

    def unavailable(self, error: StorageUnavailable) -> None:
        self.count("UNAVAILABLE")
        self.complain("not_durable", reason=str(error))


def traced(make_durable: MakeDurable, traces: "Traces", route: str) -> MakeDurable:
    """Return `make_durable` inside a span, in whose trace the deliveries of the events run."""

    async def make_durable_traced(request: ReceivedRequest, items: Items) -> list[Taken]:
        with traces.receiving(route, request.headers, request.received_at) as span:
            here = traces.here()
            items = [one._replace(trace=here) if isinstance(one, Claim) else one for one in items]
            taken = await make_durable(request, items)
            traces.tell(span, [(one.event_id or "-", one.status) for one in taken])
            return taken

    return make_durable_traced
