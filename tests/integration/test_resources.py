"""`@resource`: opened before the first delivery, closed after the last, shared by all handlers."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway import Context, Event, resource
from gateway.base.errors import CommandFailed
from gateway.config.registry import Resource
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import subscribe, working


def named(name: str, seen: list[str], *, fails: str = "") -> Resource:
    @resource
    async def open_it() -> AsyncIterator[str]:
        seen.append(f"open {name}")
        if fails == "open":
            raise ConnectionRefusedError("nobody listens")
        yield f"the {name}"
        seen.append(f"close {name}")
        if fails == "close":
            raise RuntimeError("cannot let go")

    return Resource(name=name, function=open_it, place="handlers/mail.py:3")


async def test_a_resource_outlives_all_deliveries_and_is_closed_in_reverse(
    database_url: str, ledger: Reader
) -> None:
    seen: list[str] = []

    async def handler(_: Event, ctx: Context) -> None:
        seen.append(f"{ctx.resources.pool}, {ctx.resources.mailer}")

    await claim_all(database_url, [make_claim("evt_1")])
    resources = [named("pool", seen), named("mailer", seen, fails="close")]
    async with working(database_url, subscribe(handler), resources=resources):
        await until(lambda: len(seen) == 3)
    assert seen == [
        "open pool", "open mailer", "the pool, the mailer", "close mailer", "close pool",
    ]  # fmt: skip


async def test_a_worker_does_not_start_without_its_resources_and_closes_those_it_has(
    database_url: str,
) -> None:
    seen: list[str] = []
    resources = [named("pool", seen), named("mailer", seen, fails="open")]
    message = (
        r"resource mailer \(handlers/mail.py:3\) cannot be opened: ConnectionRefusedError: nobody"
    )
    with pytest.raises(CommandFailed, match=message):
        async with working(database_url, resources=resources):
            pass
    assert seen == ["open pool", "open mailer", "close pool"]


async def test_a_resource_that_does_not_exist_is_named(database_url: str, ledger: Reader) -> None:
    async def handler(_: Event, ctx: Context) -> None:
        with pytest.raises(AttributeError, match=r"ctx\.resources\.mail: .* there is mailer"):
            _ = ctx.resources.mail

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), resources=[named("mailer", [])]):
        await until(lambda: _is_done(ledger))


async def test_a_handler_may_take_longer_than_the_lease(database_url: str, ledger: Reader) -> None:
    """The heartbeat renews it, up to the handler's own timeout."""
    runs = 0

    async def handler(_: Event, __: Context) -> None:
        nonlocal runs
        runs += 1
        await until(lambda: _outlived(ledger))

    await claim_all(database_url, [make_claim("evt_1")])
    async with working(database_url, subscribe(handler), lease=timedelta(seconds=1)):
        await until(lambda: _is_done(ledger))
    assert runs == 1
    assert await ledger.outcomes() == ["done"]


async def _outlived(ledger: Reader) -> bool:
    query = "select bool_and(now() > leased_at + interval '2 s') from gateway.deliveries"
    return bool(await ledger.value(query))


async def _is_done(ledger: Reader) -> bool:
    return bool((await ledger.delivery())["status"] == "done")


def test_only_an_async_generator_without_arguments_is_a_resource() -> None:
    async def no_generator() -> None:
        """Yields nothing."""

    async def with_argument(url: str) -> AsyncIterator[str]:
        yield url

    with pytest.raises(TypeError, match="not an async def that yields"):
        resource(no_generator)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with_argument, which takes arguments"):
        resource(with_argument)  # type: ignore[arg-type]
