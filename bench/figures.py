"""The arithmetic on samples: percentiles, medians with their spread, ratios round by round."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Sample = dict[str, float]
Results = dict[str, Any]
"""A JSON document: what a stage measured."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order; the nearest one, so that it is a value that occurred."""
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def summarize(samples: Sequence[Sample]) -> Sample:
    """The median of every figure, and how far apart the rates were."""
    names = [name for name in samples[0] if all(name in sample for sample in samples)]
    summary = {name: statistics.median(sample[name] for sample in samples) for name in names}
    rates = [sample["per_second"] for sample in samples if "per_second" in sample]
    if rates:
        summary |= {"lowest": min(rates), "highest": max(rates)}
    return summary


def summarize_all(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Sample]:
    """The same for each contestant that has samples."""
    return {name: summarize(found) for name, found in samples.items() if found}


def round_ratios(
    samples: Mapping[str, Sequence[Sample]], one: str, other: str, figure: str = "per_second"
) -> list[float]:
    """`one` over `other` in each round: what slowed the machine then slowed both."""
    pairs = zip(samples.get(one, ()), samples.get(other, ()), strict=True)
    return [mine[figure] / theirs[figure] for mine, theirs in pairs]


def latency_figures(latencies_ms: Sequence[float]) -> Sample:
    ordered = sorted(latencies_ms)
    return {
        "p50_ms": percentile(ordered, 50),
        "p99_ms": percentile(ordered, 99),
        "p999_ms": percentile(ordered, 99.9),
        "max_ms": ordered[-1],
    }


def steady_rate(moments: Sequence[float]) -> float:
    """Events per second between the 5th and the 95th of a hundred, without the edges."""
    ordered = sorted(moments)
    low, high = int(len(ordered) * 0.05), int(len(ordered) * 0.95)
    return (high - low) / max(ordered[high] - ordered[low], 1e-6)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """Another order each round, so that nobody always follows the same neighbour's noise."""
    start = by % len(names)
    return [*names[start:], *names[:start]]
