"""What a fuzz target is: seeds, and a check that raises on a finding."""

import ast
import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

CORPUS: Final = Path(__file__).parent / "corpus"
PART: Final = b"\xfe\xff"
"""Separates the parts of an input; no text has it."""

Check = Callable[[bytes], None]


class Finding(AssertionError):
    """Something that must not happen, did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a target plays."""

    directory: Path
    database_url: str
    redis_url: str


class Target(NamedTuple):
    """One parser, or one door."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    open: Callable[[Stage], AbstractContextManager[Check]]
    on_engines: bool = False
    """Whether it needs a Postgres, or more."""


def parts(data: bytes, count: int) -> list[bytes]:
    """So many parts, the last ones empty where the input has too few."""
    found = data.split(PART, count - 1)
    return found + [b""] * (count - len(found))


def join(*several: bytes) -> bytes:
    """An input of several parts."""
    return PART.join(several)


def header(value: bytes) -> str:
    """As the HTTP parser would let it through: without control characters."""
    return "".join(chr(byte) for byte in value if byte >= 0x20 and byte != 0x7F)


def kept(name: str) -> list[bytes]:
    """Inputs that led somewhere new once, or were findings: one a line, as Python writes bytes."""
    file = CORPUS / f"{name}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return [bytes(ast.literal_eval(line)) for line in lines]


def mutated(seeds: Sequence[bytes], count: int) -> Iterator[bytes]:
    """The same changed inputs each time: for the suite, where nothing learns from coverage."""
    rng = random.Random(20261117)  # noqa: S311 (no secret)
    odd = [b"\0", b"\xff", b'"', b"\\", b"{", b"[", b",", b"=", b"\r\n", b" ", b"%", b"9" * 30]
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at, end = sorted(rng.randint(0, len(data)) for _ in range(2))
            match rng.randrange(4):
                case 0:
                    data[at:at] = rng.choice(odd)
                case 1:
                    del data[at : min(end, at + 16)]
                case 2:
                    data[at:end] = data[at:end] * 2
                case _:
                    data[at : at + 1] = bytes([rng.randrange(256)])
        yield bytes(data[:100_000])


class Watch(logging.Handler):
    """Hears what is logged as an error, by whomever."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(logging.Formatter().format(record))

    def check(self) -> None:
        """Raises Finding where there was one."""
        if self.heard:
            raise Finding("logged as an error: " + "\n".join(self.heard))


class Loop:
    """An event loop in which an input is tried, and in which nothing may go wrong unseen."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._wrong: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self._wrong.append(context))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Raises what the work raises, and a Finding for what went wrong beside it."""
        self.loop.run_until_complete(work)
        if self._wrong:
            raise Finding(f"unhandled in the event loop: {self._wrong}")

    def close(self) -> None:
        self.loop.close()


@contextmanager
def looping() -> Iterator[Loop]:
    """A loop of its own."""
    loop = Loop()
    try:
        yield loop
    finally:
        loop.close()
