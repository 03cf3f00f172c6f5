"""Rejected requests: list them with their causes, and release those that are valid now."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from gateway.api.operation import Operation, Params
from gateway.api.parameters import BY_ID, LONGEST_PAGE, Page, PageParams, RowId, Text
from gateway.api.shapes import RejectedDetail, RejectedGroup, RejectedRow, ReleasedRow
from gateway.base.errors import CommandFailed, NotFound
from gateway.base.times import Moment
from gateway.config.project import database_url, load_secrets
from gateway.ledger.encryption import ClaimCodec
from gateway.ledger.rejected import (
    Chosen,
    find_rejected,
    group_rejected,
    list_rejected,
    next_rejected,
)
from gateway.operations.context import OperationContext
from gateway.operations.release import Released, Releaser, check_route, claiming

AT_ONCE = 50
"""Limit of releases per API request, so that no request runs for minutes."""

RejectedId = Annotated[RowId, Field(description="The id of a refused request.")]


class ChosenParams(Params):
    """Filter for rejected requests."""

    route: Annotated[Text | None, Field(description="Only of this route.")] = None
    code: Annotated[Text | None, Field(description="Only with this code.")] = None
    since: Annotated[Moment | None, Field(description="Not before: 2h (ago), or a time.")] = None

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.route, self.code, self.since)


class RejectedParams(PageParams, ChosenParams):
    """Filter and page of a listing of rejected requests."""


class RejectedGroupParams(ChosenParams):
    """Filter for rejected requests to count."""

    limit: Annotated[
        int, Field(ge=1, le=LONGEST_PAGE, description="How many groups at the most.")
    ] = 100


class ShowRejectedParams(Params):
    """The rejected request, with or without its body."""

    rejected_id: RejectedId
    body: Annotated[bool, Field(description="With the body, as far as it was kept.")] = False


class ReleaseParams(ChosenParams):
    """The rejected requests to release, and the route for them."""

    ids: Annotated[
        list[RowId] | None, Field(min_length=1, max_length=AT_ONCE, description="These.")
    ] = None
    all: Annotated[
        bool, Field(strict=True, description="All that match, and are not released yet.")
    ] = False
    to_route: Annotated[
        Text | None, Field(description="To this route, and not the one to which they came.")
    ] = None
    reason: Annotated[Text | None, Field(description="Why, for the audit log.")] = None
    dry_run: Annotated[bool, Field(strict=True, description="Only verify.")] = False
    after: Annotated[
        str | None, Field(max_length=4000, description="What the piece before gave as `next`.")
    ] = None


async def _rejected(office: OperationContext, params: RejectedParams) -> Page[RejectedRow]:
    [before] = BY_ID.read(params.after)
    rows = await list_rejected(office.ledger, params.chosen, before, params.limit + 1)
    return BY_ID.page(rows, params.limit)


async def _groups(office: OperationContext, params: RejectedGroupParams) -> list[RejectedGroup]:
    return [
        RejectedGroup(**group)  # type: ignore[typeddict-item]  # the same fields
        for group in await group_rejected(office.ledger, params.chosen, params.limit)
    ]


async def _show(office: OperationContext, params: ShowRejectedParams) -> RejectedDetail:
    row = await find_rejected(office.ledger, params.rejected_id)
    if row is None:
        raise NotFound(f"there is no refused request {params.rejected_id}")
    shown = _shown(office, row) | {"body_kept": row["body"] is not None}
    return _readable(shown, with_body=params.body)


def _shown(office: OperationContext, row: dict[str, Any]) -> dict[str, Any]:
    """Apply the redaction of the route, which also covers rejected requests."""
    if row["key_id"] is not None:  # only a release decrypts it
        return row | {"body": None, "redacted": None}
    shown = office.shown(row | {"deliveries": []})
    del shown["deliveries"]
    return shown


def _readable(row: dict[str, Any], *, with_body: bool) -> RejectedDetail:
    body, exact = row["body"], None
    if not with_body:
        body = None
    elif body is not None:
        try:
            body = body.decode()
        except UnicodeDecodeError:
            body, exact = body.decode("utf-8", "backslashreplace"), b64encode(body).decode()
    detail: RejectedDetail = row | {  # type: ignore[assignment]
        "body": body,
        "body_base64": exact,
    }
    return detail


async def _release(office: OperationContext, params: ReleaseParams) -> Page[ReleasedRow]:
    if (params.ids is None) == (not params.all):
        raise CommandFailed("found neither ids nor all, or both; expected one of them")
    check_route(office.project, params.to_route)
    ids, after = await _which(office, params)
    rows = [_row(released) for released in await _release_each(office, params, ids)]
    return {"items": rows, "next": after}


async def _which(office: OperationContext, params: ReleaseParams) -> tuple[list[int], str | None]:
    if params.ids is not None:
        return list(dict.fromkeys(params.ids)), None
    [mark] = BY_ID.read(params.after)
    ids = await next_rejected(office.ledger, params.chosen, mark or 0, AT_ONCE + 1)
    more = BY_ID.write([ids[AT_ONCE - 1]]) if len(ids) > AT_ONCE else None
    return ids[:AT_ONCE], more


async def _release_each(
    office: OperationContext, params: ReleaseParams, ids: Sequence[int]
) -> list[Released]:
    accepted: list[int] = []
    async with claiming(
        database_url(office.settings), accepted, ClaimCodec(office.encryption)
    ) as claimer:
        releaser = Releaser(
            project=office.project,
            secrets=load_secrets(office.settings, office.project.config),
            actor=office.actor,
            reason=params.reason,
            to_route=params.to_route,
            dry_run=params.dry_run,
            claimer=claimer,
            encryption=office.encryption,
        )
        try:
            async with office.session() as session:
                return [await releaser.release(session, id) for id in ids]
        finally:
            await office.wake(accepted)
            await releaser.stats.flush(office.ledger)
            if not params.dry_run:
                await releaser.uses.flush(office.ledger)


def _row(released: Released) -> ReleasedRow:
    return {
        "id": released.id,
        "outcome": released.outcome,
        "route": released.route,
        "event_ids": list(released.event_ids),
        "detail": released.detail,
    }


REJECTED = Operation(
    name="rejected",
    method="GET",
    path="/rejected",
    summary="Refused requests that were kept, newest first, each with its cause.",
    params=RejectedParams,
    result=Page[RejectedRow],
    run=_rejected,
)
REJECTED_GROUPS = Operation(
    name="rejected_groups",
    method="GET",
    path="/rejected/groups",
    summary="Refused requests by route, code and cause, the latest first.",
    params=RejectedGroupParams,
    result=list[RejectedGroup],
    run=_groups,
)
SHOW_REJECTED = Operation(
    name="show_rejected",
    method="GET",
    path="/rejected/{rejected_id}",
    summary="One refused request, with its headers, and its body if asked for.",
    params=ShowRejectedParams,
    result=RejectedDetail,
    run=_show,
)
RELEASE = Operation(
    name="release",
    method="POST",
    path="/rejected/release",
    summary="Verify refused requests again, let in what is valid: a piece, until `next` is null.",
    params=ReleaseParams,
    result=Page[ReleasedRow],
    run=_release,
)
