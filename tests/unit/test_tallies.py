"""Counting in memory: nothing is lost on the way, and percentiles come out within their error."""

import math
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.statistics import ERROR, LAST, StatsEntry, bucket_of, percentile, seconds_of

seconds = st.floats(min_value=0.0001, max_value=86_400)
buckets = st.dictionaries(st.integers(0, LAST), st.integers(1, 10**6), max_size=8)


@given(seconds)
def test_a_time_is_near_the_one_that_stands_for_its_bucket(took: float) -> None:
    assert abs(seconds_of(bucket_of(took)) - took) <= took * (ERROR + 1e-9)


@given(seconds, seconds)
def test_longer_times_are_in_no_lower_bucket(one: float, other: float) -> None:
    assert bucket_of(min(one, other)) <= bucket_of(max(one, other))


@pytest.mark.parametrize("took", [0.0, -1.0, 1e-9, 0.0001])
def test_what_is_shorter_than_the_shortest_is_in_the_first(took: float) -> None:
    assert bucket_of(took) == 0


@pytest.mark.parametrize("took", [1e9, math.inf])
def test_what_is_longer_than_the_longest_is_in_the_last(took: float) -> None:
    assert bucket_of(took) == LAST


@given(st.lists(seconds, min_size=2, max_size=300), st.sampled_from([50, 99]))
def test_percentiles_are_within_the_error_of_the_buckets(took: list[float], share: int) -> None:
    tally = StatsEntry()
    for one in took:
        tally.add(StatsEntry(n=1, times={bucket_of(one): 1}))
    found = percentile(tally.times, share / 100)
    assert found is not None
    rank = share / 100 * (len(took) - 1)
    low, high = sorted(took)[math.floor(rank)], sorted(took)[math.ceil(rank)]
    assert low * (1 - ERROR - 1e-9) <= found <= high * (1 + ERROR + 1e-9)
    exact = quantiles(took, n=100, method="inclusive")[share - 1]
    assert low <= exact * (1 + 1e-9)
    assert exact <= high * (1 + 1e-9)


@given(st.lists(buckets, min_size=1, max_size=6), st.randoms())
def test_merged_in_any_order_they_are_as_if_counted_together(
    parts: list[dict[int, int]], random: object
) -> None:
    def merged(order: list[dict[int, int]]) -> StatsEntry:
        total = StatsEntry()
        for part in order:
            total.add(StatsEntry(n=sum(part.values()), times=part))
        return total

    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    one, other = merged(parts), merged(shuffled)
    assert (one.n, one.times) == (other.n, other.times)
    assert one.n == sum(one.times.values())
    assert percentile(one.times, 0.99) == percentile(other.times, 0.99)


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) is None


def test_an_array_ends_with_the_last_bucket_that_has_any() -> None:
    assert StatsEntry().as_array == "{}"
    assert StatsEntry(n=3, times={2: 3, 0: 1}).as_array == "{1,0,3}"
