"""Orders for everything that matches: counted first, then watched to their end."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, NamedTuple, TypeVar

import typer

from gateway.api.desk import Desk, LedgerDesk
from gateway.api.operation import Operation
from gateway.api.operations.orders import (
    RESUME_ORDER,
    SHOW_ORDER,
    STOP_ORDER,
    OrderIdParams,
    OrderingParams,
    ResumeParams,
    StopParams,
    carry_out,
)
from gateway.api.shapes import Group, Ordered, OrderRow
from gateway.cli.asking import ask, at_desk
from gateway.cli.output import complain, console, print_rows
from gateway.cli.progress import progress
from gateway.errors import CommandFailed, GatewayError
from gateway.ledger.connection import TROUBLE
from gateway.notation.quantities import format_count
from gateway.operate.bulk import effects_ahead, effects_report

P = TypeVar("P", bound=OrderingParams)

POLL_S: Final = 0.5
INTERRUPTED: Final = 130


class Words(NamedTuple):
    """How an action is spoken of."""

    command: str
    verb: str
    doing: str
    done: str
    what: str
    left: str


UNKNOWN_EFFECT: Final = "unknown effect"
WORDS: Final = {
    "replay": Words("replay", "Replay", "replaying", "replayed", "dead letter", "no longer dead"),
    "discard": Words(
        "discard", "Discard", "discarding", "discarded", "dead letter", "no longer dead"
    ),
    "deliver": Words(
        "replay", "Deliver", "delivering", "delivered", "event", "delivered by others"
    ),
    "retry_effects": Words(
        "effects retry", "Retry", "retrying", "retried", UNKNOWN_EFFECT, "resolved or running"
    ),
    "confirm_effects": Words(
        "effects confirm", "Confirm", "confirming", "confirmed", UNKNOWN_EFFECT, "resolved"
    ),
}


def order_all(
    operation: Operation[P, Ordered],
    params: P,
    action: str,
    *,
    dry_run: bool,
    yes: bool,
    url: str | None,
) -> None:
    """Counts what matches, asks, and carries it out."""
    if not (dry_run or yes or sys.stdin.isatty()):
        raise typer.BadParameter(
            "there is no terminal to ask on: order it with --yes, or only count with --dry-run"
        )
    count = ask(url, operation, params.model_copy(update={"dry_run": True}))
    given = params.model_dump()
    _print_count(action, count, given.get("handler"), given.get("effects", "keep"))
    if dry_run or not count["total"]:
        return
    if not yes and not typer.confirm(f"{WORDS[action].verb} them?"):
        raise CommandFailed("nothing was done")
    as_counted = params.model_copy(update={"as_of": count["as_of"]})

    async def begin(desk: Desk) -> tuple[OrderRow, bool] | None:
        ordered = await desk.ask(operation, as_counted)
        return None if ordered["order"] is None else await _follow(desk, ordered["order"], url)

    _report(at_desk(url, begin), url)


def go_on(actions: set[str], params: ResumeParams, url: str | None) -> None:
    """Resumes an order of one of these kinds."""
    order_id = params.order_id

    async def resume(desk: Desk) -> tuple[OrderRow, bool]:
        found = await desk.ask(SHOW_ORDER, OrderIdParams(order_id=order_id))
        if found["action"] not in actions:
            command = f"gateway {WORDS[found['action']].command} --resume {order_id}"
            raise CommandFailed(f"order {order_id} is one to {found['action']}: use `{command}`")
        return await _follow(desk, await desk.ask(RESUME_ORDER, params), url)

    _report(at_desk(url, resume), url)


def _print_count(action: str, count: Ordered, handler: str | None, effects: str) -> None:
    words, total = WORDS[action], count["total"]
    if not total:
        hint = "" if action == "deliver" else name_in_full(handler)  # there it is a known one
        console().print(f"No {words.what}s match.{hint}", markup=False)
        return
    print_groups(count["groups"], by="type" if action == "deliver" else "error")
    shown = sum(group["count"] for group in count["groups"])
    out = console()
    if shown < total:
        out.print(f"and {total - shown:,} in smaller groups", style="dim")
    gone = 0 if action in ("discard", "confirm_effects") else count["without_payload"]
    lost = f"; {gone:,} of them have lost their payload and will be skipped" if gone else ""
    match = "matches" if total == 1 else "match"
    out.print(f"{format_count(total, words.what)} {match}{lost}.", markup=False)
    if ahead := effects_ahead(effects, count["effects_kept"], count["effects_unknown"]):
        out.print(f"{ahead}.", markup=False)


def name_in_full(handler: str | None) -> str:
    """Where nothing is found of a handler: most likely only its module was named."""
    if handler is None:
        return ""
    return " A handler is named with its module and its function, as `gateway routes` shows it."


def print_groups(groups: list[Group], *, by: str, empty: str = "") -> None:
    """What matches, by what it has in common."""
    columns = ["count", "route", "handler", by, "first_at", "last_at"]
    if any(group["effect"] for group in groups):
        columns.insert(3, "effect")
    if by == "error":
        columns.append("delivery_id")
    print_rows(columns, groups, empty=empty)


async def _follow(desk: Desk, order: OrderRow, url: str | None) -> tuple[OrderRow, bool]:
    """Watches it to its end, or to a Ctrl-C, which stops it."""
    doing = f"order {order['order_id']}: {WORDS[order['action']].doing}"
    try:
        with (
            _interruptible() as interrupted,
            progress(doing, order["total"], done=_done(order)) as show,
        ):
            async with aclosing(_stages(desk, order)) as stages:
                async for order in stages:
                    show(_done(order))
                    if interrupted.is_set() and order["status"] == "running":
                        params = StopParams(order_id=order["order_id"])
                        return await desk.ask(STOP_ORDER, params), True
    except (GatewayError, *TROUBLE):
        complain(f"{_standing(order)}; go on with `{_resume_command(order, url)}`")
        raise
    return order, False


async def _stages(desk: Desk, order: OrderRow) -> AsyncGenerator[OrderRow, None]:
    """How it stands after each step of ours, or every now and then where another makes them."""
    if isinstance(desk, LedgerDesk):
        async with aclosing(carry_out(desk.office, order)) as steps:
            async for stepped in steps:
                yield stepped
        return
    while order["status"] == "running" and not order["is_idle"]:
        await asyncio.sleep(POLL_S)
        order = await desk.ask(SHOW_ORDER, OrderIdParams(order_id=order["order_id"]))
        yield order


@contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """Ctrl-C lets the current step end; a second one does not."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _done(order: OrderRow) -> int:
    return order["moved"] + order["skipped"]


