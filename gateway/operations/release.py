"""Release rejected requests: verify them again in full, as of the time they arrived."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from gateway.base.errors import (
    Duplicate,
    KeyMissing,
    NotFound,
    RepeatedBody,
    RequestRejected,
    SealBroken,
    StorageUnavailable,
)
from gateway.base.problems import one_of
from gateway.base.secrets import Secret
from gateway.config.project import Project
from gateway.config.routes import Route
from gateway.ledger.claims import Claim, Claimed, Claimer, ClaimVerdict
from gateway.ledger.connection import Connection, Pooled
from gateway.ledger.encryption import ClaimCodec, EncryptionKeys, open_rejected
from gateway.ledger.rejected import (
    BAD_ITEM,
    NOWHERE,
    Bounds,
    NoRoom,
    Rejected,
    hold_rejected,
    keep_items,
    keep_rejected,
    mark_released,
    mark_repeated,
)
from gateway.ledger.reloads import SecretUses
from gateway.ledger.statistics import REQUESTS, MinuteStats
from gateway.providers import Incoming
from gateway.providers.provider import Greeting
from gateway.receive.keyring import Keyring
from gateway.receive.reading import Read, Reading, RejectedItem
from gateway.receive.rejected.causes import describe_item
from gateway.receive.rejected.recorder import NOT_KEPT, seal_row

CLAIM_WITHIN_S: Final = 30.0

Outcome = Literal["accepted", "duplicate", "ignored", "valid", "refused", "already"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result for one rejected request."""

    id: int
    outcome: Outcome
    """`valid`: a dry run, in which it would have been accepted."""
    route: str
    event_ids: tuple[str, ...] = ()
    detail: str | None = None


