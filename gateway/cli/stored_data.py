"""The commands `prune` and `erase`."""

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any

import typer

from gateway.api.operation import Operation
from gateway.api.operation_client import OperationClient
from gateway.api.operations.stored_data import ERASE, PRUNE, EraseParams, PruneParams
from gateway.base.errors import CommandFailed
from gateway.base.units import format_count
from gateway.cli.asking import RouteName, Url, at_desk, given
from gateway.cli.output import complain, console, printable
from gateway.cli.progress import progress

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Piece = Mapping[str, Any]


def register(app: typer.Typer) -> None:
    app.command()(prune)
    app.command()(erase)


def prune(dry_run: DryRun = False, url: Url = None) -> None:
    """Delete now all data past its route's retention. Workers also do this all the time.

    Keys, payloads and dead letters have separate retention times. Waiting and running deliveries
    are never pruned.

    Example: [bold]gateway prune --dry-run[/bold]
    """

    async def work(desk: OperationClient) -> dict[str, Any]:
        doing = "counting" if dry_run else "pruning"
        with progress(f"{doing}: looked at", None) as show:
            return await _collect(
                _pieces(desk, PRUNE, PruneParams(dry_run=dry_run)),
                lambda total: show(total["looked_at"]),
            )

    total = at_desk(url, work)
    console().print(
        f"{'Past their retention' if dry_run else 'Forgotten'}: {total['keys']:,} events, "
        f"{total['payloads']:,} payloads, {total['dead']:,} dead letters, "
        f"{total['audit']:,} audit rows, {total['days']:,} days of payloads or attempts."
    )
    for route in total["left_alone"]:
        console().print(
            f"Route {printable(route)} is not in the configuration:"
            " its keys are kept, and its payloads until their day.",
            markup=False,
        )


def erase(
    account: Annotated[
        str | None, typer.Option("--account", help="All events of this account.")
    ] = None,
    event: Annotated[str | None, typer.Option("--event", help="Or this one event.")] = None,
    route: RouteName = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why, for the audit log; without names.")
    ] = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: for scripts.")] = False,
    url: Url = None,
) -> None:
    """Erase the stored data of an account's events, or of one event, but keep the keys.

    Erases bodies, headers, errors, keys from payloads and stored results. A late retry is still a
    duplicate. Waiting deliveries and dead letters are discarded. Running deliveries are left
    unchanged.

    Example: [bold]gateway erase --account acct_1Pabc --reason "request of 16 November"[/bold]
    """
    if (account is None) == (event is None):
        raise typer.BadParameter("give either --account or --event")
    if reason is None and not dry_run:
        raise typer.BadParameter("give a --reason, or only count with --dry-run")
    if not (dry_run or yes or sys.stdin.isatty()):
        raise typer.BadParameter(
            "there is no terminal to ask on: confirm with --yes, or only count with --dry-run"
        )
    subject = given(account=account, event_id=event, route=route)
    counted = at_desk(url, lambda desk: _erase(desk, EraseParams(**subject, dry_run=True)))
    found = counted["events"] + len(counted["running"])
    console().print(_standing(counted))
    if counted["spooled"]:
        console().print(
            f"{counted['spooled']:,} events wait in the spool, whosever they are: "
            "run it again when they are in."
        )
    if dry_run or (event is not None and not (found or counted["rejected"])):
        return
    # Reasons and bulk operations may still name the account after its events were pruned.
    question = (
        "Erase for good?"
        if found or counted["rejected"]
        else "Take its name out of reasons and bulk operations?"
    )
    if not yes and not typer.confirm(question):
        raise CommandFailed("nothing was done")
    params = EraseParams(**subject, reason=reason)
    _report(at_desk(url, lambda desk: _erase(desk, params, total=found)))


async def _erase(
    desk: OperationClient, params: EraseParams, total: int | None = None
) -> dict[str, Any]:
    with progress("counting" if params.dry_run else "erasing", total) as show:
        return await _collect(_pieces(desk, ERASE, params), lambda so_far: show(so_far["events"]))


async def _pieces(
    desk: OperationClient, operation: Operation[Any, Any], params: PruneParams | EraseParams
) -> AsyncIterator[Piece]:
    """Run the operation until there is no next piece."""
    after = None
    while True:
        piece = await desk.ask(operation, params.model_copy(update={"after": after}))
        yield piece
        after = piece["next"]
        if after is None:
            return


async def _collect(
    pieces: AsyncIterator[Piece], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Add up the counts and lists of all pieces. Other values are those of the last piece."""
    total: dict[str, Any] = {}
    async for piece in pieces:
        for name, value in piece.items():
            adds = name in total and name not in ("left_alone", "spooled", "next")
            total[name] = total[name] + value if adds else value
        show(total)
    return total


def _standing(counted: Piece) -> str:
    found = counted["events"] + len(counted["running"])
    refused = format_count(counted["rejected"], "refused request")
    if not found:
        return "There are no events to erase." if not counted["rejected"] else f"{refused}."
    parts = [format_count(found, "event")]
    if counted["pending"] or counted["dead"]:
        waiting = format_count(counted["pending"], "delivery that waits", "deliveries that wait")
        dead = format_count(counted["dead"], "dead letter")
        parts.append(f"{waiting} and {dead} will be discarded")
    if counted["rejected"]:
        parts.append(f"{refused} that name it will be forgotten")
    if counted["running"]:
        parts.append(f"{len(counted['running']):,} run right now and will be left")
    return "; ".join(parts) + "."


def _report(erased: Piece) -> None:
    given_up = erased["pending"] + erased["dead"]
    discarded = format_count(given_up, "delivery", "deliveries")
    refused = format_count(erased["rejected"], "refused request")
    also = f", {refused} forgotten" if erased["rejected"] else ""
    console().print(
        f"Erased {format_count(erased['events'], 'event')}, {discarded} discarded{also}."
    )
    if not erased["running"]:
        return
    for key in erased["running"]:
        complain(f"{printable(key['event_id'])} on {printable(key['route'])} runs: left as it is")
    complain("run it again when they have ended")
    raise typer.Exit(1)
