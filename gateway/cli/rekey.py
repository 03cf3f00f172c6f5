"""The command `rekey`: re-encrypt all data under the first key."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import typer

from gateway.api.operation_client import OperationClient
from gateway.api.operations.rekey import MOST, REKEY, RekeyParams
from gateway.api.shapes import RekeyedAnswer
from gateway.base.units import format_count
from gateway.cli.asking import AsJson, Reason, RouteName, Url, at_desk, given
from gateway.cli.output import complain, console, print_json, print_rows, printable
from gateway.cli.progress import progress
from gateway.operations.encryption import KeyState, in_use

COUNTS: Final = ("events", "attempts", "effects", "rejected", "past")
STEPS_A_SECOND: Final = 4


def register(app: typer.Typer) -> None:
    app.command()(rekey)


def rekey(
    route: RouteName = None,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, max=MOST, help="At most so many a second.")
    ] = None,
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
    params = RekeyParams(**given(route=route, reason=reason))
    total = at_desk(url, lambda desk: _collect(desk, params, rate))
    if as_json:
        print_json(total)
    else:
        _report(total)
    if total["busy"] or total["broken"] or _left(total["keys"]):
        raise typer.Exit(1)


async def _collect(desk: OperationClient, params: RekeyParams, rate: int | None) -> dict[str, Any]:
    total: dict[str, Any] = {}
    with progress("rekeying", None) as show:
        async for piece in _pieces(desk, params, rate):
            for name, value in piece.items():
                adds = name in total and name in (*COUNTS, "busy", "broken")
                total[name] = total[name] + value if adds else value
            show(sum(total[name] for name in COUNTS))
    return total


async def _pieces(
    desk: OperationClient, params: RekeyParams, rate: int | None
) -> AsyncIterator[RekeyedAnswer]:
    """Run the operation until there is no next piece, with at most `rate` rows per second."""
    after, free_s = None, time.monotonic()
    limit = None if rate is None else max(1, rate // STEPS_A_SECOND)
    while True:
        piece = await desk.ask(REKEY, params.model_copy(update={"after": after, "limit": limit}))
        yield piece
        after = piece["next"]
        if after is None:
            return
        if rate is not None:
            done = sum(int(piece[name]) for name in COUNTS)
            free_s = max(free_s, time.monotonic() - 1) + done / rate
            await asyncio.sleep(max(0, free_s - time.monotonic()))


def _left(keys: list[KeyState]) -> list[KeyState]:
    """Return the keys other than the first that are still in use."""
    return [key for key in keys if not key["encrypts"] and in_use(key)]


def _report(total: dict[str, Any]) -> None:
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
