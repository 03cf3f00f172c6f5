"""Saved files take effect: checked first, so that a mistake leaves running what runs."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from gateway.errors import CommandFailed, GatewayError
from gateway.ledger.connection import TROUBLE, describe
from gateway.routes import Config, load_config
from gateway.up.child import unless
from gateway.up.reports import Reload
from gateway.up.watching import differing, watched_by

CHECK_WITHIN_S: Final = 30.0
COMPLAINT: Final = "error: "
LAST_LINES: Final = 3

TakeOver = Callable[[Config, bool], Awaitable[None]]
"""Makes a checked configuration the one that runs; whether the schema files are to be applied."""


class Reloader:
    """Watches the files of a configuration, and then those of the next one."""

    def __init__(
        self,
        config: Config,
        *,
        stopping: asyncio.Event,
        prepare: Callable[[Config], Mapping[str, str]],
        take_over: TakeOver,
    ) -> None:
        self._file = config.file
        self._watched = watched_by(config)
        self._seen = self._watched.read()
        self._is_schema_due = False
        self._stopping = stopping
        self._prepare = prepare
        self._take_over = take_over

    async def reload_forever(self, tell: Callable[[Reload], None]) -> None:
        """Until `stopping`."""
        while not self._stopping.is_set():
            watched = self._watched
            async with aclosing(watched.stirrings(self._stopping)) as stirrings:
                async for _ in stirrings:
                    contents = await asyncio.to_thread(watched.read)
                    changed = differing(self._seen, contents)
                    self._seen = contents
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
        files = tuple(map(_shown, changed))
        took_s = time.monotonic() - started_at
        tell(Reload(files=files, took_s=took_s, problems=tuple(problems)))

    async def _apply(self, changed: Sequence[Path]) -> None:
        # Kept until it is done: what is saved next, to mend a mistake, may be another file.
        self._is_schema_due |= any(file.suffix != ".py" for file in changed)
        config = load_config(self._file)
        watched = watched_by(config)
        if watched != self._watched:  # before the check: what it finds missing may be saved next
            self._watched, self._seen = watched, await asyncio.to_thread(watched.read)
        await _check(self._prepare(config))
        await self._take_over(config, self._is_schema_due)
        self._is_schema_due = False


async def _check(variables: Mapping[str, str]) -> None:
    """As `gateway check` sees it: in a process of its own, since modules are imported only once."""
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


def _shown(file: Path) -> str:
    return os.path.relpath(file)


def _complaints(errors: str) -> str:
    """What it found wrong, without what the modules themselves print."""
    lines = errors.splitlines()
    found = [line.removeprefix(COMPLAINT) for line in lines if line.startswith(COMPLAINT)]
    return "\n".join(found or lines[-LAST_LINES:] or ["`gateway check` failed"])
