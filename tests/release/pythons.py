"""`make pythons`: the wheel, in an empty environment of every Python that is claimed.

Says which were really tried, and which could not be had. With `--suite` the tests run in each, too.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.release.build import build
from tests.release.empty import CONSTRAINTS, ROOT, make_empty
from tests.release.programs import StepFailed, run
from tests.release.smoke import try_wheel

CLASSIFIER: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def claimed(root: Path = ROOT) -> list[str]:
    """The versions that the classifiers name."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found = [CLASSIFIER.fullmatch(text) for text in document["project"]["classifiers"]]
    return [match[1] for match in found if match]


def find_interpreter(version: str) -> Path | None:
    """A Python of this version that really starts: the one that runs this, one of pyenv's, or one
    on PATH (pyenv puts names there that lead nowhere)."""
    for candidate in _candidates(version):
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            told = run([candidate, "-c", ask], timeout_s=20)
        except StepFailed:
            continue
        if told.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    yield Path(getattr(sys, "_base_executable", sys.executable))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)


def run_suite(interpreter: Path, directory: Path, tests: Sequence[str]) -> str:
    """The last line of pytest, in an environment for development. Raises StepFailed."""
    empty = make_empty(directory / "development", interpreter)
    group = f"{ROOT / 'pyproject.toml'}:dev"
    empty.install("--editable", f"{ROOT}[embedded]", "--group", group, constraints=CONSTRAINTS)
    command = [str(empty.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--numprocesses", "2", "--dist", "loadfile", *tests]
    path = f"{empty.python.parent}{os.pathsep}{os.environ['PATH']}"
    told = run(command, directory=ROOT, environ={**os.environ, "PATH": path}, timeout_s=7200)
    return told.strip().rpartition("\n")[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pythons", description=__doc__)
    parser.add_argument("--suite", nargs="*", metavar="TESTS", help="run these tests, too")
    suite = parser.parse_args().suite
    failures = 0
    with tempfile.TemporaryDirectory(prefix="gateway-pythons-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)  # the engines run as another account
        built = build(ROOT, scratch / "dist", epoch_s=0)
        for version in claimed():
            interpreter = find_interpreter(version)
            if interpreter is None:
                print(f"Python {version}: NOT TRIED, there is none on this machine", flush=True)
                continue
            try:
                for told in try_wheel(built.wheel, interpreter, scratch / version):
                    print(f"Python {version}: {told}", flush=True)
                if suite is not None:
                    print(f"  {run_suite(interpreter, scratch / version, suite)}", flush=True)
            except StepFailed as error:
                failures += 1
                print(f"Python {version}: FAILED: {error}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
