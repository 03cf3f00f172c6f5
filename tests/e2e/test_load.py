"""Too much load and hostile clients: good senders get their 200s, and nothing is lost."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.load.hostile import (
    HALF_A_BODY,
    HALF_A_HEAD,
    QUESTIONS,
    allow_files,
    drip,
    silent,
)
from tests.load.overload import generate, overload
from tests.load.senders import HOST, good_senders, port_of, read_status
from tests.support.ledger import Reader
from tests.support.needs import lacks
from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S, until

GOOD_CONNECTIONS = 2
MOST_GROWTH = 1.0
"""Of a process that has only just started; the minute of `python -m tests.load` is stricter."""


async def test_at_three_times_the_rate_the_excess_is_refused_and_nothing_is_lost(
    project: Project, ledger: Reader
) -> None:
    found = await overload(project, ledger, measure_s=3, seconds=8, normal_s=2)
    assert found.excess["accepted"] > 0
    assert found.excess["unavailable"] > 0
    assert found.excess["others"] + found.excess["failed"] == 0, found.excess
    assert found.normal["accepted"] == found.normal["sent"] > 0, found.normal
    assert found.serve.growth < MOST_GROWTH
    assert found.worker.growth < MOST_GROWTH
    assert found.acknowledged > 0
    assert (found.lost, found.repeated) == (0, 0)


async def test_slow_clients_and_those_that_never_read_are_cut_off(serving: Serving) -> None:
    port = port_of(serving)
    async with (
        asyncio.timeout(PATIENCE_S),
        good_senders(serving) as senders,
        silent(port, 3, QUESTIONS),
    ):
        heads, bodies = await asyncio.gather(
            asyncio.gather(*(drip(port, HALF_A_HEAD) for _ in range(100))),
            asyncio.gather(*(drip(port, HALF_A_BODY) for _ in range(100))),
        )
        await until(lambda: _established(port) <= GOOD_CONNECTIONS)
        await senders.answered(10)
    assert set(heads) == {b""}
    # One whose next byte meets the closed connection is reset before it can read the answer.
    assert {answer[:12] for answer in bodies} - {b""} == {b"HTTP/1.1 408"}


def _established(port: int) -> int:
    """How many connections to a port are open on the server's side."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_more_half_sent_requests_than_are_taken_at_once_keep_nobody_out(
    serving: Serving,
) -> None:
    port = port_of(serving)
    async with (
        silent(port, 600, HALF_A_BODY),
        silent(port, 600, HALF_A_HEAD),
        good_senders(serving) as senders,
    ):
        await senders.answered(100)


async def test_half_sent_bodies_do_not_use_up_the_room_for_bodies(project: Project) -> None:
    begin = b"POST /webhooks/github HTTP/1.1\r\nhost: gateway\r\ncontent-length: 1000000\r\n\r\n"
    with project.serve(GATEWAY_MAX_BUFFERED="4MiB") as serving:
        await serving.ready()
        async with silent(port_of(serving), 20, begin + b"x" * 990_000):
            large = [stripe_request(f"evt_{n}", extra="x" * 500_000) for n in range(5)]
            answers = [await serving.post(*request) for request in large]
    assert [answer.status_code for answer in answers] == [200] * 5


async def test_ten_thousand_idle_connections_keep_nobody_out(serving: Serving) -> None:
    if not allow_files(11_000):
        lacks("a hard limit of 11,000 open files")
    async with good_senders(serving) as senders, silent(port_of(serving), 10_000):
        await senders.answered(100)
        assert _open_files(serving) > 9_000


async def test_past_its_bound_the_stillest_connection_is_closed(project: Project) -> None:
    with project.serve(GATEWAY_MAX_CONNECTIONS="50") as serving:
        await serving.ready()
        async with silent(port_of(serving), 500), good_senders(serving) as senders:
            await senders.answered(50)
            assert _open_files(serving) < 150
            await serving.running.says("sent_away")


async def test_with_few_descriptors_it_keeps_few_connections(project: Project) -> None:
    """A limit that nobody can raise: it must neither die nor lose the ledger."""
    with _limited(project, files=200) as serving:
        await serving.ready()
        async with silent(port_of(serving), 1_000), good_senders(serving) as senders:
            await senders.answered(50)
        await serving.running.says("few_descriptors")


@contextmanager
def _limited(project: Project, *, files: int) -> Iterator[Serving]:
    port = free_port()
    limit = f'ulimit -n {files} && exec "$0" -m gateway serve'
    with project.started(["sh", "-c", limit, sys.executable], GATEWAY_PORT=str(port)) as running:
        yield Serving(running, f"http://{HOST}:{port}")


def _open_files(serving: Serving) -> int:
    return len(list(Path(f"/proc/{serving.running.process.pid}/fd").iterdir()))


@pytest.mark.parametrize(
    "fields",
    [
        b"x: " + b"y" * 70_000 + b"\r\n",
        b"x: " + b"y" * 200_000 + b"\r\n",
        b"a: b\r\n" * 3_000,
        b"a: b\r\n" * 30_000,
    ],
    ids=["70 kB", "200 kB", "3,000 fields", "30,000 fields"],
)
async def test_huge_heads_are_refused(serving: Serving, fields: bytes) -> None:
    async with good_senders(serving) as senders:
        statuses = await asyncio.gather(*(_ask(port_of(serving), fields) for _ in range(50)))
        await senders.answered(10)
    assert set(statuses) <= {"431", "cut off"}
    assert "431" in statuses


async def _ask(port: int, fields: bytes) -> str:
    reader, writer = await asyncio.open_connection(HOST, port)
    with closing(writer):
        writer.write(b"POST /webhooks/stripe HTTP/1.1\r\nhost: gateway\r\n" + fields + b"\r\n")
        try:
            return await read_status(reader)
        except (OSError, EOFError):
            return "cut off"  # its bytes met a closed connection before it could read the answer


async def test_a_flood_of_bad_signatures_starves_nobody(serving: Serving, tmp_path: Path) -> None:
    floods = [
        generate(
            port_of(serving),
            *("--bad", "--seconds", "5", "--answers", str(tmp_path / str(n))),
            within_s=60,
        )
        for n in range(2)
    ]
    async with good_senders(serving) as senders:
        for output in await asyncio.gather(*floods):
            figures = json.loads(output)
            assert figures["not_2xx"] == figures["requests"] > 1_000
        assert senders.answers.total() > 20
        await senders.answered(10)
