"""Requests that schemathesis makes up from a document, right and wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

SEED: Final = "20261117"


def fuzz(document: str, *options: str, directory: Path, token: str, examples: int) -> None:
    """Fails on a 500, and on an answer of another shape than the document says."""
    ran = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", document, *options, "--header", f"Authorization: Bearer {token}"),
            *("--checks", "all", "--max-examples", str(examples), "--seed", SEED),
            *("--phases", "examples,coverage,fuzzing"),
            *("--continue-on-failure", "--no-color", "--generation-database", "none"),
        ],
        cwd=directory,
        env={k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
