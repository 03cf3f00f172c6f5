"""Who may send, and how much, against a real server, from several addresses of the loopback."""

import asyncio
import hmac
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from tests.support.processes import Project, Serving, github_request, stripe_request
from tests.support.waiting import PATIENCE_S

ADMIN_TOKEN = "admin-token-of-the-suite"
QUEUE_TOKEN = "queue-token-of-the-suite"
PROXY = "127.0.0.9"
SENDER = "127.0.0.2"
BURST = 5
"""Refusals of one address that are looked at; then none for a minute."""

ROUTES = """
routes:
  stripe: {provider: stripe, secrets: [env:STRIPE_WEBHOOK_SECRET]}
  github: {provider: github, secrets: [env:GITHUB_WEBHOOK_SECRET]}
  listed: {provider: stripe, secrets: [env:STRIPE_WEBHOOK_SECRET], allow: [127.0.0.2]}
  scarce: {provider: stripe, secrets: [env:STRIPE_WEBHOOK_SECRET], limit: 3/1h}
  mailersend: {provider: mailersend, secrets: [env:MAILERSEND_SECRET]}
  jobs: {provider: publish, tokens: [env:JOBS_TOKEN], allow: [127.0.0.0/28], limit: 2/1h}
"""


@pytest.fixture(scope="module")
def serving(module_project: Project) -> Iterator[Serving]:
    module_project.write("config/routes.yaml", ROUTES)
    environ = {
        "GATEWAY_TRUSTED_PROXIES": PROXY,
        "GATEWAY_REFUSED_RATE": "1/m",
        "GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN,
        "JOBS_TOKEN": QUEUE_TOKEN,
        "MAILERSEND_SECRET": "mailersend-secret-of-the-suite",
    }
    with module_project.serve(**environ) as process:
        asyncio.run(process.ready())
        yield process


class Sender:
    """Somebody at an address."""

    def __init__(self, serving: Serving, address: str) -> None:
        self._url = serving.url
        self._address = address

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        answer = await self.answer(method, path, body, headers)
        document = answer.json()
        return answer.status_code, document.get("error") or document.get("status")

    async def answer(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(verify=False, local_address=self._address)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_S) as client:
            return await client.request(
                method, self._url + path, content=body, headers=dict(headers or {})
            )

    async def good(self, path: str = "/webhooks/stripe", **headers: str) -> tuple[int, str]:
        body, signed = stripe_request(f"evt_{uuid4().hex}")
        forwarded = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", path, body, signed | forwarded)

    async def bad(self, path: str = "/webhooks/stripe", **headers: str) -> tuple[int, str]:
        body, signed = stripe_request(f"evt_{uuid4().hex}", secret="whsec_another")
        forwarded = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", path, body, signed | forwarded)


REFUSED = (403, "BAD_SIGNATURE")
ELSEWHERE = (403, "ADDRESS_REFUSED")
NOT_LOOKED_AT = (429, "TOO_MANY_REFUSED")
LIMITED = (429, "RATE_LIMITED")
ACCEPTED = (200, "accepted")
ADDRESSES = iter(range(20, 250))


@pytest.fixture
def stranger(serving: Serving) -> Sender:
    """From an address that nobody has come from."""
    return Sender(serving, f"127.0.0.{next(ADDRESSES)}")


async def test_a_listed_address_is_let_in_and_no_other(serving: Serving, stranger: Sender) -> None:
    assert await Sender(serving, SENDER).good("/webhooks/listed") == ACCEPTED
    assert await stranger.good("/webhooks/listed") == ELSEWHERE


async def test_other_methods_are_refused_from_elsewhere_as_well(
    serving: Serving, stranger: Sender
) -> None:
    assert await stranger.ask("GET", "/webhooks/listed") == ELSEWHERE
    known = await Sender(serving, SENDER).ask("GET", "/webhooks/listed")
    assert known == (405, "METHOD_NOT_ALLOWED")


async def test_only_a_trusted_proxy_says_for_whom_it_forwards(
    serving: Serving, stranger: Sender
) -> None:
    proxy, path = Sender(serving, PROXY), "/webhooks/listed"
    assert await proxy.good(path, x_forwarded_for=SENDER) == ACCEPTED
    assert await proxy.good(path, forwarded=f"for={SENDER};proto=https") == ACCEPTED
    assert await proxy.good(path, x_forwarded_for=f"{SENDER}, 8.8.8.8") == ELSEWHERE
    assert await proxy.good(path, x_forwarded_for="unknown") == ELSEWHERE
    assert await stranger.good(path, x_forwarded_for=SENDER) == ELSEWHERE
    assert await stranger.good(path, forwarded=f"for={SENDER}") == ELSEWHERE


