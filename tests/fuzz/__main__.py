"""`make fuzz`: all targets, some side by side; prints what each tried, and fails on any finding."""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from gateway.dev.embedded import Postgres, Redis
from gateway.testing.throwaway import fastest_place
from tests.conftest import make_template
from tests.fuzz.target import CORPUS, kept
from tests.fuzz.targets import NAMES, load
from tests.support.databases import TEMPLATE, on_database, run_sql

SECONDS: Final = 180
SIDE_BY_SIDE: Final = 2
EXECUTIONS: Final = re.compile(r"^executions ([0-9]+)$", re.MULTILINE)
LEARNED_BYTES: Final = 300
MOST_LEARNED: Final = 40


class Engines(NamedTuple):
    """Where the targets find theirs."""

    postgres: str
    redis: str


class Result(NamedTuple):
    """What came of one target."""

    name: str
    executions: int
    finding: bytes | None
    output: str
    learned: list[bytes]


@contextmanager
def engines(directory: Path) -> Iterator[Engines]:
    """A real Postgres and a real Redis."""
    postgres = Postgres(directory / "postgres", durable=False)
    redis = Redis(directory / "redis", durable=False)
    postgres.start()
    try:
        redis.start()
        try:
            asyncio.run(make_template(postgres.url))
            yield Engines(postgres.url, redis.url)
        finally:
            redis.stop()
    finally:
        postgres.stop()


def fuzz(name: str, seconds: float, directory: Path, where: Engines) -> Result:
    """One target in a process of its own."""
    own = directory / name
    own.mkdir()
    database = f"fuzz_{name}"
    asyncio.run(run_sql(where.postgres, f'create database "{database}" template "{TEMPLATE}"'))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.one", name),
            *("--seconds", str(seconds), "--directory", str(own)),
            *("--database-url", on_database(where.postgres, database)),
            *("--redis-url", where.redis),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    count = EXECUTIONS.search(ended.stdout)
    finding = own / "finding"
    found = finding.read_bytes() if finding.exists() else None
    if ended.returncode and found is None:
        found = b""
    new = [file for file in (own / "corpus").glob("*") if not file.name.startswith("seed-")]
    return Result(
        name,
        int(count[1]) if count else 0,
        found,
        _telling(ended.stdout + ended.stderr),
        [file.read_bytes() for file in new if file.stat().st_size <= LEARNED_BYTES],
    )


def _telling(output: str) -> str:
    """The end of it, without what the engine says of itself."""
    lines = [line for line in output.splitlines() if not line.startswith(("INFO:", "WARNING:"))]
    return "\n".join(lines)[-6000:]


def tell(result: Result) -> None:
    """A line, and all that is known of a finding."""
    verdict = "no finding" if result.finding is None else "FINDING"
    sys.stdout.write(f"{result.name:<12} {result.executions:>10,} executions  {verdict}\n")
    if result.finding is not None:
        sys.stdout.write(f"{result.output}\ninput: {result.finding!a}\n")
    sys.stdout.flush()


def learn(result: Result) -> None:
    """Keeps some of what led somewhere new, shortest first."""
    seeds = set(load(result.name).seeds())
    new = [data for data in result.learned if data not in seeds]
    shortest = sorted({*kept(result.name), *new}, key=lambda data: (len(data), data))
    lines = [ascii(data) for data in shortest[:MOST_LEARNED]]
    if not lines:
        return
    (CORPUS / f"{result.name}.txt").write_text("\n".join([*lines, ""]), encoding="ascii")


def main() -> int:
    """Returns 1 where there was a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each target")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="these targets")
    parser.add_argument("--jobs", type=int, default=SIDE_BY_SIDE, help="how many side by side")
    parser.add_argument("--learn", action="store_true", help="add to the corpus that is kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-fuzz-", dir=fastest_place()) as name:
        directory = Path(name)
        directory.chmod(0o711)
        with engines(directory) as where, ThreadPoolExecutor(given.jobs) as pool:
            work = [
                pool.submit(fuzz, target, given.seconds, directory, where) for target in given.only
            ]
            results = []
            for each in work:
                results.append(each.result())
                tell(results[-1])
    if given.learn:
        for result in results:
            learn(result)
    total = sum(result.executions for result in results)
    findings = sum(result.finding is not None for result in results)
    sys.stdout.write(f"{total:,} executions, {findings} finding(s)\n")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
