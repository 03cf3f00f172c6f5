"""Client of a provider's HTTP API, and the pages of events that it lists."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.base.errors import ProviderFailed, RateLimited
from gateway.base.problems import CREDENTIAL
from gateway.ledger.reconciliations import Missing

# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
CLOCKS_DRIFT_S: Final = 60
LIFETIME_S: Final = 540
"""GitHub accepts at most ten minutes."""


def read_key(pem: bytes) -> RSAPrivateKey:
    """Load an RSA private key. Raises ValueError, whose text shows nothing of the key."""
    try:
        key = load_pem_private_key(pem.replace(b"\\n", b"\n"), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("not an RSA private key in PEM, without a password")
    return key


def make_token(app_id: str, key: RSAPrivateKey, now_s: int) -> str:
    """Return a JSON Web Token (RS256)."""
    parts = [
        _base64({"alg": "RS256", "typ": "JWT"}),
        _base64({"iat": now_s - CLOCKS_DRIFT_S, "exp": now_s + LIFETIME_S, "iss": app_id}),
    ]
    signature = key.sign(".".join(parts).encode(), PKCS1v15(), SHA256())
    return ".".join([*parts, _encode(signature)])


def app_tokens(app_id: str, key: RSAPrivateKey) -> Callable[[], str]:
    """Return a function that returns a valid token, and renews it before it expires."""
    made: tuple[int, str] = (0, "")

    def token() -> str:
        nonlocal made
        now_s = int(time.time())
        if abs(now_s - made[0]) > LIFETIME_S / 2:
            made = now_s, make_token(app_id, key, now_s)
        return made[1]

    return token


def _base64(claims: Mapping[str, object]) -> str:
    return _encode(orjson.dumps(claims))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


TRIES: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0
"""Maximum time to wait for a rate limit. A longer one stops the run, which is resumed later."""

LIMITED: Final = frozenset({403, 429})
PASSING: Final = frozenset({408, 409, 500, 502, 503, 504, 520, 529})
"""Temporary errors, which are retried."""

LONGEST_MESSAGE: Final = 200
TIMEOUT: Final = httpx.Timeout(30, connect=5)
ANSWER_S: Final = 60.0
"""Total timeout of a response: one that trickles in would block a run forever."""

T = TypeVar("T")
Rest = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds, possibly zero, and keeps the run's heartbeat going."""


class ApiRefused(ProviderFailed):
    """The provider answered with an error that a retry does not change."""

    def __init__(self, text: str, status: int) -> None:
        self.status = status
        super().__init__(text)


class _Message(BaseModel):
    """Error messages of GitHub (`message`) and of Stripe (`error`)."""

    message: str | None = None
    error: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Api:
    """Client of one provider at one base URL."""

    name: str
    http: httpx.AsyncClient
    base_url: str
    authorize: Callable[[], Mapping[str, str]]
    """Returns the authentication headers. It is called for each request,
    because a token may expire.
    """
    rest: Rest
    limited_s: float
    """How long to wait if a rate limit is hit and the response does not say for how long."""
    _free_at: float = field(default=0.0)
    """Unix time from which the rate limit of the last response allows the next request."""

    async def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and return the response. Raises ProviderFailed, RateLimited or Refused."""
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
            ) as error:  # the text may quote a header; the class name suffices
                reason, wait_s = type(error).__name__, pause_s
            else:
                self._note_limit(answer)
                if answer.is_success:
                    return answer
                reason = f"{answer.status_code}{self._message(answer)}"
                limit_s = self._limit_s(answer)
                if limit_s is None and answer.status_code not in PASSING:
                    raise ApiRefused(self._refusal(method, path, answer), answer.status_code)
                wait_s = pause_s if limit_s is None else limit_s
            if tried < TRIES:
                await self._wait(wait_s)
                pause_s *= 2
        raise ProviderFailed(
            f"{self.name} did not answer {method} /{path}, {TRIES} times: {reason}"
        )

    def read(self, shape: TypeAdapter[T], answer: httpx.Response) -> T:
        """Parse the JSON of a response.

        Raises ProviderFailed if it is not what the API documents.
        """
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
        """Return the remaining wait for the next rate limit period, and reset it."""
        left_s, self._free_at = max(self._free_at - time.time(), 0.0), 0.0
        return left_s

    def _note_limit(self, answer: httpx.Response) -> None:
        """If no request is left in this rate limit period, make the next
        request wait for the next one.
        """
        if answer.headers.get("x-ratelimit-remaining") == "0":
            self._free_at = _number(answer.headers.get("x-ratelimit-reset")) or 0.0

    def _limit_s(self, answer: httpx.Response) -> float | None:
        """Return how long to wait, or None if the response is not about a rate limit."""
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
        if answer.status_code == 401:  # the message may quote the key
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
    """Parse a header in seconds. A date returns None, because neither provider sends one."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event of the listing that the route accepts."""

    missing: Missing
    """The gap to record if the ledger does not have the event."""
    body: bytes | None = None
    """The event itself, if the listing contains it."""
    problem: str | None = None
    """Why the event cannot be claimed, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderPage:
    """A page of the listing, with each event once."""

    count: int
    """Number of entries in the page, including those that the route does not accept."""
    events: Sequence[ListedEvent]
    cursor: str | None
    """Start of the next page."""


class Listing(Protocol):
    """The events that a provider sent within a time span."""

    def pages(self, cursor: str | None) -> AsyncIterator[ProviderPage]:
        """List from the beginning or from a cursor. Raises ProviderFailed."""
