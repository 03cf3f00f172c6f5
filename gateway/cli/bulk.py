"""Start bulk operations after a count and a confirmation, and watch them to their end."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Final, NamedTuple, TypeVar

import typer

from gateway.api.operation import Operation
from gateway.api.operation_client import LocalOperationClient, OperationClient
from gateway.api.operations.bulk import (
    RESUME_ORDER,
    SHOW_ORDER,
    STOP_ORDER,
    BulkIdParams,
    BulkOptionsParams,
    ResumeBulkParams,
    StopBulkParams,
    carry_out,
)
from gateway.api.shapes import BulkAnswer, BulkRow, Group
from gateway.base.errors import CommandFailed, GatewayError
from gateway.base.units import format_count
from gateway.cli.asking import ask, at_desk
from gateway.cli.output import complain, console, print_rows
from gateway.cli.progress import progress
from gateway.ledger.connection import TROUBLE
from gateway.operations.bulk import effects_ahead, effects_report

P = TypeVar("P", bound=BulkOptionsParams)

POLL_S: Final = 0.5
INTERRUPTED: Final = 130


class Words(NamedTuple):
    """The words for an action."""

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
    operation: Operation[P, BulkAnswer],
    params: P,
    action: str,
    *,
    dry_run: bool,
    yes: bool,
    url: str | None,
) -> None:
    """Count the matching rows, ask for confirmation, and run the bulk operation."""
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

    async def begin(desk: OperationClient) -> tuple[BulkRow, bool] | None:
        ordered = await desk.ask(operation, as_counted)
        return None if ordered["order"] is None else await _follow(desk, ordered["order"], url)

    _report(at_desk(url, begin), url)


def go_on(actions: set[str], params: ResumeBulkParams, url: str | None) -> None:
    """Resume a bulk operation of one of these kinds."""
    order_id = params.order_id

    async def resume(desk: OperationClient) -> tuple[BulkRow, bool]:
        found = await desk.ask(SHOW_ORDER, BulkIdParams(order_id=order_id))
        if found["action"] not in actions:
            command = f"gateway {WORDS[found['action']].command} --resume {order_id}"
            raise CommandFailed(f"order {order_id} is one to {found['action']}: use `{command}`")
        return await _follow(desk, await desk.ask(RESUME_ORDER, params), url)

    _report(at_desk(url, resume), url)


def _print_count(action: str, count: BulkAnswer, handler: str | None, effects: str) -> None:
    words, total = WORDS[action], count["total"]
    if not total:
        hint = "" if action == "deliver" else name_in_full(handler)  # deliver has checked the name
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
    """Return a hint for an empty result: most likely only the module of the handler was given."""
    if handler is None:
        return ""
    return " A handler is named with its module and its function, as `gateway routes` shows it."


def print_groups(groups: list[Group], *, by: str, empty: str = "") -> None:
    """Print the matching rows by group."""
    columns = ["count", "route", "handler", by, "first_at", "last_at"]
    if any(group["effect"] for group in groups):
        columns.insert(3, "effect")
    if by == "error":
        columns.append("delivery_id")
    print_rows(columns, groups, empty=empty)


async def _follow(desk: OperationClient, order: BulkRow, url: str | None) -> tuple[BulkRow, bool]:
    """Watch the operation to its end. Ctrl-C stops it."""
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
                        params = StopBulkParams(order_id=order["order_id"])
                        return await desk.ask(STOP_ORDER, params), True
    except (GatewayError, *TROUBLE):
        complain(f"{_standing(order)}; go on with `{_resume_command(order, url)}`")
        raise
    return order, False


async def _stages(desk: OperationClient, order: BulkRow) -> AsyncGenerator[BulkRow, None]:
    """Yield the state after each step, or at intervals if another process runs the operation."""
    if isinstance(desk, LocalOperationClient):
        async with aclosing(carry_out(desk.office, order)) as steps:
            async for stepped in steps:
                yield stepped
        return
    while order["status"] == "running" and not order["is_idle"]:
        await asyncio.sleep(POLL_S)
        order = await desk.ask(SHOW_ORDER, BulkIdParams(order_id=order["order_id"]))
        yield order


@contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """Let the current step finish after Ctrl-C. A second Ctrl-C interrupts it."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _done(order: BulkRow) -> int:
    return order["moved"] + order["skipped"]


def _standing(order: BulkRow) -> str:
    return f"order {order['order_id']} stands at {_done(order):,} of {order['total']:,}"


def _resume_command(order: BulkRow, url: str | None) -> str:
    command = f"gateway {WORDS[order['action']].command} --resume {order['order_id']}"
    return command if url is None else f"{command} --url {url}"


def _report(ended: tuple[BulkRow, bool] | None, url: str | None) -> None:
    """Print the result, and exit with the matching code."""
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


def _summary(order: BulkRow) -> str:
    words = WORDS[order["action"]]
    parts = [f"{order['moved']:,} {words.done}"]
    if order["skipped"]:
        parts.append(f"{order['skipped']:,} skipped, whose payload is gone")
    if (others := order["total"] - _done(order)) > 0:
        parts.append(f"{others:,} {words.left}")
    effects = effects_report(order["effects"], order["effects_kept"], order["effects_unknown"])
    return f"Order {order['order_id']} is done: {', '.join(parts)}{effects}."
