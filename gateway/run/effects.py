"""`ctx.once`: an outside effect that is remembered, so that a rerun does not make it again."""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import orjson
import structlog

from gateway.errors import StorageUnavailable
from gateway.failpoints import reached
from gateway.ledger.connection import LOST, TROUBLE, Pool, describe
from gateway.ledger.effects import (
    Effect,
    begin_effect,
    finish_effect,
    mark_effects_unknown,
    note_effect_error,
    release_effect,
)
from gateway.ledger.sealed import Vault
from gateway.model import Lease
from gateway.run.outcome import CallOutcome, classify, counting_requests, describe_error

Unknown = Literal["retry", "skip"]
"""What the next run does about a call whose outcome is unknown."""
NotDone = tuple[type[BaseException], ...]
"""Exceptions by which a handler says that its call was not done."""

LONGEST_NAME: Final = 200
LARGEST_RESULT_BYTES: Final = 1024 * 1024
KEEP_AGAIN_S: Final = 0.5
NOTE_S: Final = 2.0
"""How long a failed call may wait until its error is kept: its run may be shutting down."""


class Effects:
    """The outside effects of one delivery, in one run."""

    def __init__(
        self, ledger: Pool, lease: Lease, vault: Vault, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._ledger = ledger
        self._lease = lease
        self._vault = vault
        self._log = log
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._made: set[str] = set()
        self._failed: set[str] = set()
        """Effects whose last call in this run failed, so that its outcome is unknown."""

    async def once(
        self,
        name: str,
        call: Callable[[], Any | Awaitable[Any]],
        unknown: Unknown,
        not_done: NotDone,
    ) -> Any:
        """Make the call, unless it was made before."""
        _check(name, unknown, not_done)
        async with self._turns[name]:
            if name in self._made:
                raise ValueError(
                    f"ctx.once({name!r}) twice in one run: the second would not be called; "
                    "give each effect a name of its own"
                )
            effect = await self._begin_or_undo(name, again=unknown == "retry")
            self._made.add(name)
            self._failed.discard(name)
            if effect.is_done:
                return effect.result
            if not effect.is_ours:
                self._log.warning("effect_unknown", effect=name, begun_at=effect.begun_at)
                return None
            reached("effect.begun")
            result = await self._call(name, call, not_done)
            reached("effect.called")
            kept = await self._keep(name, result)
            reached("effect.kept")
            return kept

    async def _begin_or_undo(self, name: str, *, again: bool) -> Effect:
        """A run that is cancelled before its call must not leave it as made, perhaps."""
        beginning = asyncio.ensure_future(self._begin(name, again=again))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            if (await beginning).is_ours:
                await release_effect(self._ledger, self._lease, name)
            raise

    async def _begin(self, name: str, *, again: bool) -> Effect:
        try:
            return await begin_effect(
                self._ledger, self._lease, name, again=again, vault=self._vault
            )
        except LOST as error:
            raise StorageUnavailable(f"once({name!r}): {describe(error)}") from error

    async def _call(
        self, name: str, call: Callable[[], Any | Awaitable[Any]], not_done: NotDone
    ) -> Any:
        with counting_requests() as made:
            try:
                result = call()
                return await result if inspect.isawaitable(result) else result
            except BaseException as error:
                self._made.discard(name)  # the handler may catch it and try again
                if classify(error, made, not_done) is CallOutcome.NOT_DONE:
                    await self._insist(lambda: release_effect(self._ledger, self._lease, name))
                else:
                    self._failed.add(name)
                    await self._note(name, error)
                raise

    async def _note(self, name: str, error: BaseException) -> None:
        """Keep what is known for people to read; without it the effect is listed all the same."""
        try:
            async with asyncio.timeout(NOTE_S):
                await note_effect_error(self._ledger, self._lease, name, describe_error(error))
        except TROUBLE as trouble:
            self._log.warning("effect_error_not_kept", effect=name, error=describe(trouble))

    async def finish(self) -> None:
        """Before the delivery completes: mark effects as unknown if the handler caught the errors
        of their calls."""
        if not self._failed:
            return
        try:
            await mark_effects_unknown(self._ledger, self._lease, sorted(self._failed))
        except LOST as error:
            raise StorageUnavailable(f"effects of unknown outcome: {describe(error)}") from error

    async def _keep(self, name: str, result: Any) -> Any:
        """It happened, whatever becomes of its result: that comes first."""
        try:
            document = orjson.dumps(result)
            problem = "it is over 1 MiB" if len(document) > LARGEST_RESULT_BYTES else None
        except TypeError as error:
            problem = str(error)
        kept = b"null" if problem else document
        await self._insist(
            lambda: finish_effect(self._ledger, self._lease, name, kept, vault=self._vault)
        )
        if problem:
            raise TypeError(
                f"ctx.once({name!r}) has made its call, but cannot keep the result "
                f"({type(result).__name__}): {problem}. Return JSON, such as an id, or nothing."
            )
        return orjson.loads(document)

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """For as long as Postgres needs to be back: a call that is not on record is made again."""
        while True:
            try:
                return await write()
            except TROUBLE as error:
                self._log.warning("effect_again", error=describe(error))
                await self._ledger.expire_connections()
                await asyncio.sleep(KEEP_AGAIN_S)


def _check(name: str, unknown: str, not_done: NotDone) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"ctx.once: name: found {name!r}; expected a short text that tells this effect from "
            "the handler's others, and is the same in every run"
        )
    if unknown not in ("retry", "skip"):
        raise ValueError(f"ctx.once({name!r}): unknown: found {unknown!r}; expected retry or skip")
    if not isinstance(not_done, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in not_done
    ):
        raise ValueError(
            f"ctx.once({name!r}): not_done: found {not_done!r:.80}; expected a tuple of exception "
            "classes, such as not_done=(MailRefused,)"
        )