async def test_a_body_from_elsewhere_is_not_read_to_its_end(stranger: Sender) -> None:
    """A sender that is a little over sees the answer; one without an end is cut off."""
    status, _ = await stranger.ask("POST", "/webhooks/listed", b"x" * 500_000)
    assert status == 403
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 * 1024 * 1024:
            sent += 65_536
            yield b"x" * 65_536

    with pytest.raises((httpx.ReadError, httpx.WriteError)):
        await stranger.answer("POST", "/webhooks/listed", endless(), {})  # type: ignore[arg-type]
    assert sent < 16 * 1024 * 1024


async def test_after_too_many_bad_signatures_an_address_is_not_looked_at(
    serving: Serving, stranger: Sender
) -> None:
    answers = [await stranger.bad() for _ in range(BURST + 3)]
    assert Counter(answers) == {REFUSED: BURST + 1, NOT_LOOKED_AT: 2}
    assert await stranger.good() == NOT_LOOKED_AT
    assert await stranger.bad("/webhooks/scarce") == NOT_LOOKED_AT
    told = await stranger.answer("POST", "/webhooks/stripe", b"{}", {})
    assert int(told.headers["retry-after"]) > 0
    await serving.running.says('"not_looked_at"')
    assert await Sender(serving, SENDER).good() == ACCEPTED


async def test_a_handshake_that_anybody_can_sign_earns_no_trust(
    serving: Serving, stranger: Sender
) -> None:
    body = b'{"type":"webhook.test","message":"ping","created_at":"2026-11-18T12:00:00Z"}'
    signature = hmac.digest(b"test_Am3L1GuOIc4blLUuHqAPxxwkZaJyEk8G", body, "sha256").hex()
    signed = {"content-type": "application/json", "signature": signature}
    for _ in range(BURST + 1):
        answer = await stranger.answer("POST", "/webhooks/mailersend", body, signed)
        assert (answer.status_code, answer.content) == (200, b"")
    assert await stranger.ask("POST", "/webhooks/mailersend", body, signed) == NOT_LOOKED_AT
    assert await stranger.good() == NOT_LOOKED_AT
    await serving.running.says('"handshake_answered"')
    right = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    metrics = await Sender(serving, SENDER).answer("GET", "/metrics", b"", right)
    counted = 'gateway_requests_total{outcome="greeted",route="mailersend"}'
    assert f"{counted} {BURST + 1}.0" in metrics.text
    assert 'outcome="accepted",route="mailersend"} 0.0' in metrics.text


async def test_what_is_not_looked_at_is_not_read(serving: Serving, stranger: Sender) -> None:
    for _ in range(BURST + 1):
        await stranger.bad()
    url = urlsplit(serving.url)
    with socket.socket() as connection:
        connection.bind((stranger._address, 0))
        connection.settimeout(PATIENCE_S)
        connection.connect((url.hostname, url.port))
        connection.sendall(
            b"POST /webhooks/stripe HTTP/1.1\r\nhost: gateway\r\ncontent-length: 900000\r\n\r\n{"
        )
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"connection: close" in answer


async def test_a_large_body_counts_for_what_it_costs(stranger: Sender) -> None:
    large = b"x" * (BURST * 64 * 1024)
    assert await stranger.ask("POST", "/webhooks/stripe", large) == REFUSED
    assert await stranger.ask("POST", "/webhooks/stripe", large) == NOT_LOOKED_AT


async def test_a_verified_sender_is_never_shut_out_by_what_comes_from_its_address(
    stranger: Sender,
) -> None:
    assert await stranger.good() == ACCEPTED
    assert {await stranger.bad() for _ in range(4 * BURST)} == {REFUSED}
    assert await stranger.good() == ACCEPTED


async def test_a_sender_that_would_not_come_again_is_looked_at(stranger: Sender) -> None:
    for _ in range(BURST + 1):
        assert await stranger.bad() == REFUSED
    assert await stranger.bad() == NOT_LOOKED_AT
    body, headers = github_request(str(uuid4()), body=f'{{"ref":"{uuid4()}"}}'.encode())
    assert await stranger.ask("POST", "/webhooks/github", body, headers) == ACCEPTED
    assert await stranger.bad() == REFUSED  # by which it is known


