"""`make release`: everything short of the upload, and then what is left for a person to do.

Of the last commit, never of the working tree. Uploads nothing, tags nothing, writes only to dist/.
"""

import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.release.build import Built, build, build_again, sha256
from tests.release.changes import close_section, is_closed, read_version
from tests.release.empty import CONSTRAINTS, ROOT, make_empty
from tests.release.programs import StepFailed, run
from tests.release.sbom import make_sbom
from tests.release.smoke import try_wheel

DIST: Final = ROOT / "dist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A commit, and what it would be released as."""

    version: str
    epoch_s: int
    source: Path
    is_closed: bool
    """Whether CHANGELOG.md has its section; if not, the one in `source` was made for this run."""

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gateway-release-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)  # the engines run as another account
        try:
            candidate = check(scratch / "source")
            built = make(candidate, scratch)
            try_installed(candidate, built, scratch)
            write_sums()
        except StepFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(closing_words(candidate, DIST))
    return 0


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def check(source: Path) -> Candidate:
    """Whether the last commit can be released at all; a copy of it."""
    changed = git("status", "--porcelain").splitlines()
    if changed:
        raise StepFailed("\n  ".join(["the tree is not clean:", *changed]))
    version = read_version(ROOT)
    if git("tag", "--list", f"v{version}"):
        raise StepFailed(f"v{version} is tagged already: raise the version in pyproject.toml")
    changes = ROOT / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    closed = is_closed(text, version)
    epoch_s = int(git("log", "-1", "--format=%ct"))
    archive = source.with_suffix(".tar")
    git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    if not closed:
        day = datetime.fromtimestamp(epoch_s, UTC).date().isoformat()
        (source / changes.name).write_text(close_section(text, version, day), encoding="utf-8")
    say(f"{version} of {git('rev-parse', '--short', 'HEAD')}: the tree is clean, not yet tagged")
    return Candidate(version=version, epoch_s=epoch_s, source=source, is_closed=closed)


def git(*arguments: str) -> str:
    return run(["git", *arguments], directory=ROOT).strip()


def make(candidate: Candidate, scratch: Path) -> Built:
    """Builds it three times, into dist/ once."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = build(candidate.source, DIST, epoch_s=candidate.epoch_s)
    again = build(candidate.source, scratch / "again", epoch_s=candidate.epoch_s)
    if built.digests != again.digests:
        raise StepFailed("a second build is not the same, byte for byte")
    from_sdist = build_again(built.sdist, scratch / "from-sdist", epoch_s=candidate.epoch_s)
    if sha256(from_sdist) != sha256(built.wheel):
        raise StepFailed("the wheel that is made of the sdist is another one")
    say("wheel and sdist built; a second build, and the sdist's own wheel, are the same bytes")
    run([sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist])
    say("twine finds nothing to complain of")
    return built


def try_installed(candidate: Candidate, built: Built, scratch: Path) -> None:
    """In one environment what is shipped, for the bill of materials; in others it has to work."""
    bare = make_empty(scratch / "bare", Path(sys.executable))
    bare.install(str(built.wheel), constraints=CONSTRAINTS)
    bill = DIST / f"{built.wheel.name.split('-')[0]}-{candidate.version}.cdx.json"
    bill.write_text(
        make_sbom(bare.packages, wheel_sha256=sha256(built.wheel), epoch_s=candidate.epoch_s),
        encoding="utf-8",
    )
    say(f"{bill.name}: the bill of materials")
    for told in try_wheel(built.wheel, Path(sys.executable), scratch):
        say(told)


def write_sums() -> None:
    """As `sha256sum --check` reads them."""
    files = sorted(file for file in DIST.iterdir() if file.is_file())
    lines = [f"{sha256(file)}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def closing_words(candidate: Candidate, dist: Path) -> str:
    files = [f"  {file.name}  ({file.stat().st_size:,} bytes)" for file in sorted(dist.iterdir())]
    steps = [
        f'git tag --annotate {candidate.tag} --message "{candidate.version}"'
        f" && git push origin {candidate.tag}",
        "twine upload dist/*.whl dist/*.tar.gz",
        "publish the section of CHANGELOG.md, with the .cdx.json and SHA256SUMS beside it",
        "raise `version` in pyproject.toml",
    ]
    if not candidate.is_closed:
        steps.insert(
            0,
            "make changes, read CHANGELOG.md over, commit, and `make release` once more:"
            " this was a rehearsal, and what is in dist/ is not to be uploaded",
        )
    numbered = [f"  {n}. {step}" for n, step in enumerate(steps, 1)]
    return "\n".join(["\ndist/", *files, "\nNothing was uploaded. What is left to do:", *numbered])


if __name__ == "__main__":
    sys.exit(main())
