"""The command `show`: print an event or save it to a file."""

import sys
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from gateway.api.operations.events import REVEAL, SHOW, RevealParams, ShowParams
from gateway.api.operations.pauses import PAUSES, PausesParams
from gateway.api.shapes import EventDetail
from gateway.base.errors import CommandFailed
from gateway.base.model import payload_bytes
from gateway.cli.asking import AsJson, Reason, RouteName, Url, ask, given
from gateway.cli.output import cell, console, print_json, printable
from gateway.operations.pause import PauseRow
from gateway.operations.record import record, save
from gateway.privacy.redaction import WHOLE


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    id: Annotated[str, typer.Argument(help="An event id (evt_...) or a delivery id (a number).")],
    route: RouteName = None,
    body: Annotated[bool, typer.Option("--body", help="Print only the raw body.")] = False,
    as_json: AsJson = False,
    file: Annotated[
        Path | None, typer.Option("--save", help="Record it in this file, as JSON.")
    ] = None,
    redacting: Annotated[
        list[str] | None,
        typer.Option(
            "--redact",
            metavar="PATH",
            help="With --save: put a fake there (data.object.*.email), or at all that is personal "
            "(pii). May be given often.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --save: overwrite it.")] = False,
    revealing: Annotated[
        bool,
        typer.Option("--reveal", help="Also what is kept encrypted; leaves an audit row."),
    ] = False,
    reason: Reason = None,
    url: Url = None,
) -> None:
    """Show one event: the request, its deliveries and every attempt.

    Examples: [bold]gateway show evt_1Pabc[/bold], [bold]gateway show 42[/bold],
    [bold]gateway show evt_1Pabc --body > event.json[/bold],
    [bold]gateway show evt_1Pabc --save tests/events/paid.json --redact pii[/bold],
    [bold]gateway show evt_1Pabc --reveal --reason "ticket 481"[/bold]
    """
    if file is None and (redacting or force):
        raise typer.BadParameter("--redact and --force belong to --save FILE")
    if file is not None and (body or as_json):
        raise typer.BadParameter("--save FILE prints nothing: leave out --body and --json")
    if reason is not None and not revealing:
        raise typer.BadParameter("--reason belongs to --reveal")
    if revealing:
        details = ask(url, REVEAL, RevealParams(id=id, **given(route=route, reason=reason)))
    else:
        details = ask(url, SHOW, ShowParams(id=id, **given(route=route)))
    found = [_with_bytes(event) for event in details]
    if file is not None:
        _save(_only(found), file, redacting or [], force)
    elif body:
        _print_body(_only(found))
    elif as_json:
        print_json(details)
    else:
        is_waiting = any(d["status"] == "pending" for event in found for d in event["deliveries"])
        pauses = ask(url, PAUSES, PausesParams()) if is_waiting else []
        for event in found:
            _print_event(event, pauses, revealing)


def _with_bytes(event: EventDetail) -> dict[str, Any]:
    body, exact = event["body"], event["body_base64"]
    if exact is not None:
        return {**event, "body": b64decode(exact)}
    return {**event, "body": None if body is None else body.encode()}


def _only(found: list[dict[str, Any]]) -> dict[str, Any]:
    if len(found) > 1:
        routes = ", ".join(event["route"] for event in found)
        raise CommandFailed(f"this id is on several routes ({routes}): say which with --route")
    return found[0]


def _print_body(event: dict[str, Any]) -> None:
    _require_shown(event)
    if event["body"] is None:
        raise CommandFailed("the payload was pruned or erased")
    sys.stdout.buffer.write(event["body"])


def _require_shown(event: dict[str, Any]) -> None:
    if event["encrypted"] and event["body"] is None:
        raise CommandFailed(
            f"the payload is encrypted under key {event['key_id']}: say --reveal, and your name "
            "goes on record"
        )


