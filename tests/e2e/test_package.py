"""The package as `pip install` sees it: everything that it needs is in the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import trove_classifiers
from packaging.metadata import Metadata

import gateway
from tests.release.build import Built, build, unpack
from tests.support.ledger import Reader
from tests.support.processes import Project, stripe_request
from tests.support.waiting import until

ROOT = Path(gateway.__file__).parents[1]
EPOCH_S = 1_000_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel and the sdist of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("dist"), epoch_s=EPOCH_S)


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel puts into site-packages."""
    target = tmp_path_factory.mktemp("wheel") / "site-packages"
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(target)
    return target


def _tracked(*paths: str) -> set[str]:
    command = ["git", "ls-files", *paths]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def test_the_wheel_has_every_file_of_the_package_and_no_other(unpacked: Path) -> None:
    packed = {str(f.relative_to(unpacked)) for f in unpacked.rglob("*") if f.is_file()}
    described = {name for name in packed if ".dist-info/" in name}
    assert packed - described == _tracked("gateway")
    assert {Path(name).name for name in described} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE"
    }  # fmt: skip
    assert "gateway/py.typed" in packed


def test_the_wheel_says_what_it_is(unpacked: Path) -> None:
    [directory] = unpacked.glob("*.dist-info")
    metadata = Metadata.from_email((directory / "METADATA").read_bytes(), validate=True)
    assert (metadata.name, metadata.license_expression) == ("webhook-gateway-server", "MIT")
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.project_urls is None, "there is no page of which we know that it is there"
    assert set(metadata.classifiers or ()) <= trove_classifiers.classifiers
    points = (directory / "entry_points.txt").read_text(encoding="utf-8")
    assert "gateway = gateway.cli:main" in points
    assert "[pytest11]\ngateway = gateway.pytest_plugin" in points
    assert "Tag: py3-none-any" in (directory / "WHEEL").read_text(encoding="utf-8")


def test_a_second_build_and_the_wheel_of_the_sdist_are_the_same_bytes(
    built: Built, tmp_path: Path
) -> None:
    directory = unpack(built.sdist, tmp_path / "unpacked")
    packed = {str(f.relative_to(directory)) for f in directory.rglob("*") if f.is_file()}
    others = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "deploy/constraints.txt"}
    assert packed == _tracked("gateway") | others | {"PKG-INFO", ".gitignore"}
    again = build(directory, tmp_path / "again", epoch_s=EPOCH_S)
    assert again.digests == built.digests


@pytest.fixture
def elsewhere(unpacked: Path, project: Project) -> Project:
    """A project whose `gateway` comes out of the wheel and not out of this tree."""
    project.environ["PYTHONPATH"] = str(unpacked)
    where = subprocess.run(
        [sys.executable, "-c", "import gateway; print(gateway.__file__)"],
        cwd=project.directory,
        env=project.environ,
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(unpacked))
    return project


async def test_a_users_own_project_works_with_the_installed_package(
    elsewhere: Project, ledger: Reader
) -> None:
    assert elsewhere.run("migrate").returncode == 0
    with elsewhere.serve() as serving, elsewhere.process("worker"):
        await serving.ready()
        sent = elsewhere.run("send", "stripe", "payment_intent.succeeded", "--url", serving.url)
        assert sent.returncode == 0, sent.stderr
        await serving.post(*stripe_request("evt_1"))
        await until(lambda: _done(ledger))
    assert await ledger.effects() == 2


async def _done(ledger: Reader) -> bool:
    return await ledger.statuses() == {"done": 2}
