"""Re-encrypt stored data under the first key."""

import asyncio
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import INTEGER, Cursor, Text
from gateway.api.shapes import RekeyedAnswer
from gateway.base.errors import NotFound
from gateway.ledger.connection import QUERIES
from gateway.ledger.encryption import EncryptionKeys
from gateway.ledger.rekeying import count_keys
from gateway.operations.context import OperationContext
from gateway.operations.encryption import RekeyCursor, key_states, rekey
from gateway.receive.spool.spool import SPOOL_DIRECTORY, look_at

Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Kinds = Literal["events", "attempts", "effects", "rejected", "past"]
PLACE = Cursor("kind", "name", "mark", values=tuple[Kinds, Words, tuple[Words, Words]])
MOST: Final = 10_000


class RekeyParams(Params):
    """The route, the batch limit and the cursor of a rekey."""

    route: Annotated[Text | None, Field(description="Only of this route.")] = None
    limit: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=MOST), INTEGER] | None,
        Field(description="At most so many in this piece."),
    ] = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None
    after: Annotated[
        str | None,
        Field(max_length=8000, description="What the piece before gave as `next`."),
    ] = None


async def _rekey(office: OperationContext, params: RekeyParams) -> RekeyedAnswer:
    encryption = office.encryption
    _check(office, params.route)
    place = None
    if params.after is None:
        await _begin(office, params, encryption)
    else:
        place = RekeyCursor(*PLACE.place(params.after))
    async with office.session() as ledger:
        done, place = await rekey(ledger, encryption, place, route=params.route, limit=params.limit)
    stock = await asyncio.to_thread(look_at, office.settings.data_dir / SPOOL_DIRECTORY)
    return {
        "events": done.events,
        "attempts": done.attempts,
        "effects": done.effects,
        "rejected": done.rejected,
        "past": done.past,
        "busy": done.busy,
        "broken": list(done.broken),
        "keys": key_states(await count_keys(office.ledger), encryption.ring, stock.keys),
        "next": None if place is None else PLACE.write(place),
    }


def _check(office: OperationContext, route: str | None) -> None:
    names = {known.name for known in office.config.routes}
    if route is not None and route not in names:
        raise NotFound(f"there is no route {route!r}")


async def _begin(office: OperationContext, params: RekeyParams, encryption: EncryptionKeys) -> None:
    await office.ledger.execute(QUERIES["note_rekey"], office.actor, params.route, params.reason)
    encrypted = encryption.routes if params.route is None else encryption.routes & {params.route}
    await office.ledger.execute(QUERIES["silence_alerts"], sorted(encrypted))


REKEY = Operation(
    name="rekey",
    method="POST",
    path="/rekey",
    summary="Put all that is encrypted under the first key: a piece, until `next` is null.",
    params=RekeyParams,
    result=RekeyedAnswer,
    run=_rekey,
)
