"""The audit for people on a terminal, at most 100 columns wide."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.torture.audit import BOUND, BOUND_S, Result, counts, verdict
from tests.torture.record import Window

WIDTH = 100


def make_console() -> Console:
    return Console(width=WIDTH, highlight=False, soft_wrap=True)


def print_window(console: Console, began_at: float, window: Window, acknowledged: int) -> None:
    """One line of the schedule."""
    overlap = "+" if window.overlaps else " "
    console.print(
        f"{window.started_at - began_at:6.1f} s  {window.fault:22} {window.target:13}"
        f" {window.ended_at - window.started_at:5.1f} s{overlap} {acknowledged:7,}  {window.note}",
        overflow="ellipsis",
        no_wrap=True,
        soft_wrap=False,
    )


def print_result(console: Console, result: Result) -> None:
    run, totals = result.run, result.totals
    console.print(_table(result))
    console.print(f"a recovery may take {BOUND_S} s: {BOUND}")
    for name, text in counts(result):
        console.print(f"{name + ':':24}{text}")
    for fault, why in run.missing.items():
        console.print(f"not possible here:      {fault}: {why}")
    for offender in result.offenders:
        console.print(f"  {escape(offender)}", style="red")
    if any(line.late for line in result.lines):
        for slow in result.slowest:
            console.print(f"  {escape(slow)}", style="red")
    for problem in result.problems:
        console.print(f"FAILED: {escape(problem)}", style="red")
    console.print(f"\n{run.machine}, {run.duration_s:.0f} s, seed {run.seed}: {run.command}")
    console.print(verdict(totals), style="bold red" if result.problems else "bold green")


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault")
    for column in ("runs", "acknowledged", "lost", "applied twice", "longest recovery"):
        table.add_column(column, justify="right")
    for line in result.lines:
        table.add_row(
            line.fault,
            str(line.runs),
            f"{line.acknowledged:,}",
            str(line.lost),
            str(line.twice),
            f"{line.recovery_s:.1f} s",
            style="red" if line.lost or line.twice or line.late else None,
        )
    return table