class StillRefused(Exception):
    """The request was rejected again. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Releaser:
    """Releases requests to the routes with their current secrets and tolerances."""

    project: Project
    secrets: Mapping[str, Sequence[Secret]]
    actor: str
    reason: str | None
    to_route: str | None
    dry_run: bool
    claimer: Claimer
    encryption: EncryptionKeys
    uses: SecretUses = field(default_factory=SecretUses)
    stats: MinuteStats = field(default_factory=MinuteStats)

    async def release(self, session: Connection | Pooled, id: int) -> Released:
        """Release one rejected request.

        Its row is locked meanwhile, so that only one of two concurrent releases takes effect.
        """
        async with session.transaction():
            row = await hold_rejected(session, id)
            if row is None:
                detail = "it is not there any more, or another releases it right now"
                return Released(id=id, outcome="already", route="", detail=detail)
            try:
                route = self._route(row)
                read = await self._read(row, route)
            except StillRefused as refusal:
                return Released(id=id, outcome="refused", route=row["route"], detail=str(refusal))
            if row["released_at"] is not None:
                ids = tuple(row["released_as"] or ())
                return Released(id=id, outcome="already", route=route.name, event_ids=ids)
            if self.dry_run:
                return Released(
                    id=id, outcome="valid", route=route.name, event_ids=tuple(_ids(read))
                )
            return await self._take(session, row, route, read)

    def _route(self, row: Mapping[str, Any]) -> Route:
        names = self.project.names.routes
        # The `serve` that stored the request may not have known the identity of its route.
        came_to = names.identity(row["route"])
        name = self.to_route or came_to
        if row["verified_by"] is not None and name != came_to:
            raise StillRefused(
                f"it was verified for {names.label(came_to)!r} when it came, and for no other"
            )
        if name == NOWHERE:
            raise StillRefused("no route has its path: say which one it was for with --to-route")
        for route in self.project.config.doors:
            if route.name == name:
                return route
        raise StillRefused(f"there is no route {names.label(name)!r} any more")

    async def _read(self, row: Mapping[str, Any], route: Route) -> Read:
        if row["released_at"] is not None:
            return []
        row = self._opened(row)
        if row["body"] is None:
            size = row["body_bytes"]
            told = "never came" if size is None else f"of {size:,} bytes was not kept"
            raise StillRefused(f"its body {told}, so that it cannot be verified again")
        is_known = row["code"] == Duplicate.code  # the event it repeats is known to be accepted
        age = datetime.now(UTC) - row["at"]
        if age > route.retention.key - route.provider.redelivery and not is_known:
            raise StillRefused(
                "it is so old that its event may have been accepted and forgotten since:"
                " let in now, it could take effect twice"
            )
        keyring = Keyring(route, self.secrets[route.name], self.uses)
        reading = Reading(route, self.project.registry, keyring)
        settings = self.project.settings
        base = settings.public_url or f"http://{settings.host}:{settings.port}"
        incoming = Incoming(row["headers"], row["body"], row["method"], base + row["path"])
        try:
            if row["verified_by"] is not None:
                read = reading.read_verified(incoming, row["verified_by"], row["at"])
            else:
                read = await asyncio.to_thread(reading.read, incoming, row["at"])
        except RequestRejected as rejection:
            raise StillRefused(_words(rejection, row["headers"])) from None
        _refuse_unknown(read)
        return read

    def _opened(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decrypt the stored request, if it is encrypted."""
        if row["key_id"] is None or row["body"] is None:
            return row
        try:
            return {
                **row,
                **open_rejected(self.encryption.ring, row["route"], row["at"], row["body"]),
            }
        except (KeyMissing, SealBroken) as error:
            raise StillRefused(f"it is encrypted, and cannot be read: {error}") from None

    async def _take(
        self, session: Connection | Pooled, row: Mapping[str, Any], route: Route, read: Read
    ) -> Released:
        id: int = row["id"]
        claims = [one for one in read if isinstance(one, Claim)] if isinstance(read, list) else []
        if row["code"] in {
            RepeatedBody.code,
            Duplicate.code,
        }:  # the operator has decided that it is new
            claims = [claim._replace(refuses=None, window=None) for claim in claims]
        answers = [await self._claim(claim) for claim in claims]
        repeated = next((a for a in answers if a.verdict is ClaimVerdict.REPEATED_BODY), None)
        if repeated is not None:
            detail = (
                f"REPEATED_BODY: event {repeated.first_event_id} brought its bytes first; if it is"
                " another event nevertheless, release it once more, by its id or --code"
                " REPEATED_BODY"
            )
            await mark_repeated(session, id, detail)
            return Released(id=id, outcome="refused", route=route.name, detail=detail)
        settings = self.project.settings
        bounds = Bounds(settings.rejected_rows, settings.rejected_size)
        if items := self._rejected_items(row, route, read):
            try:
                await keep_items(session, items, bounds)
            except NoRoom:
                detail = "it has items that are rejected, and too many of the route wait already"
                return Released(id=id, outcome="refused", route=route.name, detail=detail)
        event_ids = tuple(_ids(read, answers))
        await mark_released(
            session, id, event_ids, route=route.name, actor=self.actor, reason=self.reason
        )
        duplicates = self._duplicates(row, route, read, answers)
        if duplicates and bounds.rows:  # last: to make room, it may delete the released row
            await keep_rejected(session, duplicates, bounds)
        outcome = _outcome(answers)
        self.stats.add(route.name, REQUESTS, outcome)
        told = (
            "a body is that of an earlier event: it is listed as DUPLICATE" if duplicates else None
        )
        return Released(id=id, outcome=outcome, route=route.name, event_ids=event_ids, detail=told)

    def _rejected_items(self, row: Mapping[str, Any], route: Route, read: Read) -> list[Rejected]:
        """Return the items of a batch that cannot be read, as `serve` would keep them."""
        found = {} if isinstance(read, Greeting) else dict(enumerate(read))
        rejected = {n: one for n, one in found.items() if isinstance(one, RejectedItem)}
        if not rejected or route.provider.split is None:
            return []
        row = self._opened(row)
        items = _items(row, route)
        return [
            self._kept(
                row,
                route,
                items[n],
                at=row["at"],
                code=one.rejection.code,
                cause=BAD_ITEM,
                detail=describe_item(one.rejection.reason),
                verified_by=one.verified_by,
            )
            for n, one in rejected.items()
        ]

    def _duplicates(
        self, row: Mapping[str, Any], route: Route, read: Read, answers: Sequence[Claimed]
    ) -> list[Rejected]:
        """Return the duplicates by body, as `serve` would keep them: each may be another event."""
        answered = iter(answers)
        found = {
            n: (claim, next(answered))
            for n, claim in enumerate([] if isinstance(read, Greeting) else read)
            if isinstance(claim, Claim)
        }
        repeated = {
            n: (claim, answer.first_event_id)
            for n, (claim, answer) in found.items()
            if answer.verdict is ClaimVerdict.DUPLICATE and answer.first_event_id is not None
        }
        if not repeated:
            return []
        row = self._opened(row)
        items = _items(row, route)
        return [
            self._kept(
                row,
                route,
                items[n],
                at=claim.received_at,  # not that of the batch: the id of another item may have it
                code=Duplicate.code,
                cause=Duplicate.code.lower(),
                detail=f"its body is that of event {first}: a retry, or another event",
                verified_by=claim.verified_by,
            )
            for n, (claim, first) in repeated.items()
        ]

    def _kept(
        self,
        row: Mapping[str, Any],
        route: Route,
        item: Incoming,
        *,
        at: datetime,
        code: str,
        cause: str,
        detail: str,
        verified_by: str | None,
    ) -> Rejected:
        body = route.redacted(item.headers, item.body)
        kept = Rejected(
            route=route.name,
            at=at,
            code=code,
            cause=cause,
            detail=detail,
            shadow=False,
            method=row["method"],
            path=row["path"],
            address=row["address"],
            sender=row["sender"],
            headers=dict(item.headers),
            body=body,
            body_bytes=len(body),
            digest=hashlib.sha256(body).digest(),
            verified_by=verified_by,
        )
        return seal_row(kept, self.encryption) if route.encrypt else kept

    async def _claim(self, claim: Claim) -> Claimed:
        try:
            async with asyncio.timeout(CLAIM_WITHIN_S):
                return await self.claimer.claim(claim)
        except TimeoutError:
            raise StorageUnavailable(f"not claimed within {CLAIM_WITHIN_S:g} s") from None


