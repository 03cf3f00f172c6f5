"""The report of `rehearse`. It imports everything that a rehearsal needs, so import it late."""

import contextlib
import sys
import time
from collections import Counter
from typing import Final

from rich.text import Text

from gateway.cli.output import console, print_json, printable
from gateway.testing.rehearse import Report, Request, Verdict, rehearse
from gateway.testing.rehearse.database import Change, Difference
from gateway.testing.rehearse.findings import RehearsalFinding
from gateway.testing.rehearse.server_process import ServerProcess

SHOWN_ROWS: Final = 4
SHOWN_CALLS: Final = 4
SHOWN_CHARS: Final = 60
SHOWN_LINE_CHARS: Final = 120
UNGUARDED: Final = (
    "Such a library may open connections in C, and this system has no seccomp by which they could "
    "be refused: what your handlers sent by it was sent. Rehearse on Linux, or reach it through a "
    "@resource."
)
COLOURS: Final = {
    Verdict.SAFE: "green",
    Verdict.IDLE: "yellow",
    Verdict.UNSAFE: "bold red",
    Verdict.FAILED: "bold red",
    Verdict.SKIPPED: "yellow",
}


def rehearse_and_print(
    request: Request, server_process: ServerProcess | None, *, as_json: bool
) -> bool:
    """Report each handler as soon as it is done. Return whether all verdicts are good."""
    began, out = time.monotonic(), sys.stdout
    registry = request.project.registry
    routes = Counter(s.handler for s in registry.handlers)
    reports: list[Report] = []

    def take(report: Report) -> None:
        reports.append(report)
        if not as_json:
            with contextlib.redirect_stdout(out):
                _print(report, with_route=routes[report.handler] > 1)

    with contextlib.redirect_stdout(sys.stderr):  # keep prints of handlers out of the report
        rehearse(request, take, server_process)
    if as_json:
        print_json([report.as_json() for report in reports])
    else:
        _print_summary(reports, time.monotonic() - began)
        _print_unguarded(reports)
        if not request.handlers:
            _print_left_out(len(registry.subscriptions) - len(registry.handlers))
    fine = {Verdict.SAFE, Verdict.IDLE} | (set() if request.handlers else {Verdict.SKIPPED})
    return all(report.verdict in fine and not report.unguarded for report in reports)


def _print(report: Report, *, with_route: bool) -> None:
    head = Text(f"{report.handler} on {report.route}  " if with_route else f"{report.handler}  ")
    head.append(_verdict(report), _colour(report))
    _say(head)
    if report.schedules:
        schedules = "1 schedule" if report.schedules == 1 else f"{report.schedules} schedules"
        events = ", ".join(report.events)
        _say(Text(f"  {schedules} in {report.seconds:.1f} s on {events}", "dim"))
    if report.verdict is Verdict.SAFE and report.not_tried:
        _say(Text(f"  not tried: {', '.join(report.not_tried)}", "dim"))
    if report.reason is not None:
        _say(Text(f"  {printable(report.reason)}"))
    if report.advice is not None:
        _say(Text(f"  {printable(report.advice)}", "yellow"))
    for finding in report.findings:
        _print_finding(finding)
    for note in report.notes:
        _say(Text(f"  note: {printable(note)}", "dim"))


def _verdict(report: Report) -> str:
    """Format the verdict, with everything that was tried, so that it does not claim more."""
    match report.verdict:
        case Verdict.SAFE:
            ways = (f"{way} ({n})" if n > 1 else way for way, n in report.tried.items())
            unguarded = f"; NOT GUARDED: {', '.join(report.unguarded)}" if report.unguarded else ""
            return f"{report.verdict}: {', '.join(ways)}{unguarded}"
        case Verdict.UNSAFE:
            return report.verdict.upper()
        case Verdict.IDLE | Verdict.FAILED:
            return f"{report.verdict}: nothing could be tried"
    return report.verdict


def _print_finding(finding: RehearsalFinding) -> None:
    head = Text(f"  {finding.schedule}", "bold")
    head.append(f" (on {finding.event}): ", "not bold")
    head.append(printable(_headline(finding)), "not bold")
    _say(head)
    if finding.difference is not None:
        _print_rows(finding.difference)
    for call in finding.calls[:SHOWN_CALLS]:
        _say(Text(f"    + {_short(call.text, SHOWN_LINE_CHARS)}  {_short(call.content)}", "red"))
    if finding.place is not None:
        source = _short(finding.source or "", SHOWN_LINE_CHARS)
        _say(Text.assemble("    ", (finding.place, "cyan"), f": {source}"))
    if finding.statement is not None:
        _say(Text(f"      {_short(finding.statement, SHOWN_LINE_CHARS)}", "dim"))
    _say(Text(f"    {finding.advice}", "yellow"))


def _headline(finding: RehearsalFinding) -> str:
    if finding.difference is not None:
        return f"{finding.subject} ends differently"
    if finding.calls:
        expected = "once" if finding.expected_calls == 1 else f"{finding.expected_calls} times"
        return f"sent {len(finding.calls)} times, {finding.reference} {expected}"
    return f"raises {finding.error}" if finding.error else finding.subject


def _print_rows(difference: Difference) -> None:
    for change in difference.changes[:SHOWN_ROWS]:
        names = _names(change, difference.key)
        for sign, row, colour in (("-", change.before, "green"), ("+", change.after, "red")):
            if row is not None:
                cells = " ".join(f"{name}={_short(str(row.get(name)))}" for name in names)
                _say(Text(f"    {sign} {cells}", colour))
    left_out = len(difference.changes) - SHOWN_ROWS
    if left_out > 0:
        _say(Text(f"    ... and {left_out} more rows"))


def _names(change: Change, key: tuple[str, ...]) -> list[str]:
    """Return the key and the columns that differ, or all columns if there is no key."""
    before, after = change.before or {}, change.after or {}
    others = [name for name in {**before, **after} if name not in key]
    if not key:
        return others
    return [*key, *(name for name in others if before.get(name) != after.get(name))]


def _print_summary(reports: list[Report], seconds: float) -> None:
    counts = Counter(report.verdict for report in reports)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    handlers = "1 handler" if len(reports) == 1 else f"{len(reports)} handlers"
    _say(Text(f"{handlers}: {verdicts or 'nothing to rehearse'}; {seconds:.1f} s"))


def _print_unguarded(reports: list[Report]) -> None:
    packages = sorted({package for report in reports for package in report.unguarded})
    if packages:
        names = ", ".join(packages)
        _say(Text(f"NOT GUARDED: {names}. {UNGUARDED}", "bold red"))


def _print_left_out(forwards: int) -> None:
    if forwards:
        left_out = "1 forward is" if forwards == 1 else f"{forwards} forwards are"
        _say(Text(f"{left_out} left out: no code of yours runs here", "dim"))


def _colour(report: Report) -> str:
    return COLOURS[report.verdict]


def _short(text: str, most: int = SHOWN_CHARS) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."


def _say(text: Text) -> None:
    """Print a line. On a terminal it is wrapped between words, with a hanging indent."""
    out = console()
    if not out.is_terminal:
        out.print(text, soft_wrap=True)
        return
    indent = len(text.plain) - len(text.plain.lstrip())
    lines = text[indent:].wrap(out, out.width - indent - 2) or [Text()]
    for n, line in enumerate(lines):
        line.rstrip()
        out.print(Text(" " * (indent + 2 * (n > 0))).append_text(line), soft_wrap=True)
