"""The results as text: the machine, a table for each stage, every target."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench import contest, effect, flood, pipelining, processing
from bench.contest import AGAIN, STARLETTE
from bench.figures import Results, Sample, round_ratios
from bench.targets import Target, null_noise
from bench.workers import BARE

MIB = 1024**2
GIB = 1024**3
Row = Sequence[str]


def machine_line(machine: Results) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_mib'] / 1024:.1f} GiB,"
        f" Linux {machine['kernel']}, Python {machine['python']}, {machine['postgres']},"
        f" {machine['redis']}, a bare commit takes {machine['commit_p50_ms']:.2f} ms"
    )


def print_report(document: Results, targets: Sequence[Target]) -> None:
    print(f"\n{machine_line(document['machine'])}")
    for stage, results in document["stages"].items():
        if stage in SECTIONS:
            SECTIONS[stage](results, document)
    for stage, problem in document["failed"].items():
        print(f"\n{stage} FAILED: {problem}")
    if document["skipped"]:
        print(f"\nSkipped: {', '.join(document['skipped'])}")
    print_targets(targets)


def print_targets(targets: Sequence[Target]) -> None:
    rows = [
        (target.verdict, target.name, _value(target.value, target.unit), _bound(target))
        for target in targets
    ]
    _table("Targets", ("", "", "value", "bound"), rows, left=(0, 1, 3))


def _ingest(results: Results, document: Results) -> None:
    rounds = len(results["samples"][STARLETTE])
    title = f"Ingest: closed loop, {document['connections']} connections, {rounds} rounds, medians"
    _throughput(title, results["summary"], results["samples"], contest.TITLES)
    ratios = round_ratios(results["samples"], AGAIN, STARLETTE)
    print(
        f"  Noise: the null pair came out {min(ratios):.2f}-{max(ratios):.2f}, in the middle"
        f" {null_noise({'ingest': results}):.2f} from 1."
        f" {_listening(results)}"
    )
    for mix, summary in results["mix_summary"].items():
        _throughput(f"Ingest, {mix}", summary, results["mixes"][mix], contest.TITLES)


def _listening(results: Results) -> str:
    if results["summary"][contest.PAIR]["ports"] == 1:
        return "Two processes share one port."
    return "Two processes listen on two ports, half of the connections each."


def _throughput(
    title: str, summary: dict[str, Sample], samples: dict[str, list[Sample]], titles: dict[str, str]
) -> None:
    rows = []
    for name, row in summary.items():
        of_b = median(round_ratios(samples, name, STARLETTE))
        rows.append(
            (
                titles[name],
                f"{row['per_second']:,.0f}",
                f"{row['lowest']:,.0f}-{row['highest']:,.0f}",
                f"{of_b:.2f}",
                f"{row['p50_ms']:.2f}",
                f"{row['p99_ms']:.1f}",
                *_costs(row),
            )
        )
    _table(title, ("", "req/s", "spread", "of (b)", "p50 ms", "p99 ms", *COSTS), rows)


def _latency(results: Results, _: Results) -> None:
    rows = [
        (
            contest.TITLES[name],
            f"{row['per_second']:,.0f}",
            *(f"{row[figure]:.2f}" for figure in ("p50_ms", "p99_ms", "p999_ms", "late_p99_ms")),
            f"{row['steal']:.0%}",
        )
        for name, row in results["summary"].items()
    ]
    heads = ("", "req/s", "p50 ms", "p99 ms", "p99.9 ms", "sent late p99", "steal")
    _table(f"Latency: open loop at {results['share']:.0%} of each one's maximum", heads, rows)
    lone = [
        (contest.TITLES[name], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}")
        for name, row in results["alone_summary"].items()
    ]
    commit = results["commit_summary"]
    lone.append(("a bare Postgres commit", f"{commit['p50_ms']:.2f}", f"{commit['p99_ms']:.2f}"))
    _table("Latency: one connection", ("", "p50 ms", "p99 ms"), lone)


def _processing(results: Results, _: Results) -> None:
    rows = []
    for name, row in results["summary"].items():
        of_bare = median(round_ratios(results["samples"], name, BARE))
        spread = f"{row['lowest']:,.0f}-{row['highest']:,.0f}"
        rate = f"{row['per_second']:,.0f}"
        rows.append((processing.TITLES[name], rate, spread, f"{of_bare:.2f}", *_costs(row)))
    _table("Processing: one worker, a backlog", ("", "/s", "spread", "of bare", *COSTS), rows)


def _effect(results: Results, _: Results) -> None:
    rows = [
        (
            effect.TITLES[name],
            *(f"{row[figure]:.1f}" for figure in ("p50_ms", "p99_ms", "max_ms")),
            f"{row['acknowledge_p50_ms']:.2f}",
        )
        for name, row in results["summary"].items()
    ]
    heads = ("", "p50 ms", "p99 ms", "max ms", "ack p50 ms")
    _table(f"Acknowledgement to committed effect, {results['rate']} events/s", heads, rows)


def _burst(results: Results, _: Results) -> None:
    row = results["summary"]
    print(
        f"\nBurst of {row['events']:,}: {row['accepted_per_second']:,.0f}/s accepted, "
        f"{row['drained_per_second']:,.0f}/s drained, empty "
        f"{row['seconds_after_last_answer']:.1f} s after the last answer; {row['effects']:,} "
        f"effects, {row['repeated']} of them repeated, {row['error_lines']} errors logged"
    )


def _combined(results: Results, _: Results) -> None:
    row = results["summary"]
    print(
        f"\nEverything at once: {row['per_second']:,.0f}/s accepted "
        f"(p99 {row['p99_ms']:.1f} ms), {row['processed_per_second']:,.0f}/s processed"
    )


def _flood(results: Results, _: Results) -> None:
    rows = []
    for name, row in results["summary"].items():
        of_alone = round_ratios(results["samples"], name, flood.ALONE, "p99_ms")
        rows.append(
            (
                flood.TITLES[name],
                f"{row['p50_ms']:.2f}",
                f"{row['p99_ms']:.1f}",
                _spread(of_alone),
                f"{row['own_cpu_us']:.0f}",
                *(f"{row[count]:,.0f}" for count in ("looked_at", "not_looked_at", "rows")),
                f"{row['log_bytes'] / row['requests']:.0f}",
                f"{row['steal']:.0%}",
            )
        )
    heads = ("", "p50 ms", "p99 ms", "p99 of alone", "CPU us", "403", "429", "rows", "log B")
    title = (
        f"Flood: {flood.GOOD_PER_SECOND} good requests/s, 50,000 forged ones a minute beside them;"
        " CPU and log per good request, rows beside events and deliveries"
    )
    _table(title, (*heads, "steal"), rows)


def _pipelining(results: Results, _: Results) -> None:
    rows = []
    for name, row in results["summary"].items():
        samples = results["samples"]
        ratios = round_ratios(samples, name, pipelining.WELL_BEHAVED, "p99_ms")
        rows.append(
            (
                pipelining.TITLES[name],
                f"{row['p50_ms']:.2f}",
                f"{row['p99_ms']:.1f}",
                _spread(ratios),
                f"{row['healthz_per_second']:,.0f}",
                f"{max(sample['growth_bytes'] for sample in samples[name]) / MIB:.1f}",
                f"{row['steal']:.0%}",
            )
        )
    heads = ("", "p50 ms", "p99 ms", "p99 of well-behaved", "healthz/s", "memory +MiB", "steal")
    rounds = len(results["samples"][pipelining.PIPELINING])
    title = (
        f"Pipelining: {pipelining.GOOD_PER_SECOND} good requests/s beside GET /healthz,"
        f" {results['seconds']} s, {rounds} rounds"
    )
    _table(title, heads, rows)


def _growth(results: Results, _: Results) -> None:
    ledger, waiting, pruning = results["ledger"], results["waiting"], results["pruning"]
    serve, worker, queue = (
        [f"{size / MIB:.0f}" for size in waiting[name]]
        for name in ("serve_rss", "worker_rss", "redis_bytes")
    )
    rows = [
        (f"{ledger['events']:,} events in the ledger, of an empty one", _spread(ledger["ratios"])),
        (
            f"memory of serve, MiB, after {waiting['first']:,} / {waiting['events']:,} events",
            " / ".join(serve),
        ),
        ("memory of the worker, MiB", " / ".join(worker)),
        ("Redis, MiB, before / with all of it waiting", " / ".join(queue)),
        ("drained, deliveries/s", f"{waiting['drained_per_second']:,.0f}"),
        ("furthest out of place", f"{waiting['furthest_out_of_place']:,}"),
        ("ingest while pruning, of ingest alone", _spread(pruning["ratios"])),
        ("keys pruned per event received", _spread(pruning["prune_ratios"])),
    ]
    _table("Growth", ("", "median (spread)"), rows)


def _retention(results: Results, _: Results) -> None:
    sizes, drop, tables = results["sizes"], results["drop"], results["tables"]
    rows: list[Row] = [
        (f"disk per event, bytes: {name}", f"{size:,.0f}") for name, size in sizes["disk"].items()
    ]
    rows += [
        (f"WAL per event, bytes: {name}", f"{size:,.0f}") for name, size in sizes["wal"].items()
    ]
    rows += [
        (f"{name} with 50 days of tables, of {name} with few", _spread(ratios))
        for name, ratios in tables["ratios"].items()
    ]
    rows += [
        ("days dropped", f"{drop['days']}"),
        ("payloads and attempts in them", f"{drop['rows']:,}"),
        ("seconds at work for it in all", f"{drop['seconds']:.1f}"),
        ("ack p99 while dropping, of ack p99 alone", _spread(drop["p99_ratios"])),
    ]
    title = f"Retention: {drop['events']:,} events, {drop['ledger_bytes'] / GIB:.1f} GiB"
    _table(title, ("", "median (spread)"), rows)


def _console(results: Results, _: Results) -> None:
    rows = [
        (name, *(f"{row[figure]:.1f}" for figure in ("p50_ms", "p99_ms", "cpu_ms")))
        for name, row in results["pages"].items()
    ]
    title = (
        f"Console: {results['events']:,} events, {results['waiting']:,} of them waiting,"
        f" {results['dead']:,} dead letters, {results['ledger_bytes'] / GIB:.1f} GiB;"
        f" {results['rounds']} rounds"
    )
    _table(title, ("", "p50 ms", "p99 ms", "CPU ms"), rows)
    print(
        f"  The causes of dead letters were told at {results['causes_per_second']:,.0f}/s;"
        f" steal {results['steal']:.0%}."
    )


SECTIONS = {
    "ingest": _ingest,
    "latency": _latency,
    "processing": _processing,
    "effect": _effect,
    "burst": _burst,
    "combined": _combined,
    "flood": _flood,
    "pipelining": _pipelining,
    "growth": _growth,
    "retention": _retention,
    "console": _console,
}
COSTS = ("CPU us", "Postgres us", "Redis us", "steal")


def _costs(row: Sample) -> Row:
    spent = (row[f"{name}_cpu_us"] for name in ("own", "postgres", "redis"))
    return (*(f"{us:.0f}" for us in spent), f"{row['steal']:.0%}")


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _bound(target: Target) -> str:
    text = f"{'>=' if target.at_least else '<='} {_value(target.bound, target.unit)}"
    if target.slack:
        text += f", less the null pair's {target.slack:.2f}"
    return text


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    shown: dict[str, Any] = {
        "": f"{value:.2f}",
        "ms": f"{value:.2f} ms",
        "s": f"{value:.1f} s",
        "MiB": f"{value:.1f} MiB",
        "share": f"{value:.1%}",
        "count": f"{value:.0f}",
        "yes": "yes" if value else "no",
    }
    return str(shown[unit])


def _table(title: str, heads: Row, rows: Sequence[Row], left: Sequence[int] = (0,)) -> None:
    """Columns of words to the left, of numbers to the right."""
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    print(f"\n{title}")
    for row in (heads, *rows):
        cells = [
            text.ljust(width) if place in left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(("  " + "  ".join(cells)).rstrip())
