"""`ctx.once`: an outside effect that is remembered, so that a rerun does not make it again."""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import httpx
import orjson
import structlog

from gateway.errors import NotSent, StorageUnavailable
from gateway.failpoints import reached
from gateway.ledger.connection import LOST, TROUBLE, Pool, describe
from gateway.ledger.effects import Effect, begin_effect, finish_effect, release_effect
from gateway.ledger.sealed import Vault
from gateway.model import Lease

Unknown = Literal["retry", "skip"]
"""What to do about a call of which nobody knows whether it came through."""

NOT_SENT: Final = (
    NotSent,
    ConnectionRefusedError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
"""Errors that prove that nothing was sent: there was no connection to send it on."""

LONGEST_NAME: Final = 200
LARGEST_RESULT_BYTES: Final = 1024 * 1024
KEEP_AGAIN_S: Final = 0.5


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

    async def once(
        self, name: str, call: Callable[[], Any | Awaitable[Any]], unknown: Unknown
    ) -> Any:
        """Makes the call, unless it was made before."""
        _check(name, unknown)
        async with self._turns[name]:
            if name in self._made:
                raise ValueError(
                    f"ctx.once({name!r}) twice in one run: the second would not be called; "
                    "give each effect a name of its own"
                )
            effect = await self._begin_or_undo(name, again=unknown == "retry")
            self._made.add(name)
            if effect.is_done:
                return effect.result
            if not effect.is_ours:
                self._log.warning("effect_unknown", effect=name, begun_at=effect.begun_at)
                return None
            reached("effect.begun")
            result = await self._call(name, call)
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

    async def _call(self, name: str, call: Callable[[], Any | Awaitable[Any]]) -> Any:
        try:
            result = call()
            return await result if inspect.isawaitable(result) else result
        except BaseException as error:
            self._made.discard(name)  # the handler may catch it and try again
            if isinstance(error, NOT_SENT):
                await self._insist(lambda: release_effect(self._ledger, self._lease, name))
            raise

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


def _check(name: str, unknown: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"ctx.once: name: found {name!r}; expected a short text that tells this effect from "
            "the handler's others, and is the same in every run"
        )
    if unknown not in ("retry", "skip"):
        raise ValueError(f"ctx.once({name!r}): unknown: found {unknown!r}; expected retry or skip")
