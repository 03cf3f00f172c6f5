"""How long things took, in buckets that grow by a fifth: percentiles come out within 10 %."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

SHORTEST_S: Final = 0.0001
GROWTH: Final = 1.2
LAST: Final = 120
"""The bucket of everything longer: three and a half days."""

ERROR: Final = (GROWTH - 1) / (GROWTH + 1)
"""By what share a time can differ from the one that stands for its bucket."""

_LONGEST_S: Final = tuple(SHORTEST_S * GROWTH**bucket for bucket in range(LAST))
"""Of each bucket but the last. Looking a time up takes a fifth of what a logarithm does."""


def bucket_of(seconds: float) -> int:
    """The bucket of a time: 0 up to the shortest, n up to GROWTH ** n times as long."""
    return bisect_left(_LONGEST_S, seconds)


def seconds_of(bucket: int) -> float:
    """The time that stands for a bucket: as far from its ends, in proportion, as can be."""
    return SHORTEST_S * GROWTH**bucket * (1 - ERROR)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """The time in seconds under which this share of them stayed; None where there is none."""
    rank = share * (sum(buckets.values()) - 1)
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen > rank:
            return seconds_of(bucket)
    return None