async def test_behind_a_trusted_proxy_strangers_count_one_by_one(serving: Serving) -> None:
    proxy = Sender(serving, PROXY)
    for _ in range(BURST + 1):
        assert await proxy.bad(x_forwarded_for="198.51.100.7") == REFUSED
    assert await proxy.bad(x_forwarded_for="198.51.100.7") == NOT_LOOKED_AT
    assert await proxy.bad(x_forwarded_for="203.0.113.1, 198.51.100.7") == NOT_LOOKED_AT
    assert await proxy.bad(x_forwarded_for="198.51.100.8") == REFUSED
    assert await proxy.good(x_forwarded_for="198.51.100.9") == ACCEPTED


async def test_bad_signatures_do_not_use_up_what_a_sender_may_send(
    serving: Serving, stranger: Sender
) -> None:
    path = "/webhooks/scarce"
    for _ in range(BURST + 1):
        assert await stranger.bad(path) == REFUSED
    sender = Sender(serving, SENDER)
    assert [await sender.good(path) for _ in range(3)] == [ACCEPTED] * 3
    body, headers = stripe_request(f"evt_{uuid4().hex}")
    told = await sender.answer("POST", path, body, headers)
    assert (told.status_code, told.json()) == (429, {"error": "RATE_LIMITED"})
    assert 600 < int(told.headers["retry-after"]) <= 1200
    assert await sender.good() == ACCEPTED


async def test_a_queue_has_its_list_its_limit_and_its_strangers(
    serving: Serving, stranger: Sender
) -> None:
    path, right = "/v1/queues/jobs/jobs", {"authorization": f"Bearer {QUEUE_TOKEN}"}
    publisher, job = Sender(serving, SENDER), b'{"payload": {}}'
    assert [await publisher.ask("POST", path, job, right) for _ in range(3)] == [
        (201, "accepted"),
        (201, "accepted"),
        LIMITED,
    ]
    assert await stranger.ask("POST", path, job, right) == ELSEWHERE
    assert await stranger.ask("GET", f"{path}/1", b"", right) == ELSEWHERE
    guesser = Sender(serving, "127.0.0.3")
    wrong = {"authorization": "Bearer of-bad-news-to-all"}
    guessed = [
        await guesser.ask(method, at, b"", wrong)
        for method, at in (("POST", path), ("GET", f"{path}/1"), ("GET", path)) * 2
    ]
    assert guessed == [(401, "UNAUTHORIZED")] * (BURST + 1)
    for method, at in (("POST", path), ("GET", f"{path}/1"), ("GET", path)):
        assert await guesser.ask(method, at, b"", right) == NOT_LOOKED_AT


@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics"])
async def test_whoever_guesses_the_admin_token_is_slowed_down(
    serving: Serving, stranger: Sender, path: str
) -> None:
    right = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    for _ in range(BURST + 1):
        assert await stranger.ask("GET", path, b"", {"authorization": "Bearer x"}) == (
            401,
            "UNAUTHORIZED",
        )
    for guessed in ("/api/v1/status", "/metrics"):
        assert await stranger.ask("GET", guessed, b"", right) == NOT_LOOKED_AT
    assert await stranger.good() == ACCEPTED  # counted apart
    operator = await Sender(serving, SENDER).answer("GET", path, b"", right)
    assert operator.status_code == 200


async def test_what_was_refused_is_counted_and_no_address_is_a_label(serving: Serving) -> None:
    stranger = Sender(serving, "127.0.0.251")
    await stranger.good("/webhooks/listed")
    for _ in range(BURST + 1):
        await stranger.bad()
    right = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = await Sender(serving, SENDER).answer("GET", "/metrics", b"", right)
    for line in (
        'gateway_requests_total{outcome="ADDRESS_REFUSED",route="listed"}',
        'gateway_requests_total{outcome="TOO_MANY_REFUSED",route="stripe"}',
        "gateway_refused_addresses ",
    ):
        [count] = [t.rpartition(" ")[2] for t in answer.text.splitlines() if t.startswith(line)]
        assert float(count) > 0
    assert "127.0.0." not in answer.text


async def test_a_proxy_that_is_not_trusted_is_named_in_the_log(
    serving: Serving, stranger: Sender
) -> None:
    for _ in range(2):
        assert await stranger.good(x_forwarded_for="198.51.100.7") == ACCEPTED
    told = [
        line
        for line in serving.running.output.splitlines()
        if "forwarded_headers_not_believed" in line and stranger._address in line
    ]
    assert len(told) == 1
    assert "GATEWAY_TRUSTED_PROXIES" in told[0]
