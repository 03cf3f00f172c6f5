"""A provider's HTTP API, asked with patience: limits are respected, bad moments retried."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.errors import ProviderFailed, RateLimited
from gateway.notation.problems import CREDENTIAL

TRIES: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0
"""Longer than this nobody sits through: the run stops, and is gone on with later."""

LIMITED: Final = frozenset({403, 429})
PASSING: Final = frozenset({408, 409, 500, 502, 503, 504, 520, 529})
"""Answers that may be others a moment later."""

LONGEST_MESSAGE: Final = 200
TIMEOUT: Final = httpx.Timeout(30, connect=5)
ANSWER_S: Final = 60.0
"""For all of an answer: one that trickles in would hold a run for ever."""

T = TypeVar("T")
Rest = Callable[[float], Awaitable[None]]
"""Waits so many seconds, or none, and shows that somebody is still there."""


class Refused(ProviderFailed):
    """The provider answered, and said no."""

    def __init__(self, text: str, status: int) -> None:
        self.status = status
        super().__init__(text)


class _Message(BaseModel):
    """Where GitHub, and where Stripe, says what is wrong."""

    message: str | None = None
    error: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Api:
    """One provider, at one URL."""

    name: str
    http: httpx.AsyncClient
    base_url: str
    authorize: Callable[[], Mapping[str, str]]
    """The headers that show who we are; made anew for each request, since a token may expire."""
    rest: Rest
    limited_s: float
    """How long to wait where a limit is hit and the answer does not say for how long."""
    _free_at: float = field(default=0.0)
    """When the limit of which the last answer told allows the next request."""

    async def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer. Raises ProviderFailed: RateLimited, Refused, or for want of an answer."""
        pause_s, reason = FIRST_PAUSE_S, "nothing"
        for tried in range(1, TRIES + 1):
            await self._wait(self._left_s())
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await self.http.request(
                        method,
                        f"{self.base_url}/{path}",
                        params=params,
                        headers={**self.authorize(), **(headers or {})},
                        timeout=TIMEOUT,
                    )
            except (
                httpx.HTTPError,
                TimeoutError,
            ) as error:  # its text may quote a header: its name is enough
                reason, wait_s = type(error).__name__, pause_s
            else:
                self._note_limit(answer)
                if answer.is_success:
                    return answer
                reason = f"{answer.status_code}{self._message(answer)}"
                limit_s = self._limit_s(answer)
                if limit_s is None and answer.status_code not in PASSING:
                    raise Refused(self._refusal(method, path, answer), answer.status_code)
                wait_s = pause_s if limit_s is None else limit_s
            if tried < TRIES:
                await self._wait(wait_s)
                pause_s *= 2
        raise ProviderFailed(
            f"{self.name} did not answer {method} /{path}, {TRIES} times: {reason}"
        )

    def read(self, shape: TypeAdapter[T], answer: httpx.Response) -> T:
        """The answer's JSON. Raises ProviderFailed where it is not what the API promises."""
        try:
            return shape.validate_json(answer.content)
        except ValidationError as error:
            at = ".".join(map(str, error.errors(include_input=False)[0]["loc"])) or "its JSON"
            where = answer.request.url.path
        raise ProviderFailed(f"{self.name}'s answer to {where} cannot be read, at {at[:100]}")

    async def _wait(self, seconds: float) -> None:
        if seconds > LONGEST_WAIT_S:
            raise RateLimited(
                f"{self.name} wants no more requests for {seconds:.0f} s: go on with it then"
            )
        await self.rest(seconds)

    def _left_s(self) -> float:
        """Of the wait for the next period; asked for by who then waits."""
        left_s, self._free_at = max(self._free_at - time.time(), 0.0), 0.0
        return left_s

    def _note_limit(self, answer: httpx.Response) -> None:
        """Nothing left in this period: the next request waits for the next one."""
        if answer.headers.get("x-ratelimit-remaining") == "0":
            self._free_at = _number(answer.headers.get("x-ratelimit-reset")) or 0.0

    def _limit_s(self, answer: httpx.Response) -> float | None:
        """How long to leave it alone; None where it did not refuse for coming too often."""
        after_s = _number(answer.headers.get("retry-after"))
        if after_s is not None and answer.status_code in LIMITED | PASSING:
            return after_s
        if answer.status_code not in LIMITED:
            return None
        if answer.headers.get("x-ratelimit-remaining") == "0":
            return self._left_s()
        # https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
        is_limit = answer.status_code == 429 or "rate limit" in self._message(answer).lower()
        return self.limited_s if is_limit else None

    def _refusal(self, method: str, path: str, answer: httpx.Response) -> str:
        if answer.status_code == 401:  # its text may quote the key
            return f"{self.name} refused the key that it was shown (401)"
        said = self._message(answer)
        return f"{self.name} answered {method} /{path} with {answer.status_code}{said}"

    def _message(self, answer: httpx.Response) -> str:
        try:
            told = _Message.model_validate_json(answer.content)
        except ValidationError:
            return ""
        text = told.message or str((told.error or {}).get("message", ""))
        text = "".join(c if c.isprintable() else " " for c in text)[:LONGEST_MESSAGE]
        return f": {text}" if text and not CREDENTIAL.search(text) else ""


def _number(text: str | None) -> float | None:
    """A header's seconds; a date, which the two do not send, counts as nothing said."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
