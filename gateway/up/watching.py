"""The files of a project whose change matters, and what is in them."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch

from gateway.routes import Config

QUIET_MS: Final = 100
"""A burst of writes, as of an editor with a formatter, is over after so long without one."""

LOOK_EVERY_MS: Final = 1000
"""Files are also looked at without a notice: the system gives none for some, and none at all on
some shared folders."""

Contents = Mapping[Path, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The packages of the handlers, and single files."""

    packages: frozenset[Path]
    files: frozenset[Path]

    def read(self) -> Contents:
        """A digest of each file, so that a save that changes nothing is none."""
        return dict(_digests(self._present()))

    def _present(self) -> Iterator[Path]:
        yield from self.files
        for package in self.packages:
            yield from package.rglob("*.py")

    async def stirrings(self, stopping: asyncio.Event) -> AsyncGenerator[None, None]:
        """Ends a turn whenever something may have changed, until `stopping`."""
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells every change it sees
        async for _ in awatch(
            *self._folders(),
            watch_filter=_is_source,
            step=QUIET_MS,
            rust_timeout=LOOK_EVERY_MS,
            yield_on_timeout=True,
            stop_event=stopping,
        ):
            yield

    def _folders(self) -> list[Path]:
        # Not the project's own folder: that would mean its environment and its data directory too.
        around = {file.parent for file in self.files} - {Path.cwd(), *Path.cwd().parents}
        return [folder for folder in {*self.packages, *around} if folder.is_dir()]


def watched_by(config: Config) -> Watched:
    """What `gateway up --reload` watches with these routes."""
    here = Path.cwd()
    tops = {module.partition(".")[0] for route in config.routes for module in route.handlers}
    modules = {here / f"{top}.py" for top in tops}
    return Watched(
        packages=frozenset(here / top for top in tops),
        files=frozenset({*modules, here / config.file, *(here / file for file in config.schema)}),
    )


def differing(before: Contents, after: Contents) -> tuple[Path, ...]:
    """The files that are new, gone or changed."""
    either = before.keys() | after.keys()
    return tuple(sorted(file for file in either if before.get(file) != after.get(file)))


def _digests(files: Iterator[Path]) -> Iterator[tuple[Path, bytes]]:
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            continue  # one that cannot be read is as good as gone; the check will say so
        yield file, hashlib.sha256(content).digest()


def _is_source(_: Change, path: str) -> bool:
    return "__pycache__" not in path
