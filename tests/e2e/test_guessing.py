"""Clients that hold one credential and guess another, against a real `serve` and a real worker."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from uuid import uuid4

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.processes import Project, Serving, stripe_request
from tests.support.waiting import PATIENCE_S

ADMIN, READ, METRICS = (f"{name}-token-of-the-suite" for name in ("admin", "read", "metrics"))
JOBS, MAILS, BEARER, HANDSHAKE = (
    f"{name}-token-of-the-suite" for name in ("jobs", "mails", "bearer", "handshake")
)
TOKENS = {
    "GATEWAY_ADMIN_TOKEN": ADMIN,
    "GATEWAY_READ_TOKEN": READ,
    "GATEWAY_METRICS_TOKEN": METRICS,
    "GATEWAY_REFUSED_RATE": "1/m",
    "GATEWAY_TRUSTED_PROXIES": "127.9.9.9",
}
BURST = 5
"""Wrong tokens of one address that are compared; then none for a minute."""

ROUTES = """
routes:
  stripe: {provider: stripe, secrets: [env:STRIPE_WEBHOOK_SECRET]}
  jobs: {provider: publish, tokens: [env:JOBS_TOKEN]}
  mails: {provider: publish, tokens: [env:MAILS_TOKEN]}
  bearer:
    provider: bearer
    secrets: [env:BEARER_TOKEN]
    scheme:
      token: {at: header.authorization, prefix: "Bearer "}
      id: [json.id]
      type: [json.type]
      retries: false
  pages:
    provider: hmac
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    verify_token: env:HANDSHAKE_TOKEN
    scheme:
      signature: {at: header.x-signature}
      id: [json.id]
      type: [json.type]
      retries: false
      handshake:
        - method: GET
          when: {query.mode: subscribe}
          token: query.token
          text: "{query.challenge}"
