"""The soak goes on where it was stopped, and a third of its runs have a hog beside them."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.soak import RUNS, Run, describe_code, has_hog, main, plan, read, summarize


def made(file: str, number: int, *, exit_code: int = 0, seconds: float = 1.0) -> Run:
    return Run(
        file=file,
        number=number,
        hog=has_hog(number),
        commit="c",
        exit_code=exit_code,
        seconds=seconds,
        at="2026-11-18T00:00:00Z",
    )


def test_what_is_on_record_is_not_run_again(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    lines = [json.dumps(asdict(made("a.py", n))) for n in range(2)]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    left = list(plan(["a.py", "b.py"], 3, read(tmp_path)))
    assert left == [("b.py", 0), ("b.py", 1), ("a.py", 2), ("b.py", 2)]


def test_a_third_of_the_runs_is_beside_a_hog() -> None:
    assert sum(map(has_hog, range(RUNS))) * 3 == RUNS


def test_the_table_counts_runs_and_failures() -> None:
    runs = [made("a.py", 0, seconds=2.5), made("a.py", 1, exit_code=1), made("b.py", 0)]
    assert summarize(runs).splitlines()[2:] == [
        "| a.py | 2 | 1 | 1 | 2.5 | 2.5 |",
        "| b.py | 1 | 1 | 0 | 1.0 | 1.0 |",
        "| all | 3 | 2 | 1 | 1.0 | 2.5 |",
    ]


@pytest.mark.parametrize(("files", "code"), [([], 1), (["a.py"], 1), (["b.py"], 0)])
def test_a_failure_on_record_fails_a_soak_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], code: int
) -> None:
    lines = [json.dumps(asdict(run)) for run in (made("a.py", 0, exit_code=1), made("b.py", 0))]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("tests.soak.collect_files", lambda chosen: chosen or ["a.py", "b.py"])
    monkeypatch.setattr("sys.argv", ["soak", "--summary", "--records", str(tmp_path), *files])
    assert main() == code


def test_a_run_of_code_that_is_not_committed_belongs_to_no_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = [
            "git",
            "-C",
            str(tmp_path),
            "-c",
            "user.name=x",
            "-c",
            "user.email=x",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "--quiet", "--message", "a")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD")
    assert describe_code(tmp_path) == commit
    (tmp_path / "a.py").write_text("2")
    assert describe_code(tmp_path) == f"{commit}-dirty"
