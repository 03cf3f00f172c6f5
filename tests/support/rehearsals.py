"""Rehearsals of the handlers in tests/rehearsed, and of others."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.config.project import load_project
from gateway.config.settings import Settings
from gateway.providers.samples import Recorded
from gateway.testing.rehearse import Report, Request, Verdict, rehearse
from gateway.testing.rehearse.findings import Fault, RehearsalFinding
from gateway.testing.rehearse.services import GivenAnswer
from tests.support.in_process import in_project

SHOP: Final = Path(__file__).parents[1] / "rehearsed"

Reports = Mapping[str, Report]


def rehearse_shop(
    server_url: str,
    directory: Path,
    *handlers: str,
    recorded: Mapping[str, Recorded] | None = None,
    answers: Sequence[GivenAnswer] = (),
    reads: Sequence[str] = (),
) -> Reports:
    found: dict[str, Report] = {}
    with in_project(directory):
        request = Request(
            project=load_project(Settings()),
            handlers=handlers,
            recorded=recorded or {},
            answers=answers,
            reads=reads,
            server_url=server_url,
        )
        rehearse(request, lambda report: found.update({report.handler: report}))
    return found


def handlers_of(directory: Path, *modules: str) -> list[str]:
    """The names of the handlers in these modules."""
    with in_project(directory):
        handlers = load_project(Settings()).registry.handlers
    return [s.handler for s in handlers if s.handler.rpartition(".")[0] in modules]


class Planted(NamedTuple):
    """A mistake, and what is to be said of it."""

    handler: str
    fault: Fault
    schedule: str
    subject: str
    source: str


def check_planted(report: Report, planted: Planted, *, others: Collection[Fault] = ()) -> None:
    """Check that the mistake is found with its line, and nothing else but `others`."""
    assert report.verdict is Verdict.UNSAFE
    [finding] = [found for found in report.findings if found.fault not in others]
    assert finding.fault is planted.fault
    assert finding.schedule.startswith(planted.schedule)
    assert finding.subject.startswith(planted.subject)
    assert (finding.source or "").startswith(planted.source)
    file, _, line = (finding.place or "").rpartition(":")
    text = (SHOP / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert text.strip() == finding.source


def the_finding(reports: Reports, handler: str) -> RehearsalFinding:
    """The only one."""
    [finding] = reports[handler].findings
    return finding


def other_notes(reports: Reports, handler: str) -> list[str]:
    """Without that on a second event of the same change, which every mail has."""
    return [note for note in reports[handler].notes if not note.startswith("Stripe may tell")]
