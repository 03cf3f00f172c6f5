"""Asks whether a pinned package has a known vulnerability, and says so when that cannot be asked.

`make audit`, and the last line of `make check`. pip-audit itself says "No known vulnerabilities
found" also of packages that it could not look up: here they are counted.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

PINNED: Final = Path(__file__).parents[1] / "deploy" / "constraints.txt"
TIMEOUT_S: Final = 5
ALL_S: Final = 180


class Verdict(NamedTuple):
    """What came of it, in words, and whether something is to be done."""

    words: str
    is_bad: bool = False


def main() -> int:
    """Exit 1 only for a vulnerability: without a network nothing fails, and nothing is audited."""
    try:
        probe = f"pip-audit=={version('pip-audit')}"
    except PackageNotFoundError:
        verdict = Verdict("not run (pip-audit is not installed)")
    else:
        verdict = judge(ask(probe))
        if not verdict.words.startswith("not run"):
            verdict = judge(ask(PINNED.read_text(encoding="utf-8")))
    sys.stdout.write(f"audit: {verdict.words}\n")
    return int(verdict.is_bad)


def ask(requirements: str) -> tuple[str, str]:
    """What pip-audit prints of these packages: its answer, and its complaints."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text(requirements, encoding="utf-8")
        options = ["--requirement", str(file), "--no-deps", "--disable-pip", "--format", "json"]
        options += ["--timeout", str(TIMEOUT_S), "--progress-spinner", "off"]
        command = [sys.executable, "-m", "pip_audit", *options, "--cache-dir", directory]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=ALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "", f"no answer within {ALL_S} s"
    return ended.stdout, ended.stderr


def judge(told: tuple[str, str]) -> Verdict:
    """What it means."""
    answer, complaints = told
    try:
        found = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        is_away = "onnect" in complaints or "resolve" in complaints  # ConnectionError, "connection"
        last = complaints.strip().rpartition("\n")[2][:200]
        return Verdict("not run (no network)" if is_away else f"not run ({last or 'no answer'})")
    unknown = [one["name"] for one in found if "skip_reason" in one]
    vulnerable = [one for one in found if one.get("vulns")]
    looked_up = len(found) - len(unknown)
    if not looked_up:
        return Verdict("not run (no vulnerability service that knows our packages is reachable)")
    if vulnerable:
        return Verdict(_described(vulnerable), is_bad=True)
    rest = f"; could not be looked up: {', '.join(unknown)}" if unknown else ""
    return Verdict(f"{looked_up} packages without a known vulnerability{rest}")


def _described(vulnerable: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"  {one['name']} {one['version']}: {', '.join(v['id'] for v in one['vulns'])}"
        f" (fixed in {', '.join(f for v in one['vulns'] for f in v['fix_versions']) or 'none yet'})"
        for one in vulnerable
    ]
    return "\n".join([f"{len(vulnerable)} packages have known vulnerabilities", *lines])


if __name__ == "__main__":
    sys.exit(main())