def _save(event: dict[str, Any], file: Path, redacting: list[str], force: bool) -> None:
    _require_shown(event)
    if event["body"] == WHOLE and event["redacted"] is not None:
        raise CommandFailed(f"the payload is not shown: {event['redacted']}")
    recorded, count = record(event, redacting=redacting)
    save(recorded, file, force=force)
    hidden = f", {count} values redacted" if redacting else ""
    console().print(f"{recorded.type} {recorded.id} is in {file}{hidden}", markup=False)


def _verified(event: dict[str, Any]) -> str:
    """Format the secret that verified the event, and the signature's age including transit."""
    if event["unverified"]:
        return "not at all: its signature was wrong, and enforce is false, in development"
    under = f"under {printable(event['verified_by'])}"
    if event["clock_s"] is None:
        return f"{under}; no time was signed"
    return f"{under}, {event['clock_s']:.1f} s after it was signed"


def _print_event(event: dict[str, Any], pauses: Sequence[PauseRow], shown: bool) -> None:
    out = console()
    out.print(f"[bold]{printable(event['event_id'])}[/bold]", markup=True)
    for name in ("route", "provider", "type", "account", "livemode", "occurred_at", "received_at"):
        if event[name] is not None:
            out.print(f"  {name.replace('_', ' '):<12} {_plain(event[name])}", markup=False)
    if event["verified_by"] is not None or event["unverified"]:
        out.print(f"  {'verified':<12} {_verified(event)}", markup=False)
    if event["spooled"]:
        out.print("  spooled      acknowledged while Postgres was away, claimed later")
    if event["reconciled"]:
        out.print("  reconciled   fetched from the provider's API by reconcile, not signed")
    if event["repeat_of"]:
        out.print(f"  flagged      same bytes as {printable(event['repeat_of'])}", markup=False)
    out.print(f"  {'payload':<12} {_payload_line(event)}", markup=False)
    if not event["deliveries"]:
        out.print("  no handler took it")
    for delivery in event["deliveries"]:
        _print_delivery(delivery, shown)
        if delivery["status"] == "pending":
            _print_pauses(delivery, pauses)


def _print_pauses(delivery: dict[str, Any], pauses: Sequence[PauseRow]) -> None:
    """Print the pauses that hold back a delivery."""
    for pause in pauses:
        if pause["route"] == delivery["route"] and pause["handler"] in (None, delivery["handler"]):
            of = "route" if pause["handler"] is None else "handler"
            why = f": {printable(pause['reason'])}" if pause["reason"] else ""
            who = f"{printable(pause['actor'])}, {cell(pause['since'])}"
            console().print(f"    waits: its {of} was paused by {who}{why}", markup=False)


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC ({cell(value)})"
    return printable(str(value))


def _payload_line(event: dict[str, Any]) -> str:
    if event["erased"] is not None:
        return _erased_line(event["erased"])
    if event["encrypted"] and event["body"] is None:
        return f"encrypted under key {event['key_id']} (read it with --reveal)"
    if event["body"] is None:
        return "pruned by retention"
    if event["redacted"] is not None and event["body"] == WHOLE:
        return f"not shown: {event['redacted']}"
    size = len(event["body"])
    try:
        document = orjson.loads(payload_bytes(event["headers"] or {}, event["body"]))
    except ValueError:
        return f"{size} bytes"
    keys = ", ".join(map(str, document)) if isinstance(document, dict) else ""
    hidden = f", without {printable(event['redacted'])}" if event["redacted"] else ""
    return f"{size} bytes of JSON: {printable(keys)[:160]}{hidden} (print it with --body)"


def _erased_line(erased: dict[str, Any]) -> str:
    why = f": {printable(erased['reason'])}" if erased["reason"] else ""
    return f"erased by {printable(erased['actor'])}, {cell(erased['at'])}{why}"


