"""`ctx.once`: what is remembered of a call, and what becomes of one whose end nobody knows."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest

from gateway import Context, Event, NotSent
from gateway.ledger.effects import begin_effect
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until
from tests.support.workers import Function, subscribe, working


class Callee:
    """Something outside: counts what reaches it."""

    def __init__(self, *answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answers = list(answers)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((*args, *kwargs.values()))
        answer = self._answers.pop(0) if self._answers else {"id": f"msg_{len(self.calls)}"}
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def run(url: str, ledger: Reader, handler: Function, status: str = "done") -> None:
    """Until the only delivery has this status."""
    async with working(url, subscribe(handler)):
        await until(lambda: _is(ledger, status))


async def _is(ledger: Reader, status: str) -> bool:
    return bool((await ledger.delivery())["status"] == status)


def calling(callee: Callee, fail_first: int = 0, **options: Any) -> tuple[Function, list[Any]]:
    """A handler that calls and keeps what it got; its first runs fail after the call."""
    got: list[Any] = []

    async def handler(event: Event, ctx: Context) -> None:
        got.append(await ctx.once("receipt", callee, event.id, **options))
        if len(got) <= fail_first:
            raise RuntimeError("after the call")

    return handler, got


async def test_a_rerun_gets_the_kept_result_and_calls_nobody(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee()
    handler, got = calling(callee, fail_first=2)
    await run(database_url, ledger, handler)
    assert callee.calls == [("evt_1",)]
    assert got == [{"id": "msg_1"}] * 3
    effect = await ledger.row("select status, calls, result::text from gateway.effects")
    assert effect == {"status": "done", "calls": 1, "result": '{"id":"msg_1"}'}


async def test_a_replay_of_what_is_done_gets_the_kept_result(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee()
    handler, got = calling(callee)
    await run(database_url, ledger, handler)
    async with working(database_url, subscribe(handler)):
        await ledger.replay((await ledger.delivery())["id"])
        await until(lambda: len(got) == 2)
    assert (len(callee.calls), got) == (1, [{"id": "msg_1"}] * 2)


@pytest.mark.parametrize(
    "error",
    [
        NotSent("the mail server said no before the body"),
        httpx.ConnectError("refused"),
        ConnectionRefusedError("refused"),
    ],
)
@pytest.mark.parametrize("unknown", ["retry", "skip"])
async def test_an_error_that_proves_that_nothing_was_sent_lets_the_next_run_call(
    database_url: str, ledger: Reader, error: Exception, unknown: str
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(error)
    handler, got = calling(callee, unknown=unknown)
    await run(database_url, ledger, handler)
    assert (len(callee.calls), got) == (2, [{"id": "msg_2"}])
    assert await ledger.outcomes() == ["retry", "done"]


async def test_skip_never_calls_a_second_time_through_a_time_out(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("it was sent, and nobody answered"))
    handler, got = calling(callee, unknown="skip")
    await run(database_url, ledger, handler)
    assert (len(callee.calls), got) == (1, [None])
    effect = await ledger.row(
        "select status, error, unknown_at is not null as at from gateway.effects"
    )
    assert effect == {"status": "unknown", "error": "ReadTimeout", "at": True}


async def test_retry_calls_again_under_the_same_key_after_a_time_out(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("it was sent, and nobody answered"))

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("receipt", callee, key=ctx.idempotency_key("receipt"))

    await run(database_url, ledger, handler)
    assert len(callee.calls) == 2
    assert callee.calls[0] == callee.calls[1]
    assert (await ledger.row("select calls from gateway.effects"))["calls"] == 2


async def test_a_call_that_was_not_sent_does_not_make_an_earlier_unknown_one_undone(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("perhaps"), httpx.ConnectError("certainly not"))
    runs = 0

    async def handler(_: Event, ctx: Context) -> None:
        nonlocal runs
        runs += 1
        await ctx.once("receipt", callee, unknown="retry" if runs < 3 else "skip")

    await run(database_url, ledger, handler)
    assert len(callee.calls) == 2


async def test_a_result_that_is_no_json_fails_the_run_but_the_call_is_not_repeated(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.Response(200))
    handler, got = calling(callee)
    await run(database_url, ledger, handler)
    assert (len(callee.calls), got) == (1, [None])
    error = await ledger.value("select error from gateway.attempts where outcome = 'retry'")
    assert "cannot keep the result (Response)" in error


async def test_a_name_twice_in_one_run_is_an_error_instead_of_a_call_that_is_not_made(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee()

    async def handler(_: Event, ctx: Context) -> None:
        for to in ("ann", "bob"):
            await ctx.once("mail", callee, to)

    await run(database_url, ledger, handler, status="dead")
    assert callee.calls == [("ann",)]
    assert "ctx.once('mail') twice in one run" in (await ledger.delivery())["error"]


async def test_a_run_may_catch_what_the_call_raises_and_try_again(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("perhaps"))

    async def handler(_: Event, ctx: Context) -> None:
        with suppress(httpx.ReadTimeout):
            await ctx.once("mail", callee)
        await ctx.once("mail", callee)

    await run(database_url, ledger, handler)
    assert len(callee.calls) == 2


async def test_a_run_that_catches_the_error_and_completes_leaves_the_effect_unknown(
    database_url: str, ledger: Reader
) -> None:
    """Also with `retry`: there is no next run that could call again."""
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("perhaps"))

    async def handler(_: Event, ctx: Context) -> None:
        with suppress(httpx.ReadTimeout):
            await ctx.once("mail", callee)

    await run(database_url, ledger, handler)
    assert await ledger.value("select status from gateway.effects") == "unknown"


@pytest.mark.parametrize("second", [False, True], ids=["in the next run", "in the same run"])
async def test_a_caught_refusal_does_not_hide_an_earlier_call_of_unknown_outcome(
    database_url: str, ledger: Reader, second: bool
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("perhaps"), NotSent("certainly not"))

    async def handler(_: Event, ctx: Context) -> None:
        if second:
            with suppress(httpx.ReadTimeout):
                await ctx.once("mail", callee)
        with suppress(NotSent):
            await ctx.once("mail", callee)

    await run(database_url, ledger, handler)
    assert len(callee.calls) == 2
    effect = await ledger.row("select status, error from gateway.effects")
    assert effect == {"status": "unknown", "error": "NotSent"}


async def test_a_caught_refusal_of_the_only_call_leaves_nothing_to_resolve(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(NotSent("certainly not"))

    async def handler(_: Event, ctx: Context) -> None:
        with suppress(NotSent):
            await ctx.once("mail", callee)

    await run(database_url, ledger, handler)
    assert await ledger.value("select count(*) from gateway.effects") == 0


@pytest.mark.parametrize(
    "statement", ["", "select 1", "set transaction isolation level serializable; select 1"]
)
async def test_an_effect_that_a_later_run_does_not_ask_for_is_listed_as_unknown(
    database_url: str, ledger: Reader, statement: str
) -> None:
    """With a transaction of the run and without one."""
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee(httpx.ReadTimeout("perhaps"))

    async def handler(_: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            await ctx.once("mail", callee)
        elif statement:
            await ctx.db.execute(statement)

    await run(database_url, ledger, handler)
    effect = await ledger.row("select status, error from gateway.effects")
    assert effect == {"status": "unknown", "error": "ReadTimeout"}


async def test_an_effect_is_unknown_if_the_handler_goes_on_without_the_record_of_its_call(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written, its answer is lost, and the handler swallows the error."""
    await claim_all(database_url, [make_claim("evt_1")])
    callee = Callee()

    async def begin_unheard(*args: Any, **options: Any) -> Any:
        await begin_effect(*args, **options)
        raise ConnectionResetError("the answer was lost")

    async def handler(_: Event, ctx: Context) -> None:
        with suppress(Exception):
            await ctx.once("mail", callee)

    monkeypatch.setattr("gateway.worker.effects.begin_effect", begin_unheard)
    await run(database_url, ledger, handler)
    assert callee.calls == []
    assert await ledger.value("select status from gateway.effects") == "unknown"


