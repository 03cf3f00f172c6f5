"""The command `doctor`: check the whole installation."""

import asyncio
import os
from collections.abc import Sequence
from typing import Final

import typer
from rich.table import Table
from rich.text import Text

from gateway.api.operations.health import DOCTOR, DoctorParams
from gateway.base.units import format_count
from gateway.cli.asking import AsJson, Url, ask
from gateway.cli.output import console, print_json, printable, printable_lines
from gateway.operations.health.doctor import examine
from gateway.operations.health.findings import Finding, read_installation

STYLES: Final = {"problem": "bold red", "warning": "yellow", "ok": "green"}
"""Sorted with the worst level first."""


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: AsJson = False, url: Url = None) -> None:
    """Check the whole installation, and advise what to do about each finding.

    Checks settings, routes, handlers, secrets, Postgres, Redis, clocks, the public URL, the disk,
    workers, and the events of each route. Changes nothing, and shows no secret. Exit 1 if there is
    a problem; warnings do not count.

    Example: [bold]gateway doctor --url https://hooks.example.com[/bold]
    """
    findings = asyncio.run(_examine()) if url is None else ask(url, DOCTOR, DoctorParams())
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    if any(finding["level"] == "problem" for finding in findings):
        raise typer.Exit(1)


async def _examine() -> list[Finding]:
    installation, wrong = read_installation(os.environ)
    return wrong + await examine(installation)


def _print(findings: Sequence[Finding]) -> None:
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for level, style in STYLES.items():
        for finding in findings:
            if finding["level"] == level:
                table.add_row(Text(level, style=style), finding["about"], _told(finding))
    out.print(table)
    counts = {level: sum(f["level"] == level for f in findings) for level in STYLES}
    told = [format_count(counts[level], level) for level in ("problem", "warning")]
    out.print(f"\n{', '.join(told)}, {counts['ok']} in order")


def _told(finding: Finding) -> Text:
    text = Text(printable(finding["found"]))
    if finding["advice"] is not None:
        text.append(f"\n{printable_lines(finding['advice'])}", style="dim")
    return text
