"""Removes one safeguard at a time and expects its test to fail.

Each safeguard is removed in a copy of this tree. Its test has to pass on the code as it is, and to
fail without the safeguard. Everything else is an error of its own: a test that is skipped or cannot
be set up proves nothing, and neither does removing text that is not in force.
"""

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

import asyncpg
import pytest

from gateway.ledger.migrate import read_migrations
from tests.safeguards import ROOT, SAFEGUARDS, Misplaced, Safeguard, cut
from tests.soak import describe_code
from tests.support.schema import dump_schema, migrations_without, temporary_postgres

COPIED: Final = ("gateway", "tests", "handlers", "config", "bench", "deploy", "pyproject.toml")
RECORD: Final = ROOT / "safeguards.jsonl"
LONGEST_S: Final = 900
TAIL: Final = 3000


class Verdict(StrEnum):
    RED = "red"
    NOT_RED = "NOT RED"
    """The test passes without the safeguard."""
    FAILS_ANYWAY = "FAILS ANYWAY"
    """The test does not pass on the code as it is."""
    SKIPPED = "SKIPPED"
    """The test did not run, most often for lack of a program (`make tools`)."""
    ERROR = "ERROR"
    """The test could not be collected, set up or ended."""
    NOT_FOUND = "NOT FOUND"
    """The safeguard's code is not where its entry says."""
    CHANGES_NOTHING = "CHANGES NOTHING"
    """The migrated schema is the same without the code: a later migration replaces it."""


class Result(NamedTuple):
    verdict: Verdict
    why: str = ""
    """One line."""
    output: str = ""


class Case(NamedTuple):
    """A test of a JUnit report."""

    id: str
    verdict: Verdict
    why: str


VERDICTS: Final = {
    "failure": Verdict.RED,
    "error": Verdict.ERROR,
    "skipped": Verdict.SKIPPED,
}


def read_report(xml: str) -> list[Case]:
    """Return the tests of a report by pytest.

    A test that fails and then cannot be torn down is in it twice: the failure counts.
    """
    cases: dict[str, Case] = {}
    for element in ET.fromstring(xml).iter("testcase"):  # noqa: S314 (our own)
        case = _read_case(element)
        cases.setdefault(case.id, case)
    return list(cases.values())


def _read_case(element: ET.Element) -> Case:
    name = f"{element.get('classname', '').replace('.', '/')}.py::{element.get('name')}"
    for child in element:
        if verdict := VERDICTS.get(child.tag):
            why = (child.get("message") or "").partition("\n")[0]
            return Case(name, verdict, why)
    return Case(name, Verdict.NOT_RED, "")


class Run(NamedTuple):
    """A run of pytest."""

    cases: Sequence[Case]
    output: str
    problem: str = ""
    """Why there is no report."""


def judge(run: Run) -> Result:
    """Return the verdict on a safeguard from a run of its test without it.

    One case that fails is enough, unless another one could not be run.
    """
    for verdict in (Verdict.ERROR, Verdict.RED, Verdict.SKIPPED, Verdict.NOT_RED):
        for case in run.cases:
            if case.verdict is verdict:
                return Result(verdict, case.why, run.output)
    return Result(Verdict.ERROR, run.problem or "no test was run", run.output)


