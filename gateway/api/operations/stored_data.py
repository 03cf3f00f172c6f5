"""Stored data: delete it after its retention, erase it on request, re-encrypt it; in pieces."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.operations.bulk import Rate
from gateway.api.parameters import Cursor, Id, Text
from gateway.api.shapes import ErasedAnswer, PrunedAnswer, RekeyedAnswer
from gateway.base.errors import CommandFailed, NotFound
from gateway.base.times import UtcTime
from gateway.ledger.connection import QUERIES
from gateway.ledger.rekeying import count_keys
from gateway.ledger.retention import PruneCursor
from gateway.operations.context import OperationContext
from gateway.operations.encryption import key_states
from gateway.operations.stored_data import (
    ErasureSubject,
    RekeyCursor,
    count_to_erase,
    count_to_prune,
    erase,
    list_left_alone,
    prune,
    rekey,
)
from gateway.receive.spool.spool import SPOOL_DIRECTORY, SpoolOverview, look_at

Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Small = Annotated[int, Field(ge=0, le=2**31 - 1)]
Events = Annotated[tuple[tuple[UtcTime, Words, Words], ...], Field(min_length=1)]
PRUNED_TO = Cursor("events", "turn", "idle", values=tuple[Events, Small, Small])
ERASED_TO = Cursor("received_at", "route", "event_id", values=tuple[UtcTime, Words, Words])
Kinds = Literal["events", "attempts", "effects", "rejected", "past"]
REKEYED_TO = Cursor("kind", "name", "row", values=tuple[Kinds, Words, tuple[Words, Words]])

DryRun = Annotated[bool, Field(strict=True, description="Only count.")]
After = Annotated[
    str | None,
    Field(max_length=8000, description="What the piece before gave as `next`."),
]


class PruneParams(Params):
    """Dry run and cursor of a prune."""

    dry_run: DryRun = False
    after: After = None


class EraseParams(Params):
    """The events to erase, the reason, and the cursor."""

    account: Annotated[Text | None, Field(description="All events of this account.")] = None
    event_id: Annotated[Id | None, Field(description="Or this one event.")] = None
    route: Annotated[Text | None, Field(description="Only on this route.")] = None
    reason: Annotated[
        Text | None, Field(description="Why, for the audit log. Not for a dry run.")
    ] = None
    dry_run: DryRun = False
    after: After = None


class RekeyParams(Params):
    """The route, the rate and the cursor of a rekey."""

    route: Annotated[Text | None, Field(description="Only of this route.")] = None
    rate: Rate = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None
    after: After = None


async def _prune(context: OperationContext, params: PruneParams) -> PrunedAnswer:
    retention, audit = context.project.config.retention, context.settings.audit_retention
    cursor = None
    if params.after is not None:
        events, turn, idle = PRUNED_TO.place(params.after)
        cursor = PruneCursor(events=events, turn=turn, idle=idle)
    async with context.session() as ledger:
        work = count_to_prune if params.dry_run else prune
        pruned, cursor = await work(ledger, retention, audit, cursor)
        left_alone = await list_left_alone(ledger, retention)
    answer: PrunedAnswer = asdict(pruned) | {  # type: ignore[assignment]
        "left_alone": left_alone,
        "next": cursor and PRUNED_TO.write([cursor.events, cursor.turn, cursor.idle]),
    }
    return answer


async def _erase(context: OperationContext, params: EraseParams) -> ErasedAnswer:
    subject = ErasureSubject(account=params.account, event_id=params.event_id, route=params.route)
    after = None if params.after is None else ERASED_TO.place(params.after)
    async with context.session() as ledger:
        if params.dry_run:
            erased, cursor = await count_to_erase(ledger, subject, after)
        elif params.reason is None:
            raise CommandFailed("reason: found nothing; expected why, for the audit log")
        else:
            erased, cursor = await erase(
                ledger, subject, after, actor=context.actor, reason=params.reason
            )
    await context.wake(erased.due)
    return {
        "events": erased.events,
        "pending": erased.pending,
        "dead": erased.dead,
        "running": [{"route": route, "event_id": event_id} for route, event_id in erased.running],
        "rejected": erased.rejected,
        "spooled": (await _read_spool(context)).events,
        "next": cursor and ERASED_TO.write(cursor),
    }


async def _rekey(context: OperationContext, params: RekeyParams) -> RekeyedAnswer:
    encryption, cursor = context.encryption, None
    if params.route is not None and params.route not in {r.name for r in context.config.routes}:
        raise NotFound(f"there is no route {params.route!r}")
    if params.after is not None:
        cursor = RekeyCursor(*REKEYED_TO.place(params.after))
    else:
        note = (context.actor, params.route, params.reason)
        await context.ledger.execute(QUERIES["note_rekey"], *note)
        routes = encryption.routes if params.route is None else encryption.routes & {params.route}
        await context.ledger.execute(QUERIES["silence_alerts"], sorted(routes))
    done, cursor = await rekey(
        context.session, encryption, cursor, route=params.route, rate=params.rate
    )
    spooled = (await _read_spool(context)).keys
    answer: RekeyedAnswer = asdict(done) | {  # type: ignore[assignment]
        "broken": list(done.broken),
        "keys": key_states(await count_keys(context.ledger), encryption.ring, spooled),
        "next": cursor and REKEYED_TO.write(cursor),
    }
    return answer


async def _read_spool(context: OperationContext) -> SpoolOverview:
    return await asyncio.to_thread(look_at, context.settings.data_dir / SPOOL_DIRECTORY)


PRUNE = Operation(
    name="prune",
    method="POST",
    path="/prune",
    summary="Forget now what is past its route's retention: a piece, until `next` is null.",
    params=PruneParams,
    result=PrunedAnswer,
    run=_prune,
)
ERASE = Operation(
    name="erase",
    method="POST",
    path="/erase",
    summary="Erase what is kept of an account's events, or of one: a piece, until `next` is null.",
    params=EraseParams,
    result=ErasedAnswer,
    run=_erase,
)
REKEY = Operation(
    name="rekey",
    method="POST",
    path="/rekey",
    summary="Put all that is encrypted under the first key: a piece, until `next` is null.",
    params=RekeyParams,
    result=RekeyedAnswer,
    run=_rekey,
)
