"""Carries out deploy/Dockerfile without Docker, and sends an event through the image.

buildah reads the file as Docker does. The base image cannot be fetched where there is no registry,
so that a Debian with this interpreter in /usr/local, as in the real one, stands in for it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gateway.dev.embedded import Postgres, Redis
from tests.deploy.dockerfile import BASE_IMAGE, HEALTH_CHECK, USER_ID
from tests.deploy.files import DEPLOY, PROJECT
from tests.deploy.flow import given, take_effect
from tests.deploy.reach import over_tcp
from tests.deploy.sandbox import MEMORY, Sandbox

BASE: Final = f"docker.io/library/{BASE_IMAGE}"
IMAGE: Final = "webhook-gateway"
RELEASE: Final = "bookworm"
LIBRARIES: Final = (
    "ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,"
    "libsqlite3-0,libssl3,libuuid1,zlib1g"
)
"""Which CPython is linked to; the real base image has them too."""

PATHS: Final = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_MB: Final = 150
"""Of our own, above the base image: what we depend on, and bytecode."""

MUST_NOT_BE_THERE: Final = ("pip", "gcc", "cc", "make", "git", "curl")


class Builder:
    """buildah with a store of its own."""

    def __init__(self, directory: Path) -> None:
        self._command = [
            *("buildah", "--storage-driver", "vfs"),
            *("--root", str(directory / "store"), "--runroot", str(directory / "run")),
        ]

    def do(self, *arguments: str) -> str:
        """What it prints; errors go to the terminal."""
        command = [*self._command, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def make_base(builder: Builder, directory: Path) -> None:
    """The stand-in for the official image."""
    root = directory / "base"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", RELEASE, root, _mirror()],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.copytree(
        sys.base_prefix, root / "usr/local", symlinks=True, dirs_exist_ok=True, ignore=_left_out
    )
    python = root / "usr/local/bin/python"
    python.unlink(missing_ok=True)
    python.symlink_to(f"python{sys.version_info.major}.{sys.version_info.minor}")
    subprocess.run(["chroot", root, "ldconfig"], check=True)
    container = builder.do("from", "scratch")
    builder.do("add", "--quiet", container, str(root), "/")
    builder.do("config", "--env", f"PATH={PATHS}", container)
    builder.do("commit", "--quiet", container, BASE)
    builder.do("rm", container)
    shutil.rmtree(root)


def _left_out(directory: str, names: list[str]) -> set[str]:
    """What this machine's interpreter has beyond pip, and CPython's own tests."""
    if Path(directory).name == "site-packages":
        return {name for name in names if not name.startswith("pip")}
    return {"test", "__pycache__"} & set(names)


def _mirror() -> str:
    """That of this machine."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return next(line for line in listed.stdout.splitlines() if "security" not in line)


def build(builder: Builder) -> None:
    """With pip's configuration of this machine, which says where packages come from."""
    volumes = [o for place in _package_places() for o in ("--volume", f"{place}:{place}:ro")]
    builder.do(
        *("build", "--isolation", "chroot", "--pull-never", "--format", "docker", *volumes),
        *("--file", str(DEPLOY / "Dockerfile"), "--tag", IMAGE, str(PROJECT)),
    )


def _package_places() -> list[str]:
    """Files and directories that pip's configuration names, and the one that it is in."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    words = listed.stdout.replace("'", " ").replace("file://", " ").split()
    places = {Path("/etc/pip.conf"), *(Path(word) for word in words if word.startswith("/"))}
    # Of file:///some/where/simple, the packages themselves may stand beside.
    roots = {place.parent if place.name == "simple" else place for place in places}
    return sorted(str(place) for place in roots if place.exists())


@contextmanager
def mounted(builder: Builder) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Where the image's files are, and what it says of itself."""
    container = builder.do("from", "--pull-never", IMAGE)
    try:
        about = json.loads(builder.do("inspect", container))["Docker"]["config"]
        yield Path(builder.do("mount", container)), about
    finally:
        builder.do("rm", container)


def check(root: Path, about: dict[str, Any]) -> None:
    """Against what the file says, and what must not be in it."""
    assert about["User"].split(":")[0] == USER_ID, about
    assert about["StopSignal"] == "SIGTERM", about
    assert about["Healthcheck"]["Test"] == ["CMD", *HEALTH_CHECK], about
    found = [n for n in MUST_NOT_BE_THERE for b in root.glob(f"**/bin/{n}") if b.is_file()]
    assert found == [], f"the image has {found}"
    assert not list(root.glob("app/tests")), "the image has our tests"
    assert not list(root.glob("**/.env")), "the image has somebody's secrets"


async def run(root: Path, about: dict[str, Any], directory: Path) -> None:
    """Read-only, as nobody: migrate, then an event."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    postgres, redis = Postgres(directory / "postgres"), Redis(directory / "redis")
    postgres.start()
    redis.start()
    try:
        with over_tcp(postgres.url, redis.url) as reach:
            environ = dict(pair.split("=", 1) for pair in about["Env"]) | given(reach)
            sandbox = Sandbox(["--ro-bind", str(root), "/", *MEMORY], environ, state, directory)
            migrated = sandbox.run("gateway", "migrate")
            assert migrated.returncode == 0, migrated.stderr
            assert sandbox.run("python", "-m", "pip", "--version").returncode != 0
            await take_effect(sandbox, reach)
    finally:
        redis.stop()
        postgres.stop()


def main() -> None:
    """All of it, in a directory that is removed."""
    for name in ("buildah", "debootstrap", "bwrap"):
        if shutil.which(name) is None:
            sys.exit(f"{name} is needed: apt install buildah debootstrap bubblewrap")
    if os.geteuid() != 0:
        sys.exit("debootstrap needs root")
    with tempfile.TemporaryDirectory(prefix="gateway-image-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        builder = Builder(directory)
        make_base(builder, directory)
        build(builder)
        with mounted(builder) as (root, about):
            check(root, about)
            own_mb = sum(f.lstat().st_size for f in (root / "opt/gateway").rglob("*")) / 1e6
            assert own_mb < MOST_MB, f"the image has {own_mb:.0f} MB of our own"
            asyncio.run(run(root, about, directory))
        sys.stdout.write(f"built, read-only, an event through it; {own_mb:.0f} MB of our own\n")


main()