async def test_a_call_that_outlives_its_handler_is_unknown_until_it_ends(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    called, go = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def slow_call() -> str:
        called.set()
        await go.wait()
        return "sent"

    async def handler(_: Event, ctx: Context) -> None:
        left.append(asyncio.create_task(ctx.once("mail", slow_call)))
        await called.wait()

    async with working(database_url, subscribe(handler)):
        await until(lambda: _is(ledger, "done"))
        assert await ledger.value("select status from gateway.effects") == "unknown"
        go.set()
        await left[0]
    effect = await ledger.row("select status, unknown_at, result from gateway.effects")
    assert effect == {"status": "done", "unknown_at": None, "result": '"sent"'}


async def test_what_is_no_function_is_refused(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim("evt_1")])

    async def handler(_: Event, ctx: Context) -> None:
        with pytest.raises(TypeError, match=r"ctx\.once\('mail'\) needs a function"):
            await ctx.once("mail", "not a function")  # type: ignore[arg-type]

    await run(database_url, ledger, handler)


async def test_a_plain_function_and_a_text_with_a_null_byte_work(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    got: list[Any] = []

    async def handler(_: Event, ctx: Context) -> None:
        got.append(await ctx.once("plain", lambda: "a\0b"))
        if ctx.attempt == 1:
            raise RuntimeError("again")

    await run(database_url, ledger, handler)
    assert got == ["a\0b", "a\0b"]


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.once("", print),
        lambda ctx: ctx.once("a\nb", print),
        lambda ctx: ctx.once("x" * 201, print),
        lambda ctx: ctx.once("x", print, unknown="maybe"),
    ],
)
async def test_a_name_or_an_option_that_cannot_be_is_refused_before_anything_happens(
    database_url: str, ledger: Reader, call: Callable[[Context], Awaitable[Any]]
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])

    async def handler(_: Event, ctx: Context) -> None:
        with pytest.raises(ValueError, match=r"ctx\.once.*found"):
            await call(ctx)

    await run(database_url, ledger, handler)
    assert await ledger.value("select count(*) from gateway.effects") == 0


