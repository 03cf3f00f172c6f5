"""The command `bulk`, and the start of bulk operations after a count and a confirmation."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from gateway.api.operation import Operation
from gateway.api.operation_client import LocalOperationClient, OperationClient
from gateway.api.operations.bulk import (
    LIST_BULK,
    RESUME_BULK,
    SHOW_BULK,
    STOP_BULK,
    BulkIdParams,
    BulkOptionsParams,
    ResumeBulkParams,
    StopBulkParams,
)
from gateway.api.parameters import PageParams
from gateway.api.shapes import BulkAnswer, Group
from gateway.base.errors import CommandFailed, GatewayError
from gateway.base.units import format_count
from gateway.cli.asking import (
    AsJson,
    Limit,
    Reason,
    Url,
    ask,
    ask_pages,
    at_desk,
    given,
    limit_of,
)
from gateway.cli.output import complain, console, print_json, print_rows, printable
from gateway.cli.progress import progress
from gateway.ledger.bulk import BulkOperation
from gateway.ledger.connection import TROUBLE
from gateway.operations.bulk import effects_ahead, effects_report, runner

P = TypeVar("P", bound=BulkOptionsParams)

Rate = Annotated[
    int | None,
    typer.Option("--rate", min=1, max=100_000, help="At most so many a second."),
]

POLL_S: Final = 0.5
INTERRUPTED: Final = 130


class Words(NamedTuple):
    """The words for an action."""

    verb: str
    doing: str
    done: str
    what: str
    left: str


UNKNOWN_EFFECT: Final = "unknown effect"
WORDS: Final = {
    "replay": Words("Replay", "replaying", "replayed", "dead letter", "no longer dead"),
    "discard": Words("Discard", "discarding", "discarded", "dead letter", "no longer dead"),
    "deliver": Words("Deliver", "delivering", "delivered", "event", "delivered by others"),
    "retry_effects": Words("Retry", "retrying", "retried", UNKNOWN_EFFECT, "resolved or running"),
    "confirm_effects": Words("Confirm", "confirming", "confirmed", UNKNOWN_EFFECT, "resolved"),
}


class BulkAction(StrEnum):
    """Actions on one bulk operation."""

    SHOW = "show"
    STOP = "stop"
    RESUME = "resume"


def register(app: typer.Typer) -> None:
    app.command()(bulk)


def bulk(
    doing: Annotated[
        BulkAction | None,
        typer.Argument(help="Show, stop or resume one; without it, list them.", show_default=False),
    ] = None,
    bulk_id: Annotated[
        int | None, typer.Argument(metavar="[ID]", min=1, max=2**63 - 1, help="Its id.")
    ] = None,
    rate: Rate = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List bulk operations, newest first, with their progress; show, stop or resume one.

    An idle one has no running process. [bold]stop[/bold] stops one, wherever it runs, after its
    current step. [bold]resume[/bold] continues one at its cursor, at another [bold]--rate[/bold] if
    given.

    Examples: [bold]gateway bulk[/bold], [bold]gateway bulk stop 7[/bold],
    [bold]gateway bulk resume 7 --rate 100[/bold]
    """
    if (doing is None) != (bulk_id is None):
        raise typer.BadParameter("give show, stop or resume together with an id")
    if rate is not None and doing is not BulkAction.RESUME:
        raise typer.BadParameter("--rate belongs to resume")
    if reason is not None and doing not in (BulkAction.STOP, BulkAction.RESUME):
        raise typer.BadParameter("--reason belongs to stop and resume")
    if limit is not None and doing is not None:
        raise typer.BadParameter("--limit belongs to the listing")
    if as_json and doing not in (None, BulkAction.SHOW):
        raise typer.BadParameter("--json belongs to the listing and to show")
    options, id = given(rate=rate, reason=reason), bulk_id or 0
    match doing:
        case BulkAction.STOP:
            found = ask(url, STOP_BULK, StopBulkParams(bulk_id=id, **options))
            line = f"bulk operation {id} is {found['status']}, at {_progress(found)}"
            console().print(line, markup=False)
        case BulkAction.RESUME:
            resume_all(ResumeBulkParams(bulk_id=id, **options), url)
        case BulkAction.SHOW:
            _list([ask(url, SHOW_BULK, BulkIdParams(bulk_id=id))], as_json)
        case None:
            _list(ask_pages(url, LIST_BULK, PageParams(), limit_of(limit, as_json)), as_json)


