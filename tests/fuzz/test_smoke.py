"""Every fuzz target on its seeds, on what is kept of earlier runs, and on a few changes of both."""

from pathlib import Path

import pytest

from tests.fuzz.target import CORPUS, Stage, kept, mutated
from tests.fuzz.targets import NAMES, load

CHANGED = 150
PURE = [name for name in NAMES if not load(name).on_engines]
ON_ENGINES = [name for name in NAMES if load(name).on_engines]


def try_all(name: str, stage: Stage) -> None:
    target = load(name)
    seeds = [*target.seeds(), *kept(name)]
    with target.open(stage) as check:
        for data in (b"", *seeds, *mutated(seeds, CHANGED)):
            check(data)


@pytest.mark.parametrize("name", PURE)
def test_no_input_is_a_finding(name: str, tmp_path: Path) -> None:
    try_all(name, Stage(directory=tmp_path, database_url="", redis_url=""))


@pytest.mark.parametrize("name", ON_ENGINES)
def test_no_input_is_a_finding_on_real_engines(
    name: str, tmp_path: Path, database_url: str, redis_url: str
) -> None:
    try_all(name, Stage(directory=tmp_path, database_url=database_url, redis_url=redis_url))


def test_every_target_and_every_corpus_has_the_other() -> None:
    modules = {file.stem for file in (CORPUS.parent / "targets").glob("*.py")} - {"__init__"}
    assert modules == set(NAMES)
    assert {file.stem for file in CORPUS.glob("*.txt")} <= modules
    assert all(load(name).name == name for name in NAMES)


def test_what_is_kept_is_small() -> None:
    assert sum(file.stat().st_size for file in CORPUS.glob("*")) < 300_000
