"""How a failed call of `ctx.once` is classified: not done, or unknown."""

import asyncio
import io
import socket
import sys
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from types import ModuleType
from typing import Any

import httpx
import pytest
import requests
import stripe
import urllib3

from gateway import NotSent
from gateway.worker.effects import NOT_DONE_STATUSES, CallOutcome, classify, counting_requests

URL = "https://mail.example.com/send"
Answer = int | Exception | Callable[[httpx.Request], httpx.Response]


class MailError(Exception):
    """An exception of a handler's own."""


async def outcome_of(
    call: Callable[[], Any], not_done: tuple[type[BaseException], ...] = ()
) -> CallOutcome:
    """Run a call that fails, as `ctx.once` does, and classify it."""
    with counting_requests() as made:
        try:
            result = call()
            if asyncio.iscoroutine(result):
                await result
        except BaseException as error:
            return classify(error, made, not_done)
    raise AssertionError("the call did not fail")


def posting(*answers: Answer) -> Callable[[], Any]:
    """Send one request per answer through one httpx client, until one fails."""
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        now = left.pop(0)
        if isinstance(now, Exception):
            raise now
        return httpx.Response(now) if isinstance(now, int) else now(request)

    async def call() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            while left:
                (await client.post(URL)).raise_for_status()

    return call


@pytest.mark.parametrize("status", range(400, 600))
async def test_every_error_status_has_one_outcome(status: int) -> None:
    listed = {400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 425, 429, 431, 451}
    expected = CallOutcome.NOT_DONE if status in listed else CallOutcome.UNKNOWN
    assert await outcome_of(posting(status)) is expected


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        ConnectionRefusedError("refused"),
        socket.gaierror("no such host"),
        urllib.error.URLError(socket.gaierror("no such host")),
    ],
)
async def test_a_connection_that_was_not_made_is_not_done(error: Exception) -> None:
    assert await outcome_of(posting(error)) is CallOutcome.NOT_DONE


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("late"),
        httpx.WriteError("broken"),
        httpx.ReadError("broken"),
        httpx.RemoteProtocolError("broken"),
        ConnectionResetError("broken"),
        TimeoutError("late"),
        KeyError("a bug"),
    ],
)
async def test_a_broken_exchange_is_unknown(error: Exception) -> None:
    assert await outcome_of(posting(error)) is CallOutcome.UNKNOWN


@pytest.mark.parametrize(
    "second", [401, 404, httpx.ConnectError("refused"), NotSent("no"), MailError("no")]
)
async def test_of_two_requests_the_second_one_proves_nothing(second: Answer) -> None:
    call = posting(200, second) if not isinstance(second, NotSent | MailError) else None

    async def two_then_raise() -> None:
        await posting(200, 200)()
        assert isinstance(second, Exception)
        raise second

    assert await outcome_of(call or two_then_raise, (MailError,)) is CallOutcome.UNKNOWN


async def test_a_refused_connection_is_no_request_so_a_second_try_can_still_prove_it() -> None:
    async def call() -> None:
        try:
            await posting(httpx.ConnectError("refused"))()
        except httpx.ConnectError:
            await posting(401)()

    assert await outcome_of(call) is CallOutcome.NOT_DONE


@pytest.mark.parametrize("then", [404, httpx.ConnectError("refused")])
async def test_a_redirect_was_a_request(then: Answer) -> None:
    elsewhere = httpx.Response(303, headers={"Location": "https://other.example.com/"})
    assert await outcome_of(posting(lambda _: elsewhere, then)) is CallOutcome.UNKNOWN


async def test_an_exception_of_the_handlers_own_is_unknown_until_it_is_mapped() -> None:
    async def call() -> None:
        await posting(200)()
        raise MailError("bounced")

    assert await outcome_of(call) is CallOutcome.UNKNOWN
    assert await outcome_of(call, (MailError,)) is CallOutcome.NOT_DONE


async def test_requests_of_tasks_and_threads_are_counted() -> None:
    def post_in_thread(status: int) -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(status))
        with httpx.Client(transport=transport) as client:
            client.post(URL).raise_for_status()

    async def call() -> None:
        await asyncio.to_thread(post_in_thread, 200)
        await asyncio.create_task(posting(401)())

    assert await outcome_of(lambda: asyncio.to_thread(post_in_thread, 401)) is CallOutcome.NOT_DONE
    assert await outcome_of(call) is CallOutcome.UNKNOWN


async def test_an_answer_whose_requests_could_not_be_counted_is_unknown() -> None:
    """A thread pool does not inherit the context: there may have been other requests."""

    def post() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(401))
        with httpx.Client(transport=transport) as client:
            client.post(URL).raise_for_status()

    with ThreadPoolExecutor(1) as pool:
        assert await outcome_of(lambda: pool.submit(post).result()) is CallOutcome.UNKNOWN


async def test_the_requests_of_a_call_inside_a_call_count_for_both() -> None:
    async def call() -> None:
        with counting_requests():
            await posting(200)()
        await posting(401)()

    assert await outcome_of(call) is CallOutcome.UNKNOWN


class Adapter(requests.adapters.BaseAdapter):
    """Answers for the requests library without a connection."""

    def __init__(self, *answers: int | Exception) -> None:
        super().__init__()
        self._answers = list(answers)

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:  # type: ignore[override]
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response = requests.Response()
        response.status_code, response.request, response.url = answer, request, URL
        response.raw = urllib3.HTTPResponse(body=io.BytesIO(), status=answer, preload_content=False)
        if answer == requests.codes.see_other:
            response.headers["Location"] = URL
        return response

    def close(self) -> None:
        """Nothing is open."""