def _list(rows: list[BulkOperation], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    columns = ["bulk_id", "began_at", "action", "filter", "status", "progress", "actor", "reason"]
    print_rows(columns, [_shown(row) for row in rows], empty="There are no bulk operations yet.")


def _shown(row: BulkOperation) -> dict[str, Any]:
    asked = " ".join(f"--{name} {printable(value)}" for name, value in row["filter"].items())
    status = "idle" if row["is_idle"] else row["status"]
    return {**row, "filter": asked or None, "status": status, "progress": _progress(row)}


def _progress(row: BulkOperation) -> str:
    skipped = f", {row['skipped']:,} skipped" if row["skipped"] else ""
    return f"{row['moved']:,} of {row['total']:,}{skipped}"


def begin_all(
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
            "there is no terminal to ask on: confirm with --yes, or only count with --dry-run"
        )
    count = ask(url, operation, params.model_copy(update={"dry_run": True}))
    given = params.model_dump()
    _print_count(action, count, given.get("handler"), given.get("effects", "keep"))
    if dry_run or not count["total"]:
        return
    if not yes and not typer.confirm(f"{WORDS[action].verb} them?"):
        raise CommandFailed("nothing was done")
    as_counted = params.model_copy(update={"as_of": count["as_of"]})

    async def begin(desk: OperationClient) -> tuple[BulkOperation, bool] | None:
        begun = (await desk.ask(operation, as_counted))["bulk"]
        return None if begun is None else await _follow(desk, begun, url)

    _report(at_desk(url, begin), url)


def resume_all(params: ResumeBulkParams, url: str | None, *actions: str) -> None:
    """Resume a bulk operation, of one of these kinds if any are given."""

    async def resume(desk: OperationClient) -> tuple[BulkOperation, bool]:
        found = await desk.ask(SHOW_BULK, BulkIdParams(bulk_id=params.bulk_id))
        if actions and found["action"] not in actions:
            raise CommandFailed(
                f"bulk operation {params.bulk_id} is one to {found['action']}:"
                f" use `gateway bulk resume {params.bulk_id}`"
            )
        return await _follow(desk, await desk.ask(RESUME_BULK, params), url)

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


async def _follow(
    desk: OperationClient, bulk: BulkOperation, url: str | None
) -> tuple[BulkOperation, bool]:
    """Watch the operation to its end. Ctrl-C stops it."""
    doing = f"bulk operation {bulk['bulk_id']}: {WORDS[bulk['action']].doing}"
    try:
        with (
            _interruptible() as interrupted,
            progress(doing, bulk["total"], done=_done(bulk)) as show,
        ):
            async with aclosing(_steps(desk, bulk)) as steps:
                async for bulk in steps:
                    show(_done(bulk))
                    if interrupted.is_set() and bulk["status"] == "running":
                        params = StopBulkParams(bulk_id=bulk["bulk_id"])
                        return await desk.ask(STOP_BULK, params), True
    except (GatewayError, *TROUBLE):
        complain(f"{_standing(bulk, 'is')}; {_hint(bulk, url)}")
        raise
    return bulk, False


def _steps(desk: OperationClient, bulk: BulkOperation) -> AsyncGenerator[BulkOperation, None]:
    """Run the operation here, or watch it if a remote gateway runs it."""
    return (
        runner(desk.office).run(bulk)
        if isinstance(desk, LocalOperationClient)
        else _poll(desk, bulk)
    )


async def _poll(desk: OperationClient, bulk: BulkOperation) -> AsyncGenerator[BulkOperation, None]:
    while bulk["status"] == "running" and not bulk["is_idle"]:
        await asyncio.sleep(POLL_S)
        bulk = await desk.ask(SHOW_BULK, BulkIdParams(bulk_id=bulk["bulk_id"]))
        yield bulk


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


def _done(bulk: BulkOperation) -> int:
    return bulk["moved"] + bulk["skipped"]


def _standing(bulk: BulkOperation, state: str) -> str:
    return f"bulk operation {bulk['bulk_id']} {state} at {_done(bulk):,} of {bulk['total']:,}"


def _hint(bulk: BulkOperation, url: str | None) -> str:
    at = "" if url is None else f" --url {url}"
    return f"resume it with `gateway bulk resume {bulk['bulk_id']}{at}`"


def _report(ended: tuple[BulkOperation, bool] | None, url: str | None) -> None:
    """Print the result, and exit with the matching code."""
    if ended is None:
        console().print("Nothing matches any more.")
        return
    bulk, was_interrupted = ended
    if bulk["status"] == "done":
        console().print(_summary(bulk), markup=False)
        return
    state = "is stopped" if bulk["status"] == "stopped" else "has no running process, and is"
    complain(f"{_standing(bulk, state)}; {_hint(bulk, url)}")
    raise typer.Exit(INTERRUPTED if was_interrupted else 1)


def _summary(bulk: BulkOperation) -> str:
    words = WORDS[bulk["action"]]
    parts = [f"{bulk['moved']:,} {words.done}"]
    if bulk["skipped"]:
        parts.append(f"{bulk['skipped']:,} skipped, whose payload is gone")
    if (others := bulk["total"] - _done(bulk)) > 0:
        parts.append(f"{others:,} {words.left}")
    effects = effects_report(bulk["effects"], bulk["effects_kept"], bulk["effects_unknown"])
    return f"Bulk operation {bulk['bulk_id']} is done: {', '.join(parts)}{effects}."