def check_route(project: Project, name: str | None) -> None:
    """Raise NotFound if nothing can be released to the route."""
    names = [route.label for route in project.config.doors]
    if name is not None and name not in {route.name for route in project.config.doors}:
        raise NotFound(f"to_route: found {name!r}; expected {one_of(names, like=name)}")


@asynccontextmanager
async def claiming(url: str, accepted: list[int], codec: ClaimCodec) -> AsyncIterator[Claimer]:
    """Run a claimer in the context. The ids of runnable deliveries are added to `accepted`."""
    claimer = Claimer(url, on_accepted=accepted.extend, codec=codec)
    await claimer.start()
    try:
        yield claimer
    finally:
        await claimer.stop()


def _items(row: Mapping[str, Any], route: Route) -> Sequence[Incoming]:
    """Return the items of a stored batch, or the stored request."""
    incoming = Incoming(row["headers"], row["body"], row["method"], row["path"])
    is_item = row["verified_by"] is not None
    split = route.provider.split
    return [incoming] if split is None or is_item else split(incoming)


def _ids(read: Read, answers: Sequence[Claimed] = ()) -> list[str]:
    """Return the event ids that the request would have, or has once its claims are answered."""
    if isinstance(read, Greeting):
        return []
    answered = iter(answers)
    ids: list[str] = []
    for one in read:
        if isinstance(one, Claim):
            answer = next(answered, None)
            ids.append(one.envelope.id if answer is None else answer.event_id(one))
        elif not isinstance(one, RejectedItem):
            ids.append(one.id)
    return ids


def _refuse_unknown(read: Read) -> None:
    """Raise StillRefused if a field of an event came from a credential that was not stored."""
    for one in read if isinstance(read, list) else ():
        if isinstance(one, RejectedItem):
            continue
        envelope = one.envelope if isinstance(one, Claim) else one
        for name in ("id", "type", "account"):
            if NOT_KEPT in (getattr(envelope, name) or ""):
                raise StillRefused(
                    f"its {name} stood in a header or a query parameter that was left out, because"
                    " its name is that of a credential: have the sender deliver it again"
                )


def _outcome(answers: Sequence[Claimed]) -> Literal["accepted", "duplicate", "ignored"]:
    if not answers:
        return "ignored"
    is_new = any(answer.verdict is ClaimVerdict.ACCEPTED for answer in answers)
    return "accepted" if is_new else "duplicate"


def _words(rejection: RequestRejected, headers: Mapping[str, str]) -> str:
    told = f"{rejection.code}: {rejection.reason}"
    if rejection.code == "STALE_TIMESTAMP":
        return f"{told}, as of when it came: only a wider `tolerance` would let it in"
    hidden = sorted(name for name, value in headers.items() if value == NOT_KEPT)
    if rejection.code == "BAD_SIGNATURE" and hidden:
        return f"{told} (not kept of it: {', '.join(hidden)})"
    return told
