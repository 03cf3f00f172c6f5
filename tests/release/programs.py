"""Runs programs, and says of those that fail what they said."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class StepFailed(Exception):
    """Why there is no release; in words for whoever asked for one."""


def run(
    command: Sequence[str | Path],
    *,
    directory: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """The output of a program that succeeds. Raises StepFailed."""
    words = " ".join(Path(part).name if i == 0 else str(part) for i, part in enumerate(command))
    try:
        ended = subprocess.run(
            command,
            cwd=directory,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepFailed(f"{words}: {error}") from error
    if ended.returncode != 0:
        told = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-15:]
        raise StepFailed("\n  ".join([f"{words} ended with {ended.returncode}:", *told]))
    return ended.stdout
