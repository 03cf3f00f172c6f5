"""Puts what is encrypted under the first key."""

import asyncio
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.api.office import Office
from gateway.api.operation import Operation, Params
from gateway.api.paging import Cursor
from gateway.api.shapes import RekeyedAnswer
from gateway.api.values import INTEGER, Text
from gateway.errors import NotFound
from gateway.ledger.queries import QUERIES
from gateway.ledger.rekeying import count_keys
from gateway.ledger.sealed import Vault
from gateway.operate.keys import key_states
from gateway.operate.rekey import Place, rekey
from gateway.spool.look import look_at
from gateway.spool.spool import SPOOL_DIRECTORY

Words = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Kinds = Literal["events", "attempts", "effects", "rejected", "past"]
PLACE = Cursor("kind", "name", "mark", values=tuple[Kinds, Words, tuple[Words, Words]])
MOST: Final = 10_000


class RekeyParams(Params):
    """Of which route, how much at once, and which piece."""

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


async def _rekey(office: Office, params: RekeyParams) -> RekeyedAnswer:
    vault = office.vault
    _check(office, params.route)
    place = None
    if params.after is None:
        await _begin(office, params, vault)
    else:
        place = Place(*PLACE.place(params.after))
    async with office.session() as ledger:
        done, place = await rekey(ledger, vault, place, route=params.route, limit=params.limit)
    stock = await asyncio.to_thread(look_at, office.settings.data_dir / SPOOL_DIRECTORY)
    return {
        "events": done.events,
        "attempts": done.attempts,
        "effects": done.effects,
        "rejected": done.rejected,
        "past": done.past,
        "busy": done.busy,
        "broken": list(done.broken),
        "keys": key_states(await count_keys(office.ledger), vault.ring, stock.keys),
        "next": None if place is None else PLACE.write(place),
    }


def _check(office: Office, route: str | None) -> None:
    names = {known.name for known in office.config.routes}
    if route is not None and route not in names:
        raise NotFound(f"there is no route {route!r}")


async def _begin(office: Office, params: RekeyParams, vault: Vault) -> None:
    await office.ledger.execute(QUERIES["note_rekey"], office.actor, params.route, params.reason)
    encrypted = vault.routes if params.route is None else vault.routes & {params.route}
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
