"""What the figures are meant to be, and whether they are."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench import flood, pipelining
from bench.contest import AGAIN, GATEWAY, PAIR, STARLETTE, TEXTBOOK
from bench.figures import Results, round_ratios
from bench.processing import WORKER
from bench.workers import BARE, DEFAULT, TUNED

Stages = Mapping[str, Results]
MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One promise about a figure."""

    name: str
    at_least: bool
    bound: float | None
    """None where it depends on a stage that was not run."""
    value: float | None
    """None where its stage was not run."""
    slack: float = 0.0
    """How much of a miss is within this run's own noise."""
    unit: str = ""

    @property
    def met(self) -> bool | None:
        if self.value is None or self.bound is None:
            return None
        if self.at_least:
            return self.value >= self.bound - self.slack
        return self.value <= self.bound + self.slack

    @property
    def verdict(self) -> str:
        return {None: "not measured", True: "met", False: "MISSED"}[self.met]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How a target is read from the results of its stages."""

    name: str
    stages: tuple[str, ...]
    value: Callable[[Stages], float]
    at_least: float | None = None
    at_most: float | Callable[[Stages], float] | None = None
    slack: Callable[[Stages], float] = lambda _: 0.0
    unit: str = ""

    def check(self, stages: Stages) -> Target:
        measured = all(stage in stages for stage in self.stages)
        bound = self.at_most if self.at_least is None else self.at_least
        if callable(bound):
            bound = bound(stages) if measured else None
        return Target(
            name=self.name,
            at_least=self.at_least is not None,
            bound=bound,
            value=self.value(stages) if measured else None,
            slack=self.slack(stages) if measured else 0.0,
            unit=self.unit,
        )


def check_targets(stages: Stages) -> list[Target]:
    return [definition.check(stages) for definition in DEFINITIONS]


def null_noise(stages: Stages) -> float:
    """How far identical contestants were apart, in the middle of the rounds."""
    ratios = round_ratios(stages["ingest"]["samples"], AGAIN, STARLETTE)
    return median(abs(ratio - 1) for ratio in ratios)


def _ingest(one: str, other: str, figure: str = "per_second") -> Callable[[Stages], float]:
    return lambda stages: median(round_ratios(stages["ingest"]["samples"], one, other, figure))


def _processing(other: str) -> Callable[[Stages], float]:
    return lambda stages: median(round_ratios(stages["processing"]["samples"], WORKER, other))


def _unanswered(stages: Stages) -> float:
    runs = [*stages["ingest"]["samples"].values()]
    runs += [found for mix in stages["ingest"]["mixes"].values() for found in mix.values()]
    return float(sum(s["not_2xx"] + s["failed"] for found in runs for s in found))


def _lone_budget_ms(stages: Stages) -> float:
    latency = stages["latency"]
    commit: float = latency["commit_summary"]["p50_ms"]
    route: float = latency["alone_summary"][STARLETTE]["p50_ms"]
    return commit + 1.5 * route


def _flooded(name: str) -> Callable[[Stages], float]:
    return lambda stages: median(
        round_ratios(stages["flood"]["samples"], name, flood.ALONE, "p99_ms")
    )


def _flood_noise(stages: Stages) -> float:
    samples = stages["flood"]["samples"]
    return median(abs(r - 1) for r in round_ratios(samples, flood.AGAIN, flood.ALONE, "p99_ms"))


def _in_floods(*figures: str) -> Callable[[Stages], float]:
    """The most of any run beside a flood."""

    def value(stages: Stages) -> float:
        samples = stages["flood"]["samples"]
        found = [*samples[flood.ONE], *samples[flood.MANY]]
        return float(max(sum(sample[figure] for figure in figures) for sample in found))

    return value


def _pipelined(*figures: str) -> Callable[[Stages], float]:
    """The most of any run beside clients that pipeline."""

    def value(stages: Stages) -> float:
        found = stages["pipelining"]["samples"][pipelining.PIPELINING]
        return float(max(sum(sample[figure] for figure in figures) for sample in found))

    return value


def _pipelined_p99(stages: Stages) -> float:
    samples = stages["pipelining"]["samples"]
    return median(round_ratios(samples, pipelining.PIPELINING, pipelining.WELL_BEHAVED, "p99_ms"))


def _grown(which: str) -> Callable[[Stages], float]:
    def value(stages: Stages) -> float:
        first, last = stages["growth"]["waiting"][which]
        return float(last / first)

    return value


def _slowest(figure: str) -> Callable[[Stages], float]:
    return lambda stages: max(page[figure] for page in stages["console"]["pages"].values())


def _drain(stages: Stages) -> float:
    drained: float = stages["growth"]["waiting"]["drained_per_second"]
    usual: float = stages["processing"]["summary"][WORKER]["per_second"]
    return drained / usual


DEFINITIONS = (
    Definition(
        name="ingest: gateway (d) over Starlette (b)",
        stages=("ingest",),
        value=_ingest(GATEWAY, STARLETTE),
        at_least=0.80,
    ),
    Definition(
        name="ingest: gateway (d) over textbook (c)",
        stages=("ingest",),
        value=_ingest(GATEWAY, TEXTBOOK),
        at_least=4.5,
    ),
    Definition(
        name="ingest: p99 of (d) over p99 of (b)",
        stages=("ingest",),
        value=_ingest(GATEWAY, STARLETTE, "p99_ms"),
        at_most=1.5,
    ),
    Definition(
        name="ingest: two processes over one",
        stages=("ingest",),
        value=_ingest(PAIR, GATEWAY),
        at_least=1.0,
        slack=null_noise,
    ),
    Definition(
        name="ingest: answers that are no 2xx",
        stages=("ingest",),
        value=_unanswered,
        at_most=0,
        unit="count",
    ),
    Definition(
        name="one connection: p50, against a commit + 1.5 x (b)",
        stages=("latency",),
        value=lambda stages: stages["latency"]["alone_summary"][GATEWAY]["p50_ms"],
        at_most=_lone_budget_ms,
        unit="ms",
    ),
    Definition(
        name="processing: gateway over a bare loop",
        stages=("processing",),
        value=_processing(BARE),
        at_least=0.6,
    ),
    Definition(
        name="processing: gateway over arq with defaults",
        stages=("processing",),
        value=_processing(DEFAULT),
        at_least=5,
    ),
    Definition(
        name="processing: gateway over arq tuned",
        stages=("processing",),
        value=_processing(TUNED),
        at_least=2,
    ),
    Definition(
        name="acknowledgement to effect: p50",
        stages=("effect",),
        value=lambda stages: stages["effect"]["summary"]["gateway"]["p50_ms"],
        at_most=15,
        unit="ms",
    ),
    Definition(
        name="acknowledgement to effect: p99",
        stages=("effect",),
        value=lambda stages: stages["effect"]["summary"]["gateway"]["p99_ms"],
        at_most=60,
        unit="ms",
    ),
    Definition(
        name="burst: clean, every effect once",
        stages=("burst",),
        value=lambda stages: float(stages["burst"]["clean"]),
        at_least=1,
        unit="yes",
    ),
    *(
        Definition(
            name=f"flood from {name}: p99 of good requests over alone",
            stages=("flood",),
            value=_flooded(name),
            at_most=1.5,
            slack=_flood_noise,
        )
        for name in (flood.ONE, flood.MANY)
    ),
    Definition(
        name="flood: good requests that were not taken",
        stages=("flood",),
        value=_in_floods("not_2xx", "failed"),
        at_most=0,
        unit="count",
    ),
    Definition(
        name="flood: rows that it leaves",
        stages=("flood",),
        value=_in_floods("rows"),
        at_most=1_000,
        unit="count",
    ),
    Definition(
        name="pipelining: p99 of good requests over well-behaved clients",
        stages=("pipelining",),
        value=_pipelined_p99,
        at_most=1.5,
    ),
    Definition(
        name="pipelining: memory of serve",
        stages=("pipelining",),
        value=lambda stages: _pipelined("growth_bytes")(stages) / MIB,
        at_most=50,
        unit="MiB",
    ),
    Definition(
        name="pipelining: good requests that were not taken",
        stages=("pipelining",),
        value=_pipelined("not_2xx", "failed"),
        at_most=0,
        unit="count",
    ),
    Definition(
        name="growth: ingest on a full ledger over an empty one",
        stages=("growth",),
        value=lambda stages: median(stages["growth"]["ledger"]["ratios"]),
        at_least=0.75,
    ),
    Definition(
        name="growth: memory of serve, last over first",
        stages=("growth",),
        value=_grown("serve_rss"),
        at_most=1.2,
    ),
    Definition(
        name="growth: memory of the worker, last over first",
        stages=("growth",),
        value=_grown("worker_rss"),
        at_most=1.2,
    ),
    Definition(
        name="growth: Redis with all of it waiting",
        stages=("growth",),
        value=lambda stages: stages["growth"]["waiting"]["redis_bytes"][1] / MIB,
        at_most=64,
        unit="MiB",
    ),
    Definition(
        name="growth: draining it over the usual rate",
        stages=("growth", "processing"),
        value=_drain,
        at_least=0.8,
    ),
    Definition(
        name="growth: finished 1,000 places out of order",
        stages=("growth",),
        value=lambda stages: stages["growth"]["waiting"]["far_out_of_place_share"],
        at_most=0,
        unit="share",
    ),
    Definition(
        name="growth: pruned over received",
        stages=("growth",),
        value=lambda stages: median(stages["growth"]["pruning"]["prune_ratios"]),
        at_least=1.2,
    ),
    Definition(
        name="growth: ingest slowed by pruning",
        stages=("growth",),
        value=lambda stages: 1 - median(stages["growth"]["pruning"]["ratios"]),
        at_most=0.15,
        unit="share",
    ),
    Definition(
        name="retention: a month dropped, in all",
        stages=("retention",),
        value=lambda stages: float(stages["retention"]["drop"]["seconds"]),
        at_most=10,
        unit="s",
    ),
    Definition(
        name="retention: ack p99 while it is dropped",
        stages=("retention",),
        value=lambda stages: median(stages["retention"]["drop"]["p99_ratios"]),
        at_most=1.25,
    ),
    Definition(
        name="retention: claims with 50 days of tables",
        stages=("retention",),
        value=lambda stages: median(stages["retention"]["tables"]["ratios"]["claims"]),
        at_least=0.9,
    ),
    Definition(
        name="console: the slowest page, p50",
        stages=("console",),
        value=_slowest("p50_ms"),
        at_most=100,
        unit="ms",
    ),
    Definition(
        name="console: the slowest page, p99",
        stages=("console",),
        value=_slowest("p99_ms"),
        at_most=100,
        unit="ms",
    ),
)
