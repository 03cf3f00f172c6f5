"""The outcome for people on a terminal, and as a part of a page."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.cluster.attack import Outcome
from tests.torture.audit import counts, verdict

COLUMNS = ("runs", "acknowledged", "lost", "applied twice", "longest silence", "longest recovery")


def print_outcome(console: Console, outcome: Outcome) -> None:
    result = outcome.result
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for cells in _rows(outcome):
        table.add_row(*cells)
    console.print(table)
    for window in result.run.schedule:
        console.print(f"{window['fault'] + ':':24}{window['note']}")
    for name, text in counts(result):
        console.print(f"{name + ':':24}{text}")
    for offender in result.offenders:
        console.print(f"  {escape(offender)}", style="red")
    for problem in outcome.forgotten if not outcome.is_synchronous else ():
        console.print(f"forgotten:              {escape(problem)}")
    for problem in outcome.problems:
        console.print(f"FAILED: {escape(problem)}", style="red")
    run = result.run
    console.print(f"\n{run.machine}, {run.duration_s:.0f} s, seed {run.seed}: {run.command}")
    style = "bold red" if outcome.problems else "bold green"
    console.print(f"{replication(outcome)}: {verdict(result.totals)}", style=style)


def replication(outcome: Outcome) -> str:
    if outcome.is_synchronous:
        return "synchronous replication"
    return (
        f"asynchronous replication, {outcome.missing} acknowledged events were not on the promoted"
        " side and were sent again"
    )


def _rows(outcome: Outcome) -> list[list[str]]:
    return [
        [
            line.fault,
            str(line.runs),
            f"{line.acknowledged:,}",
            str(line.lost),
            str(line.twice),
            f"{line.silence_s:.1f} s",
            f"{line.recovery_s:.1f} s",
        ]
        for line in outcome.result.lines
    ]


def render_markdown(outcome: Outcome) -> str:
    run, totals = outcome.result.run, outcome.result.totals
    rows = [f"| {' | '.join(cells)} |" for cells in _rows(outcome)]
    notes = [w for w in run.schedule if w["note"]]
    return "\n".join(
        [
            f"`{run.command}`, seed {run.seed}, {run.date}, {run.machine}, {run.duration_s:.0f} s,"
            f" hosts: {outcome.network}, {replication(outcome)}: **{verdict(totals)}**.",
            "",
            f"| fault | {' | '.join(COLUMNS)} |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *rows,
            "",
            *(f"- {window['fault']}: {window['note']}" for window in notes),
            *(f"- {name}: {text}" for name, text in counts(outcome.result)),
            *(f"- forgotten: {p}" for p in outcome.forgotten),
            "",
        ]
    )
