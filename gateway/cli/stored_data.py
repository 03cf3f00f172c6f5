"""The commands `prune`, `erase` and `rekey`, which ask for piece after piece."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer

from gateway.api.operation import Operation, Params
from gateway.api.operation_client import OperationClient
from gateway.api.operations.stored_data import (
    ERASE,
    PRUNE,
    REKEY,
    EraseParams,
    PruneParams,
    RekeyParams,
)
from gateway.base.errors import CommandFailed
from gateway.base.units import format_count
from gateway.cli.asking import AsJson, Reason, RouteName, Url, at_desk, given
from gateway.cli.bulk import Rate
from gateway.cli.output import complain, console, print_json, print_rows, printable
from gateway.cli.progress import progress
from gateway.operations.encryption import KeyState, in_use

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Piece = Mapping[str, Any]
P = TypeVar("P", bound=Params)

REKEYED: Final = ("events", "attempts", "effects", "rejected", "past")
LAST: Final = {
    ("prune", "left_alone"), ("prune", "next"), ("erase", "spooled"), ("erase", "next"),
    ("rekey", "keys"), ("rekey", "next"),
}  # fmt: skip
"""The fields of a piece that do not add up."""


def register(app: typer.Typer) -> None:
    for command in (prune, erase, rekey):
        app.command()(command)


def prune(dry_run: DryRun = False, url: Url = None) -> None:
    """Delete now all data past its route's retention. Workers also do this all the time.

    Keys, payloads and dead letters have separate retention times. Waiting and running deliveries
    are never pruned.

    Example: [bold]gateway prune --dry-run[/bold]
    """

    doing = "counting" if dry_run else "pruning"
    total = _collect(
        url, PRUNE, PruneParams(dry_run=dry_run), f"{doing}: looked at", ("looked_at",)
    )
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
    counted = _collect(url, ERASE, EraseParams(**subject, dry_run=True), "counting", ("events",))
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
    _report_erasure(_collect(url, ERASE, params, "erasing", ("events",), found))


def rekey(
    route: RouteName = None,
    rate: Rate = None,
    reason: Reason = None,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Re-encrypt everything under the first of `keys`, so that older keys can be removed.

    Also encrypts data stored before its route was encrypted. It works in small steps, beside live
    traffic. It is safe to stop it and to run it again. Exit 1 if something is left under another
    key.

    Example: [bold]gateway rekey --rate 500[/bold]
    """
    params = RekeyParams(**given(route=route, rate=rate, reason=reason))
    total = _collect(url, REKEY, params, "rekeying", REKEYED)
    if as_json:
        print_json(total)
    else:
        _report_rekey(total)
    if total["busy"] or total["broken"] or _left(total["keys"]):
        raise typer.Exit(1)


def _collect(
    url: str | None,
    operation: Operation[P, Any],
    params: P,
    doing: str,
    shown: Sequence[str],
    expected: int | None = None,
) -> dict[str, Any]:
    """Run the operation until there is no next piece, and show the sum of the `shown` counts.

    Counts and lists add up. Other values are those of the last piece.
    """

    async def work(desk: OperationClient) -> dict[str, Any]:
        total, piece = dict[str, Any](), dict[str, Any]()
        with progress(doing, expected) as show:
            while not total or piece["next"] is not None:
                after = {"after": piece.get("next")}
                piece = dict(await desk.ask(operation, params.model_copy(update=after)))
                for name, value in piece.items():
                    adds = name in total and (operation.name, name) not in LAST
                    total[name] = total[name] + value if adds else value
                show(sum(total[name] for name in shown))
        return total

    return at_desk(url, work)


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


def _report_erasure(erased: Piece) -> None:
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


def _left(keys: list[KeyState]) -> list[KeyState]:
    """Return the keys other than the first that are still in use."""
    return [key for key in keys if not key["encrypts"] and in_use(key)]


def _report_rekey(total: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"Put under the first key: {format_count(total['events'], 'event')}, "
        f"{format_count(total['attempts'], 'error')}, {format_count(total['effects'], 'result')}, "
        f"{format_count(total['rejected'], 'refused request')}; "
        f"encrypted for the first time: {format_count(total['past'], 'event')}."
    )
    rows = [{**key, "": _word(key)} for key in total["keys"]]
    print_rows(
        ["key_id", "events", "attempts", "effects", "rejected", "spooled", ""], rows, empty=""
    )
    for what in total["broken"][:10]:
        complain(f"{printable(what)} does not open: it was changed, or moved there")
    if total["busy"]:
        complain(f"{format_count(total['busy'], 'event')} run right now: run it again")
    for key in _left(total["keys"]):
        if key["at_hand"]:
            complain(f"something is still under key {key['key_id']}: run it again")
        else:
            complain(f"key {key['key_id']} is not among `keys`: put it back, and run it again")


def _word(key: KeyState) -> str:
    if key["encrypts"]:
        return "encrypts"
    if not key["at_hand"]:
        return "missing"
    return "in use" if in_use(key) else "no longer used by anything: it can be taken away"
