"""Delete data that is past its retention, and erase data of a subject on request."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import Cursor, Id, Text
from gateway.api.shapes import ErasedAnswer, PrunedAnswer
from gateway.base.errors import CommandFailed
from gateway.base.times import UtcTime
from gateway.ledger.retention import PruneCursor
from gateway.operations.context import OperationContext
from gateway.operations.retention import (
    ErasureSubject,
    count_to_erase,
    count_to_prune,
    erase,
    list_left_alone,
    prune,
)
from gateway.receive.spool.spool import SPOOL_DIRECTORY, look_at

Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Small = Annotated[int, Field(ge=0, le=2**31 - 1)]
Marks = Annotated[tuple[tuple[UtcTime, Words, Words], ...], Field(min_length=1)]
PRUNED_TO = Cursor("marks", "turn", "idle", values=tuple[Marks, Small, Small])
ERASED_TO = Cursor("received_at", "route", "event_id", values=tuple[UtcTime, Words, Words])

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


async def _prune(office: OperationContext, params: PruneParams) -> PrunedAnswer:
    retention, audit = office.project.config.retention, office.settings.audit_retention
    place = None
    if params.after is not None:
        marks, turn, idle = PRUNED_TO.place(params.after)
        place = PruneCursor(marks=marks, turn=turn, idle=idle)
    async with office.session() as ledger:
        work = count_to_prune if params.dry_run else prune
        pruned, place = await work(ledger, retention, audit, place)
        left_alone = await list_left_alone(ledger, retention)
    counts: dict[str, Any] = asdict(pruned)
    del counts["more"]
    answer: PrunedAnswer = counts | {  # type: ignore[assignment]
        "left_alone": left_alone,
        "next": None if place is None else PRUNED_TO.write([place.marks, place.turn, place.idle]),
    }
    return answer


async def _erase(office: OperationContext, params: EraseParams) -> ErasedAnswer:
    subject = ErasureSubject(account=params.account, event_id=params.event_id, route=params.route)
    after = None if params.after is None else ERASED_TO.place(params.after)
    async with office.session() as ledger:
        if params.dry_run:
            erased, mark = await count_to_erase(ledger, subject, after)
        elif params.reason is None:
            raise CommandFailed("reason: found nothing; expected why, for the audit log")
        else:
            erased, mark = await erase(
                ledger, subject, after, actor=office.actor, reason=params.reason
            )
    await office.wake(erased.due)
    stock = await asyncio.to_thread(look_at, office.settings.data_dir / SPOOL_DIRECTORY)
    return {
        "events": erased.events,
        "pending": erased.pending,
        "dead": erased.dead,
        "running": [{"route": route, "event_id": event_id} for route, event_id in erased.running],
        "rejected": erased.rejected,
        "spooled": stock.events,
        "next": None if mark is None else ERASED_TO.write(mark),
    }


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
