"""`ctx.stripe`: the Stripe client of one delivery. Importing this imports stripe: do it late."""

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

from gateway.run.outcome import NOT_CONNECTED, NotReached

KEY_HEADER: Final = "Idempotency-Key"
_API_KEY: Final = re.compile("[!-~]+")


def make_stripe_client(
    api_key: str, http: httpx.AsyncClient, key_for: Callable[[str], str]
) -> stripe.StripeClient:
    """A client that sends through `http`, and whose writes have the same key in every run.

    `key_for` makes the key of a name. The name of a write is its method, path and account, and
    its number among those in this run; not its parameters, so that a second run that would write
    something else is refused by Stripe instead of written beside the first.
    """
    if not _API_KEY.fullmatch(api_key):  # as a header, it would be quoted in httpx's error
        raise ValueError("the Stripe API key holds a space, a line end or no ASCII (not shown)")
    return _Client(api_key, http_client=_Transport(http, key_for))


class _Transport(stripe.HTTPClient):
    """Sends the library's requests through the client that all handlers share."""

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
        """Before the retries of the library, so that they share one key."""
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
        """Nothing: other deliveries use the shared client."""

    def close(self) -> None:
        """Nothing: other deliveries use the shared client."""

    def _with_key(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        path = urlsplit(url).path
        # https://docs.stripe.com/api/idempotent_requests: POST, and DELETE in API v2
        is_write = method == "post" or (method == "delete" and path.startswith("/v2/"))
        given = httpx.Headers(headers)
        if not is_write or KEY_HEADER in given:
            return headers
        # Keys count per account: without it, a loop over accounts in another order writes twice.
        accounts = (given.get("Stripe-Account", ""), given.get("Stripe-Context", ""))
        write = " ".join((method, path, *filter(None, accounts)))
        self._writes[write] += 1
        return {**headers, KEY_HEADER: self._key_for(f"stripe:{write}:{self._writes[write]}")}

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
                f"{type(error).__name__}",  # its text may quote a header
                should_retry=isinstance(error, httpx.TransportError),
            ) from error
        self._sent.add(call)
        return response


class StripeNotReached(stripe.APIConnectionError, NotReached):
    """There was no connection to send the request on: for `ctx.once`, it was not made."""


class _Requestor(_APIRequestor):
    """Leaves out the random key, which the transport could not tell from one of the caller's."""

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
    """A client whose services, and the objects that they return, all use our requestor."""

    @property
    def _requestor(self) -> _APIRequestor:
        return self._keyless

    @_requestor.setter
    def _requestor(self, made: _APIRequestor) -> None:  # by the library, before its services
        self._keyless = _Requestor(options=made._options, client=made._client)

    def with_stripe_context(
        self, stripe_context: "str | stripe.StripeContext | None"
    ) -> stripe.StripeClient:
        """The library's own would return a client with random keys."""
        return _Client(
            str(self._requestor.api_key),
            stripe_context=stripe_context,
            http_client=self._requestor._client,
        )

    async def raw_request_async(self, method_: str, url_: str, **params: Any) -> Any:
        """Without `usage`, which the library means for itself and sends to Stripe (16.1.0)."""
        params.pop("usage", None)
        return await super().raw_request_async(method_, url_, **params)


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    finally:
        await response.aclose()


def _refuse_to_block() -> NoReturn:
    """Names the method that the handler has called: the library's outermost public frame."""
    called, owner = "request", None
    for frame, _ in walk_stack(None):
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module != __name__ and not module.startswith("stripe."):
            break
        if not function.startswith("_"):
            called, owner = function, frame.f_locals.get("self")
    is_twin = hasattr(owner, f"{called}_async")  # a fetched event has none, its notification has
    raise RuntimeError(
        f"{called}() would block every delivery of this worker: "
        + (f"await {called}_async() instead" if is_twin else "use an async call of ctx.stripe")
    )
