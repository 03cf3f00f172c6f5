"""A gateway process that is started again whenever it ends, as systemd would."""

import asyncio
import contextlib
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

RESTART_S: Final = 0.5
END_S: Final = 20.0
LOOK_S: Final = 0.05


class Child:
    """One place on the stage, whoever fills it just now."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        directory: Path,
        logs: Path,
        ready_line: str,
    ) -> None:
        self.name = name
        self._command = command
        self._environ = environ
        self._directory = directory
        self._logs = logs
        self._ready_line = ready_line
        self._process: Process | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._is_ready = False
        self._is_leaving = False
        self.starts = 0
        self.pids: set[int] = set()
        self.exit_codes: list[int] = []

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def deploy(self, environ: Mapping[str, str]) -> None:
        """Let it end gracefully, and start again with these variables as well."""
        self._environ = {**self._environ, **environ}
        self.send(signal.SIGTERM)

    def start(self) -> None:
        self._upkeep = asyncio.create_task(self._keep_up(), name=f"upkeep of {self.name}")

    async def stop(self) -> None:
        """For good: the polite way, then the other."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_S):
                await self._ended()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._ended()

    async def ready(self) -> None:
        """Waits until the process that is there says that it works."""
        while not self._is_ready:
            if self._upkeep is not None and self._upkeep.done():
                self._upkeep.result()
            await asyncio.sleep(LOOK_S)
            self._is_ready = self._says_ready()

    def send(self, signum: signal.Signals) -> None:
        """To the process, if there is one."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(signum)
        if signum in {signal.SIGKILL, signal.SIGTERM}:
            self._is_ready, self._is_leaving = False, True

    def _says_ready(self) -> bool:
        if self._is_leaving or self._process is None or self._process.returncode is not None:
            return False
        return self._ready_line in self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self._logs / f"{self.name}.{self.starts}.log"

    async def _keep_up(self) -> None:
        while True:
            self.starts += 1
            with self._log.open("wb") as sink:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    cwd=self._directory,
                    env=dict(self._environ),
                    stdin=PIPE,  # at whose end it ends, so that it does not outlive this process
                    stdout=sink,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            self._is_leaving = False
            self.pids.add(self._process.pid)
            self.exit_codes.append(await self._process.wait())
            self._is_ready = False
            await asyncio.sleep(RESTART_S)

    async def _ended(self) -> None:
        if self._process is not None:
            await self._process.wait()