def not_connected() -> requests.ConnectionError:
    pool = urllib3.HTTPSConnectionPool("mail.example.com")
    connection = urllib3.connection.HTTPConnection("mail.example.com")
    reason = urllib3.exceptions.NewConnectionError(connection, "no")
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(pool, URL, reason))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([401], CallOutcome.NOT_DONE),
        ([500], CallOutcome.UNKNOWN),
        ([not_connected()], CallOutcome.NOT_DONE),
        ([requests.ConnectTimeout("slow")], CallOutcome.NOT_DONE),
        ([requests.ReadTimeout("late")], CallOutcome.UNKNOWN),
        ([requests.ConnectionError(ConnectionResetError("broken"))], CallOutcome.UNKNOWN),
        ([303, 404], CallOutcome.UNKNOWN),
    ],
)
async def test_the_requests_library_is_counted_and_understood(
    answers: list[int | Exception], expected: CallOutcome
) -> None:
    def call() -> None:
        session = requests.Session()
        session.mount("https://", Adapter(*answers))
        session.post(URL).raise_for_status()

    assert await outcome_of(call) is expected


def stripe_error(kind: type[stripe.StripeError], status: int) -> stripe.StripeError:
    required = {"param": None, "code": None}
    extra = required if kind in (stripe.CardError, stripe.InvalidRequestError) else {}
    return kind("no", http_status=status, **extra)


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (stripe.AuthenticationError, 401, CallOutcome.NOT_DONE),
        (stripe.PermissionError, 403, CallOutcome.NOT_DONE),
        (stripe.InvalidRequestError, 400, CallOutcome.NOT_DONE),
        (stripe.InvalidRequestError, 404, CallOutcome.NOT_DONE),
        (stripe.RateLimitError, 429, CallOutcome.NOT_DONE),
        (stripe.IdempotencyError, 400, CallOutcome.UNKNOWN),
        (stripe.CardError, 402, CallOutcome.UNKNOWN),
        (stripe.APIConnectionError, 0, CallOutcome.UNKNOWN),
        (stripe.APIError, 500, CallOutcome.UNKNOWN),
        (stripe.APIError, 400, CallOutcome.UNKNOWN),
    ],
)
async def test_stripe_is_told_by_its_error_classes(
    kind: type[stripe.StripeError], status: int, expected: CallOutcome
) -> None:
    async def call() -> None:
        await posting(200)()  # the library reads the answer itself
        raise stripe_error(kind, status)

    assert await outcome_of(call) is expected


async def test_urllib_is_understood() -> None:
    def refused() -> None:
        urllib.request.build_opener(Refuse).open(URL)

    class Refuse(urllib.request.BaseHandler):
        handler_order = 1  # before the one that would connect

        def https_open(self, _: urllib.request.Request) -> None:
            raise urllib.error.URLError(ConnectionRefusedError(111, "refused"))

    class Unauthorized(urllib.request.BaseHandler):
        handler_order = 1

        def https_open(self, _: urllib.request.Request) -> None:
            raise urllib.error.HTTPError(URL, 401, "no", Message(), None)

    assert await outcome_of(refused) is CallOutcome.NOT_DONE
    opener = urllib.request.build_opener(Unauthorized)
    assert await outcome_of(lambda: opener.open(URL)) is CallOutcome.NOT_DONE


@pytest.fixture
def aiohttp(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The parts of aiohttp that are looked at: the library itself is not installed here."""

    class ClientRequest:
        async def send(self, answer: object) -> None:
            if isinstance(answer, Exception):
                raise answer

    class ClientSession:
        async def _request(self, *hops: object) -> None:
            """One answer, or error, for each redirect."""
            for hop in hops:
                if isinstance(hop, ClientConnectorError):
                    raise hop
                await ClientRequest().send(hop)

    class ClientConnectorError(OSError):
        pass

    class ClientResponseError(Exception):
        def __init__(self, status: int) -> None:
            self.status = status

    module: Any = ModuleType("aiohttp")
    for each in (ClientRequest, ClientSession, ClientConnectorError, ClientResponseError):
        setattr(module, each.__name__, each)
    monkeypatch.setitem(sys.modules, "aiohttp", module)
    return module


async def test_aiohttp_is_counted_and_understood(aiohttp: Any) -> None:
    def failing(*hops: object) -> Callable[[], Any]:
        return lambda: aiohttp.ClientSession()._request(*hops)

    refused = aiohttp.ClientConnectorError("refused")
    assert await outcome_of(failing(aiohttp.ClientResponseError(401))) is CallOutcome.NOT_DONE
    assert await outcome_of(failing(aiohttp.ClientResponseError(500))) is CallOutcome.UNKNOWN
    assert await outcome_of(failing(303, aiohttp.ClientResponseError(401))) is CallOutcome.UNKNOWN
    assert await outcome_of(failing(refused)) is CallOutcome.NOT_DONE
    assert await outcome_of(failing(303, refused)) is CallOutcome.UNKNOWN


def test_the_list_of_the_guide_is_the_list_of_the_code() -> None:
    assert sorted(NOT_DONE_STATUSES) == [
        400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 425, 429, 431, 451,
    ]  # fmt: skip