def _standing(order: OrderRow) -> str:
    return f"order {order['order_id']} stands at {_done(order):,} of {order['total']:,}"


def _resume_command(order: OrderRow, url: str | None) -> str:
    command = f"gateway {WORDS[order['action']].command} --resume {order['order_id']}"
    return command if url is None else f"{command} --url {url}"


def _report(ended: tuple[OrderRow, bool] | None, url: str | None) -> None:
    """How it ended, and the exit code for it."""
    if ended is None:
        console().print("Nothing matches any more.")
        return
    order, was_interrupted = ended
    if order["status"] == "done":
        console().print(_summary(order), markup=False)
        return
    why = "is stopped" if order["status"] == "stopped" else "has nobody at it any more"
    how = f"go on with `{_resume_command(order, url)}`"
    complain(f"order {order['order_id']} {why}, at {_done(order):,} of {order['total']:,}; {how}")
    raise typer.Exit(INTERRUPTED if was_interrupted else 1)


def _summary(order: OrderRow) -> str:
    words = WORDS[order["action"]]
    parts = [f"{order['moved']:,} {words.done}"]
    if order["skipped"]:
        parts.append(f"{order['skipped']:,} skipped, whose payload is gone")
    if (others := order["total"] - _done(order)) > 0:
        parts.append(f"{others:,} {words.left}")
    effects = effects_report(order["effects"], order["effects_kept"], order["effects_unknown"])
    return f"Order {order['order_id']} is done: {', '.join(parts)}{effects}."
