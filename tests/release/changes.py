"""CHANGELOG.md: what is unreleased becomes the section of a version, once, on the day of it.

`make changes` writes it; nothing else in the file is touched.
"""

import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.release.empty import ROOT
from tests.release.programs import StepFailed

UNRELEASED: Final = "Unreleased"
HEADING: Final = re.compile(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """What stands under each version, newest first."""
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {m[1]: text[m.end() : end].strip() for m, end in zip(found, ends, strict=True)}


def close_section(text: str, version: str, day: str) -> str:
    """With all that is unreleased as the section of this version. Raises StepFailed."""
    present = sections(text)
    if version in present:
        raise StepFailed(f"CHANGELOG.md has a section {version} already: raise the version")
    if not present.get(UNRELEASED):
        raise StepFailed("CHANGELOG.md has nothing under Unreleased: there is nothing to release")
    return text.replace(f"## {UNRELEASED}\n", f"## {UNRELEASED}\n\n## {version} - {day}\n", 1)


def is_closed(text: str, version: str) -> bool:
    """Whether the version has its section. Raises StepFailed where there is neither that nor
    something to make it of, or where more came after it."""
    present = sections(text)
    if version not in present:
        close_section(text, version, "today")
        return False
    if present.get(UNRELEASED):
        raise StepFailed(
            f"CHANGELOG.md has a section {version}, and changes that are unreleased:"
            f" move them into it, or raise the version"
        )
    return True


def read_version(root: Path) -> str:
    """The one place where it is written."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version: str = document["project"]["version"]
    return version


def main() -> int:
    file, version = ROOT / "CHANGELOG.md", read_version(ROOT)
    try:
        text = close_section(
            file.read_text(encoding="utf-8"), version, datetime.now(UTC).date().isoformat()
        )
    except StepFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    file.write_text(text, encoding="utf-8")
    print(f"CHANGELOG.md: what was unreleased is {version} now; read it over, and commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
