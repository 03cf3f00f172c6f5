"""docs/handlers.md, done as it says: its project passes its own tests, `check` and `rehearse`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/handlers.md"
NAMED = re.compile(r"^```\w+\n(?:#|--) (?P<path>[\w/]+\.\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the page: every block that begins with the name of its file."""
    directory = tmp_path_factory.mktemp("shop")
    (directory / "handlers").mkdir()
    (directory / "handlers/__init__.py").touch()
    for found in NAMED.finditer(GUIDE.read_text(encoding="utf-8")):
        file = directory / found["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found["text"], encoding="utf-8")
    return directory


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("GATEWAY_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env=environ | {"STRIPE_WEBHOOK_SECRET": "whsec_of_the_guide"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_the_project_of_the_guide_has_its_files(shop: Path) -> None:
    files = {str(file.relative_to(shop)) for file in shop.rglob("*.*")}
    assert files == {
        "config/routes.yaml",
        "handlers/__init__.py",
        "handlers/schema.sql",
        "handlers/shop.py",
        "handlers/parcels.py",
        "handlers/books.py",
        "tests/test_shop.py",
    }


def test_its_configuration_is_in_order(shop: Path) -> None:
    checked = run(shop, "gateway", "check")
    assert checked.returncode == 0, checked.stderr
    assert "2 routes, 5 handlers, all in order" in checked.stdout


def test_its_tests_pass(shop: Path) -> None:
    tested = run(shop, "pytest", "-q")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "6 passed" in tested.stdout


def test_its_handlers_stand_a_rehearsal(shop: Path) -> None:
    rehearsed = run(shop, "gateway", "rehearse")
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr
