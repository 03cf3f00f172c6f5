"""Base class of both engines: supervision, a clean start after any kind of end, four stop modes."""

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Self

from gateway.base.errors import EngineFailed
from gateway.dev.embedded import process
from gateway.dev.embedded.binaries import Binaries, BinaryPaths
from gateway.dev.embedded.home import EngineHome, HomeLock, settle

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
LOG_LINES_SHOWN = 6


class Engine(ABC):
    """A server that we supervise, with a directory of its own."""

    name: str
    signals: Mapping[str, Signals]

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        source: str = "auto",
        places: BinaryPaths | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._durable = durable
        self._source = source
        self._places = places or BinaryPaths()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: HomeLock | None = None
        self._logged_bytes = 0

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def _binaries(self) -> Binaries: ...

    @property
    @abstractmethod
    def _pidfile(self) -> Path: ...

    @property
    @abstractmethod
    def _proof(self) -> str:
        """Part of the command line that is unique to the engine of this directory."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _ready(self) -> bool: ...

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running() else None

    @property
    def home(self) -> Path:
        """The directory of the data: the given one, unless the engine's account cannot reach it."""
        return self._home.path

    @property
    def description(self) -> str:
        text = f"{self._binaries}, data in {_short(self.home)}"
        if self.home != self._directory and self._home.account is not None:
            text += f" ({self._home.account.name} cannot reach {_short(self._directory)})"
        return text

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the engine and return when it accepts connections.

        An engine left over from a killed run is stopped first.
        """
        if self.running():
            return
        try:
            with ExitStack() as undo:
                undo.callback(self.kill)
                self._lock = self._lock or HomeLock(self.home / "lock")
                self._end_orphan()
                self._prepare()
                self._launch()
                undo.pop_all()
        except OSError as problem:
            raise EngineFailed(f"{self.name} could not be started: {problem}") from problem

    def stop(self) -> None:
        self._stop("fast")

    def kill(self) -> None:
        if self._process is not None and self.running():
            process.kill_tree(self._process.pid)
            self._process.wait()
        self._release()

    def restart(self, mode: str = "fast") -> None:
        """Stop and start. The mode is `smart`, `fast` or `immediate`, as in pg_ctl, or `kill`."""
        if mode == "kill":
            self.kill()
        else:
            self._stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the engine and delete its data directory, unless another gateway uses it."""
        self.stop()
        self._lock = HomeLock(self.home / "lock")
        self._home.remove()
        self._release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @cached_property
    def _home(self) -> EngineHome:
        return settle(self._directory, self._places.system)

    @property
    def _log(self) -> Path:
        return self.home / f"{self.name.lower()}.log"

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._home.account
        self._logged_bytes = process.shorten(self._log)
        return process.spawn(command, home=self.home, log=self._log, account=account)

    def _launch(self) -> None:
        self._process = self._spawn(self._command())
        ended = process.wait_until(lambda: self._accepts() or not self.running(), START_TIMEOUT_S)
        if not self.running() or not ended:
            raise self._failure("did not start")

    def _accepts(self) -> bool:
        try:
            return self.running() and self._ready()
        except OSError:
            return False

    def _failure(self, what: str) -> EngineFailed:
        text = self._log.read_bytes()[self._logged_bytes :].decode(errors="replace")
        lines = [
            f"{self.name} {what} ({_short(self._log)}):",
            *text.splitlines()[-LOG_LINES_SHOWN:],
        ]
        return EngineFailed("\n  ".join(lines))

    def _stop(self, mode: str) -> None:
        number = self.signals[mode]
        if self._process is not None and self.running():
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _end_orphan(self) -> None:
        try:
            pid = int(self._pidfile.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return
        process.end(pid, self.signals["fast"], self._proof, STOP_TIMEOUT_S)
        # Another process may have this pid by now, and Postgres would refuse
        # to start because of it.
        self._pidfile.unlink(missing_ok=True)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
