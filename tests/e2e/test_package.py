"""The package as `pip install` sees it: everything that it needs is in the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gateway
from tests.support.ledger import Reader
from tests.support.processes import Project, stripe_request
from tests.support.waiting import until

ROOT = Path(gateway.__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel, built from this tree, puts into site-packages."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "site-packages")
    return target / "site-packages"


def test_the_wheel_has_every_file_of_the_package_and_no_other(unpacked: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "gateway"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    packed = {str(f.relative_to(unpacked)) for f in unpacked.rglob("*") if f.is_file()}
    packed = {name for name in packed if ".dist-info/" not in name}
    assert packed == set(listed.stdout.split())
    assert "gateway/py.typed" in packed


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
