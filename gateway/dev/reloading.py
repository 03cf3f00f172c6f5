"""Reload after a file is saved.

The new configuration is checked first, so an error changes nothing.
"""

import asyncio
import hashlib
import logging
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from watchfiles import awatch

from gateway.base.errors import CommandFailed, GatewayError
from gateway.config.routes import Config, load_config
from gateway.dev.child import unless
from gateway.ledger.connection import TROUBLE, describe

QUIET_MS: Final = 100
"""A burst of writes, such as from an editor with a formatter, has ended
after this time without one.
"""

LOOK_EVERY_MS: Final = 1000
"""Poll interval for changes without a file system event: there is none for some files, and none at
all on some shared folders.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFiles:
    """The files that a reload follows: the packages of the handlers, and single files."""

    packages: frozenset[Path]
    files: frozenset[Path]

    @classmethod
    def of(cls, config: Config) -> Self:
        here = Path.cwd()
        tops = {module.partition(".")[0] for route in config.routes for module in route.handlers}
        single = {config.file, *config.schema, *(Path(f"{top}.py") for top in tops)}
        return cls(
            packages=frozenset(here / top for top in tops),
            files=frozenset(here / file for file in single),
        )

    def read(self) -> Mapping[Path, bytes]:
        """Return a digest of each file: saving a file without a change does not count as one."""
        found = {}
        modules = (file for package in self.packages for file in package.rglob("*.py"))
        for file in (*self.files, *modules):
            with suppress(OSError):  # an unreadable file counts as missing; the check reports it
                found[file] = hashlib.sha256(file.read_bytes()).digest()
        return found

    def folders(self) -> list[Path]:
        # Exclude the project's own folder, which contains its virtual
        # environment and data directory.
        around = {file.parent for file in self.files} - {Path.cwd(), *Path.cwd().parents}
        return [folder for folder in {*self.packages, *around} if folder.is_dir()]


CHECK_WITHIN_S: Final = 30.0
COMPLAINT: Final = "error: "
LAST_LINES: Final = 3

TakeOver = Callable[[Config, bool], Awaitable[None]]
"""Makes a checked configuration the running one. The flag says whether to
apply the schema files.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """Result of a reload after files were saved."""

    files: tuple[str, ...]
    took_s: float
    problems: tuple[str, ...] = ()
    """Problems of the new configuration. If there are any, the previous one still runs."""


class DevReloader:
    """Watches the files of the current configuration."""

    def __init__(
        self,
        config: Config,
        *,
        stopping: asyncio.Event,
        prepare: Callable[[Config], Mapping[str, str]],
        take_over: TakeOver,
    ) -> None:
        self._file = config.file
        self._watched = WatchedFiles.of(config)
        self._seen = self._watched.read()
        self._is_schema_due = False
        self._stopping = stopping
        self._prepare = prepare
        self._take_over = take_over

    async def reload_forever(self, tell: Callable[[Reload], None]) -> None:
        """Reload after each change until `stopping` is set, and call `tell` with the result."""
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every change
        while not self._stopping.is_set():
            watched = self._watched
            stirrings = awatch(
                *watched.folders(),
                watch_filter=lambda _, path: "__pycache__" not in path,
                step=QUIET_MS,
                rust_timeout=LOOK_EVERY_MS,
                yield_on_timeout=True,
                stop_event=self._stopping,
            )
            async with aclosing(stirrings):
                async for _ in stirrings:
                    before, self._seen = self._seen, await asyncio.to_thread(watched.read)
                    either = before.keys() | self._seen.keys()
                    changed = [f for f in sorted(either) if before.get(f) != self._seen.get(f)]
                    if changed:
                        await unless(self._stopping, self._reload(changed, tell))
                    if self._watched != watched:
                        break

    async def _reload(self, changed: Sequence[Path], tell: Callable[[Reload], None]) -> None:
        started_at = time.monotonic()
        problems: list[str] = []
        try:
            await self._apply(changed)
        except GatewayError as error:
            problems = str(error).splitlines()
        except TROUBLE as error:
            problems = [describe(error)]
        files = tuple(map(os.path.relpath, changed))
        took_s = time.monotonic() - started_at
        tell(Reload(files=files, took_s=took_s, problems=tuple(problems)))

    async def _apply(self, changed: Sequence[Path]) -> None:
        # Keep the flag until a reload succeeds: the fix of an error may be saved in another file.
        self._is_schema_due |= any(file.suffix != ".py" for file in changed)
        config = load_config(self._file)
        watched = WatchedFiles.of(config)
        if watched != self._watched:  # before the check: the file that it misses may be saved next
            self._watched, self._seen = watched, await asyncio.to_thread(watched.read)
        await _check(self._prepare(config))
        await self._take_over(config, self._is_schema_due)
        self._is_schema_due = False


async def _check(variables: Mapping[str, str]) -> None:
    """Run `gateway check` in a separate process, because a process imports modules only once."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "check",
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env=variables,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(CHECK_WITHIN_S):
            _, errors = await process.communicate()
    except TimeoutError:
        raise CommandFailed(
            f"`gateway check` did not end within {CHECK_WITHIN_S:g} s: what does a module wait for?"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise CommandFailed(_complaints(errors.decode(errors="replace")))


def _complaints(errors: str) -> str:
    """Return the problems that `gateway check` reported, without the output of the modules."""
    lines = errors.splitlines()
    found = [line.removeprefix(COMPLAINT) for line in lines if line.startswith(COMPLAINT)]
    return "\n".join(found or lines[-LAST_LINES:] or ["`gateway check` failed"])