"""
ADDRESSES = iter(range(20, 250))
TOO_MANY = 429


@pytest.fixture(scope="module")
def serving(module_project: Project) -> Iterator[Serving]:
    module_project.write("config/routes.yaml", ROUTES)
    environ = {
        "JOBS_TOKEN": JOBS,
        "MAILS_TOKEN": MAILS,
        "BEARER_TOKEN": BEARER,
        "HANDSHAKE_TOKEN": HANDSHAKE,
    }
    with module_project.serve(**TOKENS, **environ) as process:
        asyncio.run(process.ready())
        yield process


class Client:
    """A client at an address of its own."""

    def __init__(self, url: str, **always: str) -> None:
        """Initialize the client. It sends the headers `always` with every request."""
        self._url = url
        self._always = always
        self._address = f"127.0.0.{next(ADDRESSES)}"

    async def ask(
        self, path: str, token: str = "", *, method: str = "GET", body: bytes = b"", **headers: str
    ) -> int:
        """Return the status of the answer."""
        given = self._always | headers
        sent = {name.replace("_", "-"): value for name, value in given.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        transport = httpx.AsyncHTTPTransport(verify=False, local_address=self._address)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_S) as client:
            answer = await client.request(method, self._url + path, content=body, headers=sent)
            return answer.status_code

    async def send_stripe(self) -> int:
        body, headers = stripe_request(f"evt_{uuid4().hex}")
        return await self.ask("/webhooks/stripe", method="POST", body=body, **headers)

    async def publish(self, queue: str, token: str) -> int:
        path, body = f"/v1/queues/{queue}/jobs", b'{"payload": {}}'
        return await self.ask(path, token, method="POST", body=body)

    async def send_bearer(self, token: str) -> int:
        body = b'{"id": "%b", "type": "ping"}' % uuid4().hex.encode()
        return await self.ask("/webhooks/bearer", token, method="POST", body=body)

    async def shake_hands(self, token: str, *, content_length: str = "") -> int:
        path = f"/webhooks/pages?mode=subscribe&challenge=1&token={token}"
        headers = {"content_length": content_length} if content_length else {}
        return await self.ask(path, "", method="GET", body=b"", **headers)

    async def log_in(self, token: str) -> int:
        form = {"content_type": "application/x-www-form-urlencoded", "origin": self._url}
        body = f"token={token}&name=Ada".encode()
        return await self.ask("/console/login", method="POST", body=body, **form)


@pytest.fixture
def client(serving: Serving) -> Client:
    return Client(serving.url)


Ask = Callable[[Client], Awaitable[int]]
GOOD: dict[str, tuple[Ask, int]] = {
    "read token": (lambda client: client.ask("/api/v1/status", READ), 200),
    "metrics token": (lambda client: client.ask("/metrics", METRICS), 200),
    "queue token": (lambda client: client.publish("jobs", JOBS), 201),
    "token of a route": (lambda client: client.send_bearer(BEARER), 200),
    "signature": (lambda client: client.send_stripe(), 200),
    "handshake": (lambda client: client.shake_hands(HANDSHAKE), 200),
}
GUESSES: dict[str, tuple[Ask, int]] = {
    "admin token, at the API": (lambda client: client.ask("/api/v1/status", "guess"), 401),
    "admin token, at /metrics": (lambda client: client.ask("/metrics", "guess"), 401),
    "token of another queue": (lambda client: client.publish("mails", "guess"), 401),
    "token of another queue, by its jobs": (
        lambda client: client.ask("/v1/queues/mails/jobs/1", "guess"),
        401,
    ),
    "token of any queue": (lambda client: client.ask("/v1/nothing", "guess"), 401),
    "token of a route": (lambda client: client.send_bearer("guess"), 403),
    "handshake": (lambda client: client.shake_hands("guess"), 403),
    "handshake that announces no body": (
        lambda client: client.shake_hands("guess", content_length="0"),
        403,
    ),
}
SAME = {
    ("token of a route", "token of a route"),
    ("handshake", "handshake"),
    ("handshake", "handshake that announces no body"),
}
PAIRS = [(good, guess) for good in GOOD for guess in GUESSES if (good, guess) not in SAME]


@pytest.mark.parametrize(("good", "guess"), PAIRS)
async def test_a_credential_does_not_excuse_guesses_at_another_one(
    client: Client, good: str, guess: str
) -> None:
    send_good, accepted = GOOD[good]
    send_guess, refused = GUESSES[guess]
    for _ in range(BURST + 1):
        assert await send_good(client) == accepted
        assert await send_guess(client) == refused
    assert await send_good(client) == accepted, "its own credential is still taken"
    assert await send_guess(client) == TOO_MANY


@pytest.mark.parametrize("guess", GUESSES)
async def test_who_passes_for_a_proxy_that_is_not_named_is_counted_once_proxies_are(
    serving: Serving, guess: str
) -> None:
    """A holder of the metrics token is in the gateway's own network, as its proxy is."""
    client = Client(serving.url, x_forwarded_for="203.0.113.7")
    send_guess, refused = GUESSES[guess]
    for _ in range(BURST + 1):
        assert await client.ask("/metrics", METRICS) == 200
        assert await send_guess(client) == refused
    assert await send_guess(client) == TOO_MANY


async def test_who_passes_for_a_proxy_that_is_not_named_waits_at_the_console(
    serving: Serving,
) -> None:
    client = Client(serving.url, x_forwarded_for="203.0.113.7")
    answers = [await client.log_in("guess") for _ in range(2 * BURST)]
    assert answers[0] == 403
    assert answers[-1] == TOO_MANY


@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics"])
async def test_a_guess_that_hits_after_too_many_is_not_let_in(client: Client, path: str) -> None:
    for _ in range(BURST + 1):
        assert await client.ask("/metrics", METRICS) == 200
        assert await client.ask(path, "guess") == 401
    for right in (ADMIN, READ):
        assert await client.ask(path, right) == TOO_MANY
    assert await client.ask("/metrics", METRICS) == 200


async def test_guesses_at_any_queue_count_for_each_of_them(client: Client) -> None:
    for _ in range(BURST + 1):
        assert await client.ask("/v1/nothing", "guess") == 401
    assert await client.publish("jobs", JOBS) == TOO_MANY
    assert await client.publish("mails", MAILS) == TOO_MANY
    assert await client.ask("/v1/queues/jobs/jobs/1", JOBS) == TOO_MANY
    assert await client.ask("/api/v1/status", ADMIN) == 200


