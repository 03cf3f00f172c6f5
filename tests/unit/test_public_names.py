"""The names that `dir(gateway)` and an editor's completion show to handler authors."""

import subprocess
import sys
from typing import Final

import gateway

LOADED: Final = "import sys, gateway; dir(gateway); print('gateway.worker.context' in sys.modules)"


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(gateway) == sorted(gateway.__all__)


def test_every_public_name_can_be_imported() -> None:
    for name in dir(gateway):
        assert getattr(gateway, name) is not None, name


def test_dir_imports_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "False"
