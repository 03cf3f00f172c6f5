"""`ctx.stripe`: the Stripe client of one delivery.

Importing this module imports stripe, which is slow, so import it only when it is needed.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from traceback import walk_stack
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import httpx
import stripe
from stripe._api_requestor import _APIRequestor
from stripe._request_options import RequestOptions

from gateway.worker.effects import NOT_CONNECTED, NotReached
from gateway.worker.idempotency import current_scope

KEY_HEADER: Final = "Idempotency-Key"
_API_KEY: Final = re.compile("[!-~]+")


def make_stripe_client(
    api_key: str, http: httpx.AsyncClient, key_for: Callable[[str], str]
) -> stripe.StripeClient:
    """Return a client that uses `http`. Its writes have the same idempotency key in every run.

    `key_for` returns the idempotency key for a name. The name of a write consists of its method,
    path and account, and its number among the equal ones in this run. It does not include the
    parameters: if a second run sends other parameters, Stripe refuses the request instead of
    writing a second object.
    """
    if not _API_KEY.fullmatch(api_key):  # httpx would quote an invalid header in its error
        raise ValueError("the Stripe API key holds a space, a line end or no ASCII (not shown)")
    return _Client(api_key, http_client=_Transport(http, key_for))


class _Transport(stripe.HTTPClient):
    """Sends the requests of the stripe library through the HTTP client that all handlers share."""

    name = "httpx"

    def __init__(self, http: httpx.AsyncClient, key_for: Callable[[str], str]) -> None:
        super().__init__()
        self._http = http
        self._key_for = key_for
        self._writes: Counter[str] = Counter()
        self._sent: set[tuple[str, str, str | None]] = set()

    async def request_with_retries_async(
        self, method: str, url: str, headers: Mapping[str, str], *args: Any, **options: Any
    ) -> tuple[Any, int, Any]:
        """Set the idempotency key before the library retries, so that all retries have the same."""
        headers = self._with_key(method, url, headers)
        return await super().request_with_retries_async(method, url, headers, *args, **options)

    async def request_stream_with_retries_async(
        self, method: str, url: str, headers: Mapping[str, str], *args: Any, **options: Any
    ) -> tuple[Any, int, Any]:
        headers = self._with_key(method, url, headers)
        return await super().request_stream_with_retries_async(
            method, url, headers, *args, **options
        )

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        response = await self._send(method, url, headers, post_data)
        return response.content, response.status_code, response.headers

    async def request_stream_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[AsyncIterator[bytes], int, Mapping[str, str]]:
        response = await self._send(method, url, headers, post_data, stream=True)
        return _chunks(response), response.status_code, response.headers

    def request(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_to_block()

    def request_stream(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_to_block()

    def sleep_async(self, secs: float) -> Any:
        return asyncio.sleep(secs)

    async def close_async(self) -> None:
        """Do nothing: other deliveries use the shared client."""

    def close(self) -> None:
        """Do nothing: other deliveries use the shared client."""

    def _with_key(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        path = urlsplit(url).path
        # https://docs.stripe.com/api/idempotent_requests: POST, and DELETE in API v2
        is_write = method == "post" or (method == "delete" and path.startswith("/v2/"))
        given = httpx.Headers(headers)
        if not is_write or KEY_HEADER in given:
            return headers
        # Writes are counted per account. Otherwise a rerun that loops over the accounts in another
        # order would send a write with the key of another account's write, and so write twice.
        accounts = (given.get("Stripe-Account", ""), given.get("Stripe-Context", ""))
        write = " ".join((method, path, *filter(None, accounts)))
        scope = current_scope()
        writes = self._writes if scope is None else scope.writes
        writes[write] += 1
        return {**headers, KEY_HEADER: self._key_for(f"stripe:{write}:{writes[write]}")}

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        post_data: Any,
        stream: bool = False,
    ) -> httpx.Response:
        request = self._http.build_request(
            method.upper(), url, headers=dict(headers), content=post_data
        )
        call = (method, url, headers.get(KEY_HEADER))
        try:
            response = await self._http.send(request, stream=stream)
        except (httpx.HTTPError, *NOT_CONNECTED) as error:
            if not isinstance(error, NOT_CONNECTED):
                self._sent.add(call)
            is_certain = call not in self._sent
            failure = StripeNotReached if is_certain else stripe.APIConnectionError
            raise failure(  # type: ignore[no-untyped-call]
                f"no answer from Stripe to {request.method} {request.url.path}: "
                f"{type(error).__name__}",  # without the message, which may quote a header
                should_retry=isinstance(error, httpx.TransportError),
            ) from error
        self._sent.add(call)
        return response


class StripeNotReached(stripe.APIConnectionError, NotReached):
    """The request was not sent, because there was no connection: not done for `ctx.once`."""


class _Requestor(_APIRequestor):
    """Removes the random idempotency key that the library sets.

    The transport could not distinguish it from a key that the handler has set.
    """

    def request_headers(
        self, method: Any, api_mode: Any, options: RequestOptions
    ) -> dict[str, str]:
        headers: dict[str, str] = super().request_headers(method, api_mode, options)
        if not options.get("idempotency_key"):
            headers.pop(KEY_HEADER, None)
        return headers

    def _new_requestor_with_options(self, options: RequestOptions | None) -> "_Requestor":
        made = super()._new_requestor_with_options(options)
        return _Requestor(options=made._options, client=made._client)


class _Client(stripe.StripeClient):
    """Stripe client whose services, and the objects that they return, all use our requestor."""

    @property
    def _requestor(self) -> _APIRequestor:
        return self._keyless

    @_requestor.setter
    def _requestor(
        self, made: _APIRequestor
    ) -> None:  # the library sets it before it makes the services
        self._keyless = _Requestor(options=made._options, client=made._client)

    def with_stripe_context(
        self, stripe_context: "str | stripe.StripeContext | None"
    ) -> stripe.StripeClient:
        """Override the method of the library, which would return a client with random keys."""
        return _Client(
            str(self._requestor.api_key),
            stripe_context=stripe_context,
            http_client=self._requestor._client,
        )

    async def raw_request_async(self, method_: str, url_: str, **params: Any) -> Any:
        """Remove `usage`, which the library uses internally but sends to Stripe (16.1.0)."""
        params.pop("usage", None)
        return await super().raw_request_async(method_, url_, **params)


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    finally:
        await response.aclose()


def _refuse_to_block() -> NoReturn:
    """Raise an error that names the blocking method that the handler has called.

    That method is the outermost public frame of the library.
    """
    called, owner = "request", None
    for frame, _ in walk_stack(None):
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module != __name__ and not module.startswith("stripe."):
            break
        if not function.startswith("_"):
            called, owner = function, frame.f_locals.get("self")
    is_twin = hasattr(
        owner, f"{called}_async"
    )  # False for a fetched event, True for its notification
    raise RuntimeError(
        f"{called}() would block every delivery of this worker: "
        + (f"await {called}_async() instead" if is_twin else "use an async call of ctx.stripe")
    )