async def test_a_zombie_whose_lease_is_gone_makes_no_call(
    database_url: str, ledger: Reader
) -> None:
    """It comes back after another worker has the delivery: its fence is the lease's token."""
    await claim_all(database_url, [make_claim("evt_1")])
    callee, zombie = Callee(), asyncio.Event()
    runs = 0

    async def handler(event: Event, ctx: Context) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            zombie.set()
            await until(lambda: runs == 2)
        await ctx.once("receipt", callee, runs, unknown="skip")

    async with working(database_url, subscribe(handler), sweep=timedelta(seconds=0.1)):
        await zombie.wait()
        await ledger.run(
            "update gateway.deliveries set status = 'pending', lease_token = null, due_at = now()"
        )
        await until(lambda: _is(ledger, "done"))
    assert len(callee.calls) == 1


async def test_a_run_that_lost_its_lease_in_the_middle_of_a_call_leaves_skip_at_one_call(
    database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    called, go = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def slow_call(run: int) -> str:
        calls.append(run)
        called.set()
        await go.wait()
        return "sent"

    async def handler(_: Event, ctx: Context) -> None:
        await ctx.once("receipt", slow_call, len(calls), unknown="skip")

    async with working(database_url, subscribe(handler)):
        await called.wait()
        await ledger.run(
            "update gateway.deliveries set status = 'pending', lease_token = null, due_at = now()"
        )
        await until(lambda: _is(ledger, "done"))
        go.set()
    assert calls == [0]


async def test_a_run_that_is_cancelled_before_its_call_leaves_the_next_one_to_make_it(
    database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also `skip`: it is on record as begun, but it is known that nobody was called."""
    await claim_all(database_url, [make_claim("evt_1")])
    callee, begun, cancelled = Callee(), asyncio.Event(), asyncio.Event()

    async def begin_slowly(*args: Any, **options: Any) -> Any:
        effect = await begin_effect(*args, **options)
        begun.set()
        await cancelled.wait()  # the answer is on its way
        return effect

    async def handler(_: Event, ctx: Context) -> None:
        call = asyncio.create_task(ctx.once("receipt", callee, unknown="skip"))
        await begun.wait()
        if ctx.attempt == 1:
            call.cancel()
            cancelled.set()
        await call

    monkeypatch.setattr("gateway.worker.effects.begin_effect", begin_slowly)
    await run(database_url, ledger, handler)
    assert len(callee.calls) == 1


async def test_effects_go_with_their_delivery(database_url: str, ledger: Reader) -> None:
    await claim_all(database_url, [make_claim("evt_1")])
    handler, _ = calling(Callee())
    await run(database_url, ledger, handler)
    await ledger.run(
        "update gateway.deliveries set finished_at = now() - interval '40 d';"
        "update gateway.processed_events set received_at = now() - interval '40 d'"
    )
    async with working(database_url, subscribe(handler)):
        await until(lambda: _none_left(ledger))


async def _none_left(ledger: Reader) -> bool:
    return bool(await ledger.value("select count(*) = 0 from gateway.effects"))
