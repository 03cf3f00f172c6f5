"""The shipped nginx and Caddy files keep the bytes, the address and the shape of answers."""

import asyncio
import hmac
import json
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from gateway.processes.serve import KEEP_ALIVE_S
from gateway.providers import PROVIDERS
from tests.deploy.files import text_of
from tests.deploy.fronts import Answer, Front, Start, caddy, listening, nginx
from tests.support.ports import free_port
from tests.support.processes import (
    ROUTES,
    STRIPE_SECRET,
    Project,
    Serving,
    github_request,
)

SENDER = "127.0.0.2"
STRANGER = "127.0.0.3"
MIB = 1024**2
LARGEST = max(provider.max_body for provider in PROVIDERS.values())
FRONT_LIMIT = 26 * MIB
FRONTS = {"nginx": nginx, "caddy": caddy}

BODIES = {
    "UTF-8": '{"ref":"refs/heads/größe-€-😀-\u2028","n":"%s"}'.encode(),
    "line ends": b'\r\n{\r\n\t"ref" : "a\\r\\nb",\n"n": "%s"\r}\r\n\r\n',
    "a newline behind": b'{"ref":"main","n":"%s"}\n',
    "spaces around": b'  {"ref":"main","n":"%s"}  ',
    "escapes": b'{"ref":"\\u00e4 + %%20 & = <b>","n":"%s"}',
    "every byte": bytes(range(256)).replace(b"%", b"%%") + b"%s",
}


ODD = """  odd:
    provider: hmac
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    scheme:
      signature: {at: header.x_odd_signature}
      signed: "{body}"
      id: digest
      type: json.type
"""
"""A sender whose header nginx takes for a mistake, unless it is told otherwise."""


def upstream_of(serving: Serving) -> int:
    return int(serving.url.rpartition(":")[2])


@pytest.fixture(scope="module")
def behind(module_project: Project) -> Iterator[Serving]:
    """A `serve` that trusts its front, and takes GitHub's webhooks from one address only."""
    project = module_project
    # Patient: 25 MiB are stored beside other tests.
    more = f"    allow: [{SENDER}]\n    ack_within: 25s\n    receive_within: 25s\n"
    project.write("config/routes.yaml", f"{ROUTES}{more}{ODD}")
    token = "the-admin-token-of-the-suite"
    with project.serve(GATEWAY_TRUSTED_PROXIES="127.0.0.1", GATEWAY_ADMIN_TOKEN=token) as process:
        asyncio.run(process.ready())
        yield process


@pytest.fixture(scope="module", params=FRONTS)
def front(
    request: pytest.FixtureRequest, module_project: Project, behind: Serving
) -> Iterator[Front]:
    start: Start = FRONTS[request.param]
    with start(module_project, upstream_of(behind)) as running:
        asyncio.run(listening(running))
        yield running


def post(front: Front, body: bytes, *options: str, sender: str = SENDER) -> Answer:
    """A signed GitHub delivery."""
    content, headers = github_request(str(uuid4()), body=body)
    options = (*options, "--interface", sender)
    return front.send("/webhooks/github", content, headers, *options)


def unique(body: bytes) -> bytes:
    return body % uuid4().hex.encode()


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_bytes_pass_as_they_are(front: Front, body: bytes, version: str) -> None:
    answer = post(front, unique(body), version)
    # What was verified and is no JSON is a bad payload; changed on the way, a bad signature.
    accepted = (400, b"BAD_PAYLOAD") if body.startswith(b"\0") else (200, b"accepted")
    assert answer.status == accepted[0], answer
    assert accepted[1] in answer.body
    assert answer.version == version.removeprefix("--http").removesuffix(".0")


def test_chunks_pass(front: Front) -> None:
    body = unique(b'{"ref":"main","n":"%s"}\n')
    answer = post(front, body, "--http1.1", "-H", "Transfer-Encoding: chunked")
    assert (answer.status, b"accepted" in answer.body) == (200, True), answer


def test_who_asks_whether_to_go_on_may(front: Front) -> None:
    body = unique(b'{"ref":"main","n":"%s"}')
    answer = post(front, body, "--http1.1", "-H", "Expect: 100-continue")
    assert "100 Continue" in answer.head
    assert (answer.status, b"accepted" in answer.body) == (200, True), answer


@pytest.mark.parametrize(
    "options", [("--http2",), ("--http1.1", "-H", "Transfer-Encoding: chunked")]
)
def test_the_largest_body_passes(front: Front, options: tuple[str, ...]) -> None:
    start = unique(b'{"n":"%s","filler":"')
    body = start + b"x" * (LARGEST - len(start) - 2) + b'"}'
    assert len(body) == LARGEST
    answer = post(front, body, *options)
    assert (answer.status, b"accepted" in answer.body) == (200, True), answer


