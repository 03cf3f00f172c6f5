"""Fuzzes one target in this process, guided by coverage, until its time is up."""

import argparse
import os
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.fuzz.target import Check, Finding, Stage, Target, kept

INSTRUMENTED: Final = ["gateway", "yaml", "starlette", "uvicorn.protocols", "tests.fuzz.targets"]
LONGEST_INPUT: Final = 4096
SLOW_S: Final = 2.0
"""Of processor time, for an input of a few kilobytes: something is more than linear."""


class Run:
    """Counts, and ends the process: the engine never returns."""

    def __init__(self, check: Check, stack: ExitStack, *, seconds: float, finding: Path) -> None:
        self._check, self._stack = check, stack
        self._finding = finding
        self._ends_at = time.monotonic() + seconds
        self._count = 0

    def __call__(self, data: bytes) -> None:
        started = time.process_time()
        try:
            self._check(data)
            if (spent := time.process_time() - started) > SLOW_S:
                raise Finding(f"took {spent:.1f} s")
            self._count += 1
            if time.monotonic() >= self._ends_at:
                self._stack.close()
        except BaseException:
            traceback.print_exc()
            self._finding.write_bytes(data)
            self._end(1)
        if time.monotonic() >= self._ends_at:
            self._end(0)

    def _end(self, code: int) -> None:
        sys.stdout.write(f"\nexecutions {self._count}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            with suppress(Exception):  # it has told already what is wrong
                self._stack.close()
        os._exit(code)


def _load(name: str) -> tuple[object, Target]:
    engine = import_module("atheris")
    with engine.instrument_imports(include=INSTRUMENTED):
        return engine, import_module("tests.fuzz.targets").load(name)


def main() -> None:
    """Reads its orders from the command line of `tests.fuzz`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--redis-url", default="")
    given = parser.parse_args()
    engine, target = _load(given.name)
    corpus = given.directory / "corpus"
    corpus.mkdir()
    for n, seed in enumerate((*target.seeds(), *kept(target.name))):
        (corpus / f"seed-{n}").write_bytes(seed)
    stage = Stage(
        directory=given.directory, database_url=given.database_url, redis_url=given.redis_url
    )
    stack = ExitStack()
    check = stack.enter_context(target.open(stage))
    run = Run(check, stack, seconds=given.seconds, finding=given.directory / "finding")
    options = [f"-max_len={LONGEST_INPUT}", "-print_final_stats=0", "-verbosity=0"]
    engine.Setup([sys.argv[0], *options, str(corpus)], run)  # type: ignore[attr-defined]
    engine.Fuzz()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
