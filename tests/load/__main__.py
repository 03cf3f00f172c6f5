"""Three times the sustainable rate for a minute, on engines of its own: `python -m tests.load`."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from gateway.dev.embedded import Postgres, Redis
from tests.load.overload import TIMES, Overload, overload
from tests.support.ledger import Reader
from tests.support.processes import Project

MEASURE_S, NORMAL_S = 8, 10
MOST_GROWTH = 0.2


@contextmanager
def engines() -> Iterator[tuple[Postgres, Redis, Path]]:
    """A durable Postgres and Redis, and a directory for the project."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-load-"))
    directory.chmod(0o711)  # the engines' account must get through to its own
    postgres, redis = Postgres(directory / "postgres"), Redis(directory / "redis")
    project = directory / "project"
    project.mkdir()
    try:
        postgres.start()
        redis.start()
        yield postgres, redis, project
    finally:
        postgres.stop()
        redis.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def run(seconds: float) -> Overload:
    with engines() as (postgres, redis, directory):
        project = Project(directory, postgres.url, redis.url)
        migrated = project.run("migrate")
        if migrated.returncode != 0:
            sys.exit(migrated.stderr)
        connection = await asyncpg.connect(postgres.url)
        try:
            return await overload(
                project,
                Reader(connection),
                measure_s=MEASURE_S,
                seconds=seconds,
                normal_s=NORMAL_S,
            )
        finally:
            await connection.close()


def rows(found: Overload) -> Iterator[tuple[str, str, bool]]:
    """What is shown: a name, a figure, and whether it holds."""
    excess, normal = found.excess, found.normal
    per_second = excess["seconds"]
    yield "sustained", f"{found.sustained['requests'] / found.sustained['seconds']:,.0f}/s", True
    yield f"offered ({TIMES} times that)", f"{excess['sent'] / per_second:,.0f}/s", True
    yield "not offered, for want of CPU", f"{excess['left_out'] / per_second:,.0f}/s", True
    yield "accepted", f"{excess['accepted'] / per_second:,.0f}/s", excess["accepted"] > 0
    yield "answered 503", f"{excess['unavailable'] / per_second:,.0f}/s", excess["unavailable"] > 0
    for name, title in (("accepted", "200"), ("unavailable", "503")):
        figures = f"{excess[f'{name}_p50_ms']:,.0f} / {excess[f'{name}_p99_ms']:,.0f} ms"
        yield f"{title} after, p50 / p99", figures, True
    wrong = excess["others"] + excess["failed"]
    yield "neither 200 nor 503", f"{wrong:,.0f}", wrong == 0
    for name, memory in (("serve", found.serve), ("worker", found.worker)):
        first, last = memory.thirds_mib
        yield f"memory of {name}", f"{first:,.0f} to {last:,.0f} MiB", memory.growth <= MOST_GROWTH
    good = normal["accepted"] == normal["sent"] > 0
    yield "then at a normal rate", f"{normal['accepted']:,.0f} of {normal['sent']:,.0f}", good
    yield "acknowledged", f"{found.acknowledged:,}", found.acknowledged > 0
    yield "lost", f"{found.lost:,}", found.lost == 0
    yield "applied twice", f"{found.repeated:,}", found.repeated == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long it gets too much")
    table = list(rows(asyncio.run(run(parser.parse_args().seconds))))
    for name, figure, holds in table:
        sys.stdout.write(f"{name:<30} {figure:>22}{'' if holds else '   DOES NOT HOLD'}\n")
    sys.exit(0 if all(holds for *_, holds in table) else 1)


if __name__ == "__main__":
    main()
