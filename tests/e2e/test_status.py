"""`gateway status` after real traffic, as JSON, from afar, and watched on a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.ports import free_port
from tests.support.processes import Project, stripe_request
from tests.support.waiting import PATIENCE_S, until

TOKEN = "a token of the suite's own".replace(" ", "-")


def report(project: Project, *arguments: str, **environ: str) -> dict[str, Any]:
    [found] = json.loads(project.run("status", "--json", *arguments, **environ).stdout)
    assert isinstance(found, dict)
    return found


async def test_status_after_real_traffic(project: Project, ledger: Reader) -> None:
    """What is shown is what was sent and run, exactly: both processes stopped cleanly."""
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving, project.process("worker") as worker:
        await serving.ready()
        requests = [stripe_request(f"evt_{n}") for n in range(40)]
        await serving.post_all(requests)
        await serving.post_all(requests[:7])
        forged = [stripe_request(f"bad_{n}", secret="whsec_another") for n in range(12)]
        await serving.post_all(forged)
        await until(lambda: worker.output.count("delivery_done") == 40)
        await until(lambda: len(report(project)["workers"]) == 1)
        worker.end()
        serving.running.end()
    found = report(project)
    [github, stripe] = found["routes"]
    assert stripe["hour"] == {"accepted": 40, "duplicate": 7, "ignored": 0, "refused": 12}
    assert (stripe["last_hour"], stripe["refused_as"]) == (40, {"BAD_SIGNATURE": 12})
    assert stripe["p50_ms"] <= stripe["p99_ms"]
    assert (github["route"], github["last_event_at"]) == ("github", None)
    [handler] = found["handlers"]
    assert (handler["handler"], handler["runs"], handler["success"]) == (
        "handlers.effects.count", 40, 1,
    )  # fmt: skip
    assert handler["p50_ms"] <= handler["p99_ms"]
    assert found["redis"]["reachable"] is True
    text = project.run("status").stdout
    assert "no worker is alive" in text
    assert "12 of 59 requests refused as BAD_SIGNATURE" in text


async def test_status_of_an_orphan_and_without_redis(
    project: Project, ledger: Reader, database_url: str
) -> None:
    await claim_all(
        database_url, [make_claim("evt_1", handlers=["handlers.effects.count", "gone"])]
    )
    with project.process("worker") as worker:
        await worker.says("delivery_done")
        pending = [h for h in report(project)["handlers"] if h["pending"]]
        assert [(h["handler"], h["pending"], h["orphaned"]) for h in pending] == [("gone", 1, True)]
        assert "orphaned: no worker has this handler" in project.run("status").stdout
    away = report(project, GATEWAY_REDIS_URL=f"redis://127.0.0.1:{free_port()}")
    assert away["redis"]["reachable"] is False
    assert away["workers"] == []


async def test_status_from_afar_is_the_same(project: Project) -> None:
    with project.serve(GATEWAY_ADMIN_TOKEN=TOKEN) as serving:
        await serving.ready()
        await serving.post(*stripe_request("evt_1"))

        def counted() -> bool:
            far = report(project, "--url", serving.url, GATEWAY_ADMIN_TOKEN=TOKEN)
            [_, stripe] = far["routes"]
            return bool(stripe["last_hour"] == 1)

        await until(counted)
        far = report(project, "--url", serving.url, GATEWAY_ADMIN_TOKEN=TOKEN)
        near = report(project)
        for changing in ("at", "redis", "postgres", "attention"):
            del far[changing], near[changing]
        assert far == near


async def test_without_postgres_the_rest_is_shown_and_the_exit_code_is_1(project: Project) -> None:
    url = f"postgresql://ann:hush@127.0.0.1:{free_port()}/none"
    result = project.run("status", GATEWAY_DATABASE_URL=url)
    assert result.returncode == 1
    assert "Postgres cannot be reached" in result.stdout
    assert "Spool" in result.stdout
    assert "hush" not in result.stdout + result.stderr


def test_watch_takes_an_interval_and_no_json(project: Project) -> None:
    for wrong in (["--every", "2"], ["--every", "1ms"], ["--json"]):
        result = project.run("status", "--watch", *wrong)
        assert result.returncode == 2, wrong


@contextmanager
def on_terminal(project: Project, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal of 100 by 40."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=project.directory,
        env={**project.environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # What a shell starts in the background ignores it, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)


async def test_watch_refreshes_in_place_and_ends_with_ctrl_c(project: Project) -> None:
    with on_terminal(project, "status", "--watch", "--every", "200ms") as (process, terminal):
        seen = bytearray()

        def read() -> str:
            with suppress(BlockingIOError, OSError):
                seen.extend(os.read(terminal, 65536))
            return seen.decode("utf-8", "replace")

        await until(lambda: len(set(re.findall(r"\d\d:\d\d:\d\d UTC", read()))) >= 3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 20) == 0
        text = read()
        assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1, (
            "the screen is given back"
        )
        assert "Traceback" not in text
        assert "Ctrl-C ends" in text
