"""How much of everything: the full measurement, and one that fits into three minutes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds, seconds and counts of every stage."""

    mode: str
    connections: int = 64
    fresh_processes: bool
    """Start the contestants anew for each round: a process has its own luck with memory."""

    ingest_rounds: int
    ingest_seconds: int
    raw_seconds: int
    mix_rounds: int
    mix_seconds: int

    latency_rounds: int
    latency_seconds: int
    single_rounds: int
    single_seconds: int
    commits: int

    processing_rounds: int
    backlog: int
    arq_backlog: int
    tuned_backlog: int

    effect_seconds: int
    arq_effect_seconds: int
    burst_events: int
    combined_seconds: int
    flood_rounds: int
    flood_seconds: int
    pipelining_rounds: int
    pipelining_seconds: int

    growth_rounds: int = 3
    ledger_events: int = 5_000_000
    ledger_bodies: int = 70_000
    """The newest of them keep their body: about 200 MB."""
    ledger_seconds: int = 30
    waiting_events: int = 500_000
    waiting_first: int = 20_000
    prune_seconds: int = 10

    retention_events: int = 10_000_000
    retention_rounds: int = 4
    retention_seconds: int = 70
    retention_days: int = 4
    """Dropped while so many seconds pass: half a GB each, with rests."""
    tables_rounds: int = 5
    size_events: int = 20_000

    console_events: int = 10_000_000
    console_waiting: int = 1_000_000
    console_dead: int = 100_000
    console_bodies: int = 50_000
    console_rounds: int = 30


FULL = Plan(
    mode="full",
    fresh_processes=True,
    ingest_rounds=7,
    ingest_seconds=5,
    raw_seconds=5,
    mix_rounds=3,
    mix_seconds=4,
    latency_rounds=5,
    latency_seconds=5,
    single_rounds=5,
    single_seconds=3,
    commits=2_000,
    processing_rounds=5,
    backlog=20_000,
    arq_backlog=1_500,
    tuned_backlog=6_000,
    effect_seconds=20,
    arq_effect_seconds=10,
    burst_events=50_000,
    combined_seconds=10,
    flood_rounds=7,
    flood_seconds=10,
    pipelining_rounds=3,
    pipelining_seconds=60,
)

QUICK = Plan(
    mode="quick",
    fresh_processes=False,
    ingest_rounds=3,
    ingest_seconds=2,
    raw_seconds=1,
    mix_rounds=0,
    mix_seconds=0,
    latency_rounds=1,
    latency_seconds=1,
    single_rounds=1,
    single_seconds=1,
    commits=200,
    processing_rounds=2,
    backlog=1_500,
    arq_backlog=400,
    tuned_backlog=400,
    effect_seconds=6,
    arq_effect_seconds=1,
    burst_events=5_000,
    combined_seconds=2,
    flood_rounds=1,
    flood_seconds=2,
    pipelining_rounds=1,
    pipelining_seconds=5,
    retention_events=500_000,
    retention_rounds=2,
    retention_seconds=30,
    tables_rounds=2,
    size_events=5_000,
    console_events=1_000_000,
    console_waiting=100_000,
    console_dead=10_000,
)
