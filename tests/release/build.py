"""The wheel and the sdist of a tree: the same bytes, whoever builds them, wherever and when."""

import hashlib
import os
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.release.programs import StepFailed, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What people install."""

    wheel: Path
    sdist: Path

    @property
    def digests(self) -> tuple[str, str]:
        return sha256(self.wheel), sha256(self.sdist)


def build(source: Path, target: Path, *, epoch_s: int) -> Built:
    """Both, with every time in them set to the epoch given."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target.resolve())]
    run(command, directory=source, environ=environ)
    return Built(wheel=_only(target, "*.whl"), sdist=_only(target, "*.tar.gz"))


def build_again(sdist: Path, scratch: Path, *, epoch_s: int) -> Path:
    """The wheel as it is made of the sdist, with nothing but what `build-system` asks for."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir"]
    run([*command, "--wheel-dir", str(scratch), str(sdist)], environ=environ)
    return _only(scratch, "*.whl")


def unpack(sdist: Path, target: Path) -> Path:
    """The one directory that is in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    [directory] = target.iterdir()
    return directory


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _only(directory: Path, pattern: str) -> Path:
    found = list(directory.glob(pattern))
    if len(found) != 1:
        raise StepFailed(f"{len(found)} files like {pattern} in {directory}; expected one")
    return found[0]
