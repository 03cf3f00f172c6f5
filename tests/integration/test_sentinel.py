"""Through real Sentinels: the master moves, and nobody has to be told."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from arq.connections import ArqRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from gateway.ledger.claims import Claimer
from gateway.queue.connection import connect_redis
from gateway.queue.wake_ups import WakeUpSender
from gateway.queue.worker import listen_forever
from tests.support.ledger import Reader, make_claim
from tests.support.sentinel import PASSWORD, SENTINEL_PASSWORD, Watched, watched
from tests.support.waiting import until
from tests.support.workers import count, subscribe, working


@pytest.fixture(scope="module")
def module_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("sentinel")) as redis:
        yield redis


@pytest.fixture
def redis_set(module_set: Watched) -> Iterator[Watched]:
    """A master, a replica and three Sentinels, of which a test may kill some."""
    yield module_set
    module_set.start_again()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[ArqRedis]:
    redis = connect_redis(url)
    try:
        yield redis
    finally:
        await redis.aclose(close_connection_pool=True)


@asynccontextmanager
async def claiming(url: str, hand_off: WakeUpSender) -> AsyncIterator[Claimer]:
    claimer = Claimer(url, on_accepted=hand_off.offer)
    await claimer.start()
    try:
        yield claimer
    finally:
        await claimer.stop()


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[list[int]]:
    """What a worker is told of."""
    heard: list[int] = []
    task = asyncio.create_task(listen_forever(url, heard.extend))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait({task})


async def sent(hand_off: WakeUpSender, heard: list[int], delivery_id: int) -> bool:
    """Offers it until it is heard: what is sent while the master moves may get lost."""
    await hand_off.send([delivery_id])
    return delivery_id in heard


async def test_the_hand_off_follows_the_master(redis_set: Watched) -> None:
    hand_off = WakeUpSender(connect_redis(redis_set.url), max_depth=1000)
    async with listening(redis_set.url) as heard:
        await until(partial(sent, hand_off, heard, 1))
        await asyncio.to_thread(redis_set.fail_over)
        await until(partial(sent, hand_off, heard, 2))
        await asyncio.to_thread(redis_set.sentinels[0].kill)
        await until(partial(sent, hand_off, heard, 3))
    await hand_off.stop()


async def test_a_master_that_dies_under_load_loses_nothing(
    redis_set: Watched, database_url: str, ledger: Reader
) -> None:
    hand_off = WakeUpSender(connect_redis(redis_set.url), max_depth=1000)
    await hand_off.start()
    async with working(database_url, subscribe(count)) as worker:
        hearing = asyncio.create_task(listen_forever(redis_set.url, worker.hint))
        async with claiming(database_url, hand_off) as claimer:
            claims = asyncio.gather(*(claimer.claim(make_claim()) for _ in range(200)))
            moved = asyncio.create_task(asyncio.to_thread(redis_set.kill_master))
            await claims
            await asyncio.gather(*(claimer.claim(make_claim()) for _ in range(100)))
            await moved
            await claimer.claim(make_claim("evt_after"))
            await until(partial(_is_done, ledger, 301))
        hearing.cancel()
        await asyncio.wait({hearing})
    await hand_off.stop()
    assert await ledger.effects() == 301
    assert await ledger.value("select count(distinct event_id) from public.effects") == 301


async def _is_done(ledger: Reader, deliveries: int) -> bool:
    return await ledger.statuses() == {"done": deliveries}


async def test_a_name_that_no_sentinel_knows_is_told(redis_set: Watched) -> None:
    url = redis_set.url.replace("/mymaster/", "/another/")
    async with connected(url) as redis:
        with pytest.raises(RedisConnectionError) as refusal:
            await redis.ping()
    said = str(refusal.value)
    assert said.startswith("no Sentinel names a master 'another': 127.0.0.1:")
    assert "knows no such master (it knows: mymaster)" in said
    assert PASSWORD not in said


async def test_sentinels_that_are_all_away_are_told_of_once_and_work_goes_on(
    redis_set: Watched, database_url: str, ledger: Reader
) -> None:
    for sentinel in redis_set.sentinels:
        sentinel.kill()
    hand_off = WakeUpSender(connect_redis(redis_set.url), max_depth=1000)
    await hand_off.start()
    with capture_logs() as logs:
        async with working(database_url, subscribe(count)):
            async with claiming(database_url, hand_off) as claimer:
                for _ in range(3):
                    await claimer.claim(make_claim())
            await until(partial(_is_done, ledger, 3))
            await until(lambda: [line for line in logs if line["event"] == "redis_away"])
    await hand_off.stop()
    [line] = [line for line in logs if line["event"] == "redis_away"]
    assert line["error"].count("127.0.0.1:") >= 3
    assert not any(secret in str(logs) for secret in (PASSWORD, SENTINEL_PASSWORD))


@pytest.mark.parametrize("of", ["a dead server", "a replica"])
async def test_a_sentinel_that_is_wrong_keeps_nobody_from_the_others(
    redis_set: Watched, tmp_path: Path, of: str
) -> None:
    with watched(tmp_path, nodes=1, sentinels=1) as other:
        [wrong], [dead] = other.sentinels, other.nodes
        dead.kill()
        wrong.mislead(dead if of == "a dead server" else redis_set.replica())
        url = redis_set.url.replace("@", f"@{wrong.host}:{wrong.port},")
        hand_off = WakeUpSender(connect_redis(url), max_depth=1000)
        async with listening(url) as heard:
            await until(partial(sent, hand_off, heard, 1))
        await hand_off.stop()


@pytest.mark.parametrize("of", ["servers", "sentinels"])
async def test_a_wrong_password_is_told_and_not_shown(redis_set: Watched, of: str) -> None:
    wrong = "not-the-right-one"
    known = PASSWORD if of == "servers" else SENTINEL_PASSWORD
    async with connected(redis_set.url.replace(known, wrong)) as redis:
        with pytest.raises(RedisConnectionError) as refusal:
            await redis.ping()
    assert "password" in str(refusal.value)
    assert wrong not in str(refusal.value)