def _print_delivery(delivery: dict[str, Any], shown: bool) -> None:
    out = console()
    out.print()
    line = cell(delivery["status"])
    out.print(f"  delivery {delivery['delivery_id']}", delivery["handler"], line, markup=False)
    for attempt in delivery["attempt_log"]:
        ms = (attempt["finished_at"] - attempt["started_at"]).total_seconds() * 1000
        out.print(
            f"    run {attempt['number']}: {attempt['outcome']} after {ms:.0f} ms, "
            f"{cell(attempt['finished_at'])}",
            markup=False,
        )
        more = " (all of it with --reveal)" if attempt["encrypted"] and not shown else ""
        for text in f"{attempt['error'] or ''}{more}".splitlines():
            out.print(f"      {printable(text)}", markup=False, style="dim")
    for effect in delivery["effects"]:
        out.print(f"    {_effect_line(delivery, effect, shown)}", markup=False)
    for entry in delivery["audit"]:
        why = f": {printable(entry['reason'])}" if entry["reason"] else ""
        who = printable(entry["actor"])
        bulk = f" in bulk operation {entry['bulk_id']}" if entry["bulk_id"] else ""
        at = cell(entry["at"])
        action = " ".join(filter(None, (entry["action"], printable(entry["effect"] or ""))))
        out.print(f"    {action} by {who}{bulk}, {at}{why}", markup=False)
    if delivery["runs_alone"]:
        out.print("    runs alone: a worker was lost twice while it ran", markup=False)
    if delivery["status"] == "pending" and delivery["due_at"] is None:
        out.print(f"    {_turn_line(delivery)}", markup=False)
    elif delivery["status"] == "pending":
        out.print(f"    due {cell(delivery['due_at'])}", markup=False)


def _turn_line(delivery: dict[str, Any]) -> str:
    waits = f"waits for its turn of {printable(delivery['order_key'] or '')}"
    holder = delivery["held_by"]
    if holder is None:
        return f"{waits}, which the next sweep gives it"
    if delivery["held_by_status"] == "dead":
        return f"{waits}, blocked by delivery {holder}, which is dead: replay or discard that one"
    return f"{waits}, behind delivery {holder} ({delivery['held_by_status']})"


def _effect_line(delivery: dict[str, Any], effect: dict[str, Any], shown: bool) -> str:
    name = printable(effect["name"])
    if effect["made_by"] is not None:
        return f"once {name}: {_kept_line(effect, shown)}"
    if effect["status"] == "done":
        return f"once {name}: done {cell(effect['finished_at'])}, {_result(effect, shown)}"
    line = f"once {name}: {_unknown(effect)}, called {cell(effect['begun_at'])}"
    if effect["status"] == "begun" and effect["unknown_at"] is not None:
        return f"{line}; a retry is requested"
    if effect["status"] == "begun" and delivery["status"] == "dead":
        id = delivery["delivery_id"]
        return f"{line}; `gateway replay {id} --effects retry` or `gateway effects confirm {id}`"
    return line + (_advice(effect["delivery_id"]) if effect["status"] == "unknown" else "")


def _kept_line(effect: dict[str, Any], shown: bool) -> str:
    """Format an effect that the delivery of another event made under the same key."""
    event = effect["made_by_event"]
    by = "an event that is no longer kept" if event is None else printable(event)
    if effect["status"] == "done":
        known = effect["finished_at"] is not None  # else it was done after this delivery ended
        return f"kept: done by {by}" + (f", {_result(effect, shown)}" if known else "")
    line = f"kept: {_unknown(effect)}, called by {by}"
    return line + (_advice(effect["made_by"]) if effect["status"] == "unknown" else "")


def _result(effect: dict[str, Any], shown: bool) -> str:
    if effect["encrypted"] and not shown:
        return "result encrypted (read it with --reveal)"
    return f"result {printable(effect['result'] or 'null')[:160]}"


def _unknown(effect: dict[str, Any]) -> str:
    why = f" ({printable(effect['error'])})" if effect["error"] else ""
    return f"outcome unknown{why}"


def _advice(delivery: int) -> str:
    return f"; `gateway effects retry {delivery}` or `gateway effects confirm {delivery}`"
