"""SIGHUP asks a process to reload, and ends it only with its terminal."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from gateway.base.hangup import Hangup, hangups_held
from tests.support.waiting import PATIENCE_S

LISTENS = """
import signal, sys, time
from gateway.base.hangup import Hangup
hangup = Hangup()
hangup.listen()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("listening", flush=True)
while True:
    time.sleep(0.01)
    if hangup._was_asked:
        hangup._was_asked = False
        print("heard", flush=True)
"""
TAKES_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under nohup
"""
IS_DETACHED = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it
"""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def test_one_that_comes_too_soon_is_obeyed_later_and_one_too_late_ends_nothing() -> None:
    hangup, asked = Hangup(), asyncio.Semaphore(0)
    hangup.listen()
    hang_up()
    hang_up()
    with hangup.obeyed_by(asked.release):
        await asked.acquire()
        hang_up()
        await asked.acquire()
        assert asked.locked()
    hang_up()


async def test_a_child_does_not_die_of_one_that_comes_before_it_listens() -> None:
    Hangup().listen()
    with hangups_held():
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", LISTENS),
            stdout=asyncio.subprocess.PIPE,
        )
    child.send_signal(signal.SIGHUP)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"listening\n"
    child.send_signal(signal.SIGHUP)
    child.terminate()
    assert await child.wait() == 7
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@contextmanager
def in_terminal(program: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], int]]:
    """A process whose terminal we are, and what it says."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(theirs)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"listening\n"
        yield process, process.stdout, ours
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_it_ends_with_its_terminal_and_not_before() -> None:
    with in_terminal(TAKES_TERMINAL + LISTENS) as (process, says, terminal):
        process.send_signal(signal.SIGHUP)  # by somebody who wants a reload: the terminal is there
        assert says.readline() == b"heard\n"
        os.close(terminal)
        assert process.wait(PATIENCE_S) == 7


def test_under_nohup_it_outlives_its_terminal() -> None:
    with in_terminal(TAKES_TERMINAL + IS_DETACHED + LISTENS) as (process, says, terminal):
        os.close(terminal)
        assert says.readline() == b"heard\n"
        process.terminate()
        assert process.wait(PATIENCE_S) == 7