def run_tests(directory: Path, *arguments: str, limit_s: int = LONGEST_S) -> Run:
    """Run tests with the code of that directory in every process that they start."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTHONPATH": str(directory)}
    environ.pop("CI", None)  # with it, a test fails for lack of a program; here that is a skip
    with tempfile.TemporaryDirectory(prefix="gateway-report-") as temporary:
        report = Path(temporary, "report.xml")
        try:
            ended = subprocess.run(
                [*command, f"--junitxml={report}", *arguments],
                cwd=directory,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
            return Run((), output, f"pytest did not end within {limit_s} s")
        output = ended.stdout.decode(errors="replace")
        if not report.exists():
            problem = f"pytest ended with exit status {ended.returncode} and without a report"
            return Run((), output, problem)
        return Run(read_report(report.read_text(encoding="utf-8")), output)


@contextmanager
def removed(safeguard: Safeguard) -> Iterator[Path]:
    """Make a copy of this tree without the safeguard."""
    with tempfile.TemporaryDirectory(prefix="gateway-without-") as temporary:
        directory = Path(temporary)
        for name in COPIED:
            source, target = ROOT / name, directory / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "results")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        file, text = cut(safeguard)
        (directory / file).write_text(text, encoding="utf-8")
        directory.chmod(0o755)
        yield directory


def try_without(safeguard: Safeguard) -> Result:
    """Run the test of a safeguard without it."""
    with removed(safeguard) as directory:
        file, text = cut(safeguard)
        if file.suffix == ".py":
            try:
                compile(text, str(file), "exec")
            except SyntaxError as error:
                return Result(Verdict.ERROR, f"{file} is no Python without it: {error}")
        return judge(run_tests(directory, "-x", safeguard.test))


def find_misplaced(safeguards: Iterable[Safeguard]) -> dict[Safeguard, Result]:
    """Return the safeguards whose removal would change nothing."""
    found: dict[Safeguard, Result] = {}
    for safeguard in safeguards:
        try:
            cut(safeguard)
        except Misplaced as error:
            found[safeguard] = Result(Verdict.NOT_FOUND, str(error))
    in_schema = [s for s in safeguards if s.is_in_schema and s not in found]
    if in_schema:
        with temporary_postgres() as url:
            found |= asyncio.run(_compare_schemas(url, in_schema))
    return found


async def _compare_schemas(url: str, safeguards: Iterable[Safeguard]) -> dict[Safeguard, Result]:
    found: dict[Safeguard, Result] = {}
    in_force = await dump_schema(url, read_migrations())
    for safeguard in safeguards:
        try:
            without = await dump_schema(url, migrations_without(safeguard))
        except asyncpg.PostgresError as error:
            found[safeguard] = Result(Verdict.ERROR, f"it cannot be migrated without it: {error}")
            continue
        if without == in_force:
            why = f"a later migration replaces that code of {cut(safeguard).file}"
            found[safeguard] = Result(Verdict.CHANGES_NOTHING, why)
    return found


def find_failing(tests: Iterable[str], jobs: int) -> dict[str, Result]:
    """Return the tests that do not pass on the code as it is."""
    names = sorted(set(tests))
    parallel = ("--numprocesses", str(jobs), "--dist", "loadfile")
    run = run_tests(ROOT, *parallel, *names, limit_s=len(names) * LONGEST_S)
    if not run.cases:
        sys.exit(f"{run.output[-TAIL:]}\n{run.problem or 'no test was run'}")
    found: dict[str, Result] = {}
    for name in names:
        cases = [c for c in run.cases if c.id == name or c.id.startswith(f"{name}[")]
        if any(c.verdict is Verdict.NOT_RED for c in cases):
            cases = [c for c in cases if c.verdict is not Verdict.SKIPPED]
        result = judge(Run(cases, ""))
        if result.verdict is Verdict.RED:
            result = result._replace(verdict=Verdict.FAILS_ANYWAY)
        if result.verdict is not Verdict.NOT_RED:
            found[name] = result
    return found


def _identify(safeguard: Safeguard) -> str:
    return hashlib.sha256(repr(safeguard).encode()).hexdigest()[:16]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _red_since(commit: str) -> set[str]:
    """Return the entries that are on record as red with the code of that commit or later."""
    newer = {*_git("rev-list", f"{commit}..HEAD").split(), _git("rev-parse", commit)}
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    records = [json.loads(line) for line in lines]
    return {r["entry"] for r in records if r["commit"] in newer and r["verdict"] == Verdict.RED}


def _report(safeguard: Safeguard, result: Result, commit: str) -> None:
    record = {
        "entry": _identify(safeguard),
        "name": safeguard.name,
        "verdict": result.verdict,
        "why": result.why,
        "commit": commit,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    sys.stdout.write(f"{result.verdict} without: {safeguard.name}\n    {safeguard.test}\n")
    if result.why:
        sys.stdout.write(f"    {result.why[:200]}\n")
    if result.verdict is not Verdict.RED:
        sys.stdout.write(result.output[-TAIL:])
    sys.stdout.flush()


def summarize(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the last line of a run."""
    counted = Counter(verdicts)
    parts = ", ".join(f"{n} {v}" for v in Verdict if (n := counted[v]))
    return f"{len(verdicts)} safeguards: {parts}, in {seconds / 60:.1f} minutes\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make safeguards", description=__doc__)
    parser.add_argument("name", nargs="*", help="only those with this in their name; all if none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument(
        "--since", metavar="COMMIT", help="not those that were red with this code or later"
    )
    asked = parser.parse_args()
    began, commit = time.monotonic(), describe_code(ROOT)
    wanted = [s for s in SAFEGUARDS if not asked.name or any(name in s.name for name in asked.name)]
    if not wanted:
        sys.exit(f"no safeguard has {' or '.join(map(repr, asked.name))} in its name")
    if asked.since:
        red = _red_since(asked.since)
        wanted = [s for s in wanted if _identify(s) not in red]
    if not wanted:
        sys.stdout.write(f"every safeguard has been red since {asked.since}\n")
        return 0
    results = _try_all(wanted, asked.jobs, commit)
    sys.stdout.write(summarize(results, time.monotonic() - began))
    return int(any(verdict is not Verdict.RED for verdict in results))


def _try_all(safeguards: Sequence[Safeguard], jobs: int, commit: str) -> list[Verdict]:
    try:
        known = find_misplaced(safeguards)
    except pytest.skip.Exception as error:
        sys.exit(f"{error}: make tools")
    failing = find_failing((s.test for s in safeguards if s not in known), jobs)
    known |= {s: failing[s.test] for s in safeguards if s not in known and s.test in failing}
    for safeguard, result in known.items():
        _report(safeguard, result, commit)
    verdicts = [result.verdict for result in known.values()]
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(try_without, s): s for s in safeguards if s not in known}
        for ended in as_completed(running):
            _report(running[ended], ended.result(), commit)
            verdicts.append(ended.result().verdict)
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