@pytest.mark.parametrize(
    ("holder", "guess"),
    [
        (lambda client: client.ask("/api/v1/status", ADMIN), "admin token, at the API"),
        (lambda client: client.ask("/metrics", ADMIN), "admin token, at /metrics"),
        (lambda client: client.ask("/api/v1/status", READ), "admin token, at the API"),
        (lambda client: client.ask("/v1/nothing", MAILS), "token of any queue"),
        (lambda client: client.publish("mails", MAILS), "token of another queue"),
        (lambda client: client.send_bearer(BEARER), "token of a route"),
        (lambda client: client.shake_hands(HANDSHAKE), "handshake"),
    ],
)
async def test_a_known_holder_is_not_locked_out_by_guesses_from_the_same_address(
    client: Client, holder: Ask, guess: str
) -> None:
    """Behind one NAT there are many."""
    send_guess, _ = GUESSES[guess]
    taken = await holder(client)
    assert taken != TOO_MANY
    for _ in range(3 * BURST):
        await send_guess(client)
        assert await holder(client) == taken


QUEUE_JOBS = "/v1/queues/mails/jobs"
WITH_TOKEN: dict[str, tuple[str, str, str, int]] = {
    "Admin API": ("GET", "/api/v1/status", ADMIN, 200),
    "metrics": ("GET", "/metrics", METRICS, 200),
    "queue": ("POST", QUEUE_JOBS, MAILS, 201),
    "queue, by another method": ("GET", QUEUE_JOBS, MAILS, 405),
    "job of a queue": ("GET", f"{QUEUE_JOBS}/1", MAILS, 404),
    "unknown queue": ("GET", "/v1/nothing", MAILS, 404),
}
"""Method, path, a right token, and the status of the answer to it."""
MALFORMED = ["", "Bearer", "Basic Z3Vlc3M=", "guess"]


@pytest.mark.parametrize("endpoint", WITH_TOKEN)
async def test_a_request_without_any_token_is_no_guess(client: Client, endpoint: str) -> None:
    method, path, token, accepted = WITH_TOKEN[endpoint]
    body = b'{"payload": {}}' if method == "POST" else b""
    for _ in range(3 * BURST):
        assert await client.ask(path, method=method, body=body) == 401
    assert await client.ask(path, token, method=method, body=body) == accepted


@pytest.mark.parametrize("authorization", MALFORMED)
@pytest.mark.parametrize("endpoint", WITH_TOKEN)
async def test_a_malformed_authorization_header_is_a_guess(
    client: Client, endpoint: str, authorization: str
) -> None:
    method, path, token, _ = WITH_TOKEN[endpoint]
    body = b'{"payload": {}}' if method == "POST" else b""
    for _ in range(BURST + 1):
        answer = await client.ask(path, method=method, body=body, authorization=authorization)
        assert answer == 401
    assert await client.ask(path, token, method=method, body=body) == TOO_MANY


async def test_a_worker_slows_guesses_of_a_known_scraper_down(project: Project) -> None:
    port = free_port()
    with project.process("worker", GATEWAY_WORKER_PORT=str(port), **TOKENS) as worker:
        url = f"http://127.0.0.1:{port}"
        await Serving(worker, url).ready()
        client = Client(url)
        for _ in range(3 * BURST):
            assert await client.ask("/metrics") == 401
        for _ in range(BURST + 1):
            assert await client.ask("/metrics", METRICS) == 200
            assert await client.ask("/metrics", "guess") == 401
        assert await client.ask("/metrics", METRICS) == 200
        assert await client.ask("/metrics", ADMIN) == TOO_MANY


async def test_a_reader_of_the_console_does_not_begin_anew_by_logging_in(client: Client) -> None:
    """The first wrong tokens cost nothing, and the wait doubles from then on."""

    guesses = 0
    while await client.log_in(READ) == 303:
        assert await client.log_in("guess") in (403, TOO_MANY)
        guesses += 1
        assert guesses < 2 * BURST
    assert await client.log_in(ADMIN) == TOO_MANY


async def test_a_login_without_any_token_is_no_guess(client: Client) -> None:
    for _ in range(3 * BURST):
        assert await client.ask("/console/") == 303
        assert await client.ask("/console/login") == 200
        assert await client.log_in("") == 403
        assert await client.ask("/console/login", method="POST") == 403
    assert await client.log_in(READ) == 303
