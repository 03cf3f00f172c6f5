"""Runs every integration and e2e file many times, a third of them beside a CPU hog.

`make soak` appends one line per run to soak/runs.jsonl and skips the runs that are there already,
so it can be stopped and started again at any time. A line belongs to the code that it ran: with
--since the runs of older code are ignored, and those of code that was not committed. It ends with 1
if any run in its table has failed. Output of failed runs is kept in soak/.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from tests.tools import find

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = ROOT / "soak"
FOLDERS: Final = ("tests/integration", "tests/e2e")
RUNS: Final = 30
HOG_EVERY: Final = 3
HOGS: Final = 2
LONGEST_S: Final = 1800
OK: Final = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one file."""

    file: str
    number: int
    hog: bool
    commit: str
    exit_code: int
    seconds: float
    at: str
    """UTC, in ISO format."""

    @property
    def is_ok(self) -> bool:
        return self.exit_code == OK


def read(records: Path) -> list[Run]:
    """Return the runs on record, oldest first."""
    try:
        lines = (records / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [Run(**json.loads(line)) for line in lines]


def plan(files: Sequence[str], runs: int, done: Sequence[Run]) -> Iterator[tuple[str, int]]:
    """Yield what is left to run: a first run of every file, then a second, and so on."""
    known = {(run.file, run.number) for run in done}
    for number in range(runs):
        for file in files:
            if (file, number) not in known:
                yield file, number


def has_hog(number: int) -> bool:
    return number % HOG_EVERY == 0


@contextmanager
def hog(wanted: bool) -> Iterator[None]:
    """Keep both cores busy."""
    if not wanted:
        yield
        return
    program = find("stress-ng") or sys.exit("stress-ng is not installed: make tools")
    process = subprocess.Popen(
        [program, "--cpu", str(HOGS), "--timeout", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run(file: str, number: int, records: Path, options: Sequence[str]) -> Run:
    """Run one file and put it on record."""
    commit = describe_code(ROOT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, file]
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )
        code, output = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as error:
        code, output = -1, error.stdout or b""
    made = Run(
        file=file,
        number=number,
        hog=has_hog(number),
        commit=commit,
        exit_code=code,
        seconds=round(time.monotonic() - began, 1),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    records.mkdir(exist_ok=True)
    with (records / "runs.jsonl").open("a", encoding="utf-8") as file_:
        file_.write(json.dumps(asdict(made)) + "\n")
    if not made.is_ok:
        (records / f"{Path(file).stem}-{commit[:8]}-{number}.log").write_bytes(output)
    return made


def summarize(runs: Sequence[Run]) -> str:
    """Return a Markdown table with a row per file and one for all of them."""
    rows = ["| file | runs | beside a hog | failed | seconds, median | longest |"]
    rows.append("|---|--:|--:|--:|--:|--:|")
    for file in [*sorted({run.file for run in runs}), "all"]:
        of_file = [run for run in runs if file in (run.file, "all")]
        if not of_file:
            continue
        seconds = sorted(run.seconds for run in of_file)
        rows.append(
            f"| {file} | {len(of_file)} | {sum(run.hog for run in of_file)}"
            f" | {sum(not run.is_ok for run in of_file)}"
            f" | {seconds[len(seconds) // 2]} | {seconds[-1]} |"
        )
    return "\n".join(rows) + "\n"


def describe_code(tree: Path) -> str:
    """Return the commit of a work tree, with `-dirty` behind it if a file of it was changed."""
    return _git(tree, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")


def _git(tree: Path, *arguments: str) -> str:
    command = ["git", "-C", str(tree), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def collect_files(chosen: Sequence[str]) -> list[str]:
    """Return the chosen files, or else all of the integration and e2e tests."""
    names = chosen or [
        str(file.relative_to(ROOT))
        for folder in FOLDERS
        for file in sorted((ROOT / folder).glob("test_*.py"))
    ]
    return list(dict.fromkeys(names))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("files", nargs="*", help="test files; all of integration and e2e if none")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each file")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time, beside one hog")
    parser.add_argument("--seconds", type=float, help="begin no run after this time")
    parser.add_argument("--since", help="a commit: ignore the runs of code before it")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where runs are kept")
    parser.add_argument("--summary", action="store_true", help="only print the table")
    parser.add_argument("--option", action="append", default=[], help="passed to pytest")
    asked = parser.parse_args()
    done = read(asked.records)
    if asked.since:
        newer = set(_git(ROOT, "rev-list", f"{asked.since}^..HEAD").split())
        done = [run for run in done if run.commit in newer]
    files = collect_files(asked.files)
    deadline = time.monotonic() + asked.seconds if asked.seconds else math.inf

    def try_one(left: tuple[str, int]) -> Run | None:
        if time.monotonic() > deadline:
            return None
        made = run(*left, asked.records, asked.option)
        verdict = "ok" if made.is_ok else f"FAILED (exit {made.exit_code})"
        beside = " beside a hog" if made.hog else ""
        sys.stdout.write(
            f"{made.at} {made.file} run {made.number}{beside}: {verdict}, {made.seconds} s\n"
        )
        sys.stdout.flush()
        return made

    left = () if asked.summary else plan(files, asked.runs, done)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for number, together in groupby(list(left), key=itemgetter(1)):
            with hog(has_hog(number)):
                ended = [made for made in pool.map(try_one, together) if made is not None]
            done += ended
    counted = [made for made in done if made.file in files]
    sys.stdout.write(summarize(counted))
    return int(not all(made.is_ok for made in counted))


if __name__ == "__main__":
    sys.exit(main())
