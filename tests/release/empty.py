"""An environment with nothing in it, into which a wheel is installed as anybody would."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.release.programs import run

ROOT: Final = Path(__file__).parents[2]
CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """A virtual environment without even pip."""

    python: Path

    @property
    def gateway(self) -> Path:
        return self.python.with_name("gateway")

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(run([self.python, "-c", ask], environ=self.environ()).strip())

    def environ(self, **more: str) -> dict[str, str]:
        """What a newcomer has set: nothing of ours, and no way to the source tree."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        path = f"{self.python.parent}{os.pathsep}{os.defpath}"
        return {**kept, "PATH": path, **more}

    def install(self, *requirements: str, constraints: Path | None = None) -> None:
        """With our own pip, so that none is in the environment."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        options = [] if constraints is None else ["--constraint", str(constraints)]
        run([*pip, *options, *requirements], timeout_s=1800)


def make_empty(directory: Path, interpreter: Path) -> Empty:
    """Of this interpreter."""
    run([interpreter, "-m", "venv", "--without-pip", str(directory)])
    return Empty(python=directory / "bin" / "python")
