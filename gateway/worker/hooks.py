"""The seam for features around runs, such as statistics and traces: no run knows them by name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from gateway.base.model import Lease, Status
from gateway.config.registry import Subscription
from gateway.ledger.claims import ClaimVerdict
from gateway.ledger.deliveries import Settlement
from gateway.ledger.statistics import REQUESTS, MinuteStats
from gateway.worker.metrics import WorkerMetrics


@dataclass(slots=True, kw_only=True)
class RunReport:
    """A run, as hooks see it: first its lease, and when it has ended, how."""

    lease: Lease
    subscription: Subscription
    settlement: Settlement | None = None
    """None if another worker owns the delivery."""
    seconds: float = 0.0
    """The time of the whole run."""
    handler_s: float | None = None
    """The time of the handler; None if it was not called."""
    settle_s: float = 0.0
    """The time from the end of the handler to the commit."""
    queues: Sequence[str] = ()
    """The queue of each job that was committed with the run."""


RunHook = Callable[[RunReport], AbstractContextManager[object]]
"""Makes a context around a run. When it ends, the report is complete."""
StatementHook = Callable[[Lease, str], AbstractContextManager[object]]
"""Makes a context around a statement of a handler, or the commit of its run."""

NOTHING = nullcontext()


def around_nothing(*_: object) -> AbstractContextManager[object]:
    """Return a context that does nothing."""
    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of a worker."""

    around_run: RunHook = around_nothing
    around_statement: StatementHook = around_nothing
    current_trace: Callable[[], str | None] = lambda: None
    """Returns the `traceparent` of the running code, for jobs and forwards."""


def nested(outer: RunHook, inner: RunHook) -> RunHook:
    """Return one hook for two."""

    @contextmanager
    def around(run: RunReport) -> Iterator[None]:
        with outer(run), inner(run):
            yield

    return around


def counting_runs(stats: MinuteStats, metrics: WorkerMetrics) -> RunHook:
    """Return the hook that counts runs, for the console and for Prometheus."""

    @contextmanager
    def count(run: RunReport) -> Iterator[None]:
        yield
        settlement, key = run.settlement, run.subscription.key
        if settlement is None:
            return
        stats.add(*key, settlement.outcome, run.seconds)
        metrics.ended(*key, settlement.outcome, is_dead=settlement.status is Status.DEAD)
        metrics.took(*key, run.handler_s, run.settle_s)
        for queue in run.queues:
            stats.add(queue, REQUESTS, ClaimVerdict.ACCEPTED)
            metrics.published.labels(queue).inc()

    return count