@pytest.mark.parametrize(
    ("excess", "version"),
    [(1, "--http1.1"), (1, "--http2"), (FRONT_LIMIT - LARGEST + 1, "--http1.1")],
    ids=["serve", "serve-http2", "front"],  # curl 7.88 loses the end of an early HTTP/2 answer
)
def test_what_is_too_large_is_refused_in_one_shape(front: Front, excess: int, version: str) -> None:
    """Whoever refuses it. The front's own limit is above that of `serve`."""
    answer = post(front, b"x" * (LARGEST + excess), version)
    assert answer.status == 413, (answer, front.running.output)
    assert json.loads(answer.body) == {"error": "TOO_LARGE"}
    assert "application/json" in answer.head


def test_a_wrong_signature_is_refused_by_serve(front: Front) -> None:
    answer = front.send("/webhooks/stripe", b"{}", {"Stripe-Signature": "t=1,v1=00"})
    assert (answer.status, answer.body) == (403, b'{"error":"BAD_SIGNATURE"}')


def test_headers_pass_whatever_they_are_called(front: Front) -> None:
    body = unique(b'{"type":"odd","n":"%s"}')
    signature = hmac.new(STRIPE_SECRET.encode(), body, "sha256").hexdigest()
    answer = front.send("/webhooks/odd", body, {"X_Odd_Signature": signature})
    assert (answer.status, b"accepted" in answer.body) == (200, True), answer


def test_the_sender_is_who_connects_to_the_front(front: Front) -> None:
    assert post(front, unique(b'{"n":"%s"}')).status == 200
    assert post(front, unique(b'{"n":"%s"}'), sender=STRANGER).status == 403


@pytest.mark.parametrize("header", [f"X-Forwarded-For: {SENDER}", f"Forwarded: for={SENDER}"])
def test_a_stranger_cannot_say_that_it_is_somebody_else(front: Front, header: str) -> None:
    answer = post(front, unique(b'{"n":"%s"}'), "-H", header, sender=STRANGER)
    assert answer.status == 403, answer


@pytest.mark.parametrize("header", [f"X-Forwarded-For: {STRANGER}", f"Forwarded: for={STRANGER}"])
def test_what_a_sender_says_of_itself_does_not_matter(front: Front, header: str) -> None:
    assert post(front, unique(b'{"n":"%s"}'), "-H", header).status == 200


INSIDE = [
    *(
        "/",
        "/metrics",
        "/metrics?x=/webhooks/",
        "/readyz",
        "/healthz",
        "/console",
        "/console/login",
    ),
    *(
        "/api/v1/status",
        "/api/v1/openapi.json",
        "/v1/queues/orders/jobs",
        "//metrics",
        "/%6detrics",
    ),
    *("/webhooks/../metrics", "/webhooks/%2e%2e/metrics", "/webhooks/..%2fmetrics"),
    *("/webhooks/../api/v1/status", "/webhooks//../metrics", "/./metrics"),
    *("/api/v1/events/../../../webhooks/x", "/api/v1/events/..%2f..%2f..%2fwebhooks%2fx"),
    *("/api/v1/events/%2e%2e/%2e%2e/%2e%2e/webhooks/x", "/WEBHOOKS/../api/v1/status"),
]


@pytest.mark.parametrize("path", INSIDE)
def test_what_is_ours_cannot_be_reached_from_outside(front: Front, path: str) -> None:
    """Not even by paths that a front and `serve` read differently. `serve` would say 401."""
    answer = front.send(path)
    assert answer.status in {400, 404}, answer


@pytest.mark.parametrize("start", FRONTS.values(), ids=FRONTS)
async def test_without_a_serve_senders_are_told_to_come_back(
    start: Start, project: Project
) -> None:
    with start(project, free_port()) as alone:
        await listening(alone)
        body, headers = github_request(str(uuid4()))
        answer = await asyncio.to_thread(alone.send, "/webhooks/github", body, headers)
        assert answer.status == 503
        assert json.loads(answer.body) == {"error": "UNAVAILABLE"}
        assert re.search(r"(?im)^retry-after: [1-9]", answer.head)


def test_fronts_close_kept_connections_before_serve_does() -> None:
    """The other way round, a request could go out on a connection that is being closed."""
    [kept] = re.findall(r"keepalive_timeout (\d+)s", text_of("nginx/gateway.conf"))
    assert int(kept) < KEEP_ALIVE_S
    [kept] = re.findall(r"^\s*keepalive (\d+)s", text_of("caddy/Caddyfile"), re.MULTILINE)
    assert int(kept) < KEEP_ALIVE_S


def test_the_limits_of_the_fronts_are_above_every_default() -> None:
    [nginx_mib] = re.findall(r"client_max_body_size (\d+)m;", text_of("nginx/gateway.conf"))
    [caddy_mib] = re.findall(r"max_size (\d+)MiB", text_of("caddy/Caddyfile"))
    [announced] = re.findall(r"Content-Length}\) > (\d+)", text_of("caddy/Caddyfile"))
    assert int(nginx_mib) * MIB == int(caddy_mib) * MIB == int(announced) == FRONT_LIMIT > LARGEST
