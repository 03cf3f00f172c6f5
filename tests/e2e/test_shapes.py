"""Shapes of requests on which a front and a server may disagree, against the real ones."""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.support.processes import (
    Project,
    Running,
    Serving,
    github_request,
    stripe_request,
)
from tests.support.proxy import haproxy, nginx
from tests.support.shapes import SHAPES, Shape

QUESTION = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
PATIENCE_S = 20


async def ask(url: str, data: bytes) -> bytes:
    """What comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


def statuses(answer: bytes) -> tuple[int, ...]:
    return tuple(map(int, STATUS.findall(answer)))


def on_the_wire(
    request: tuple[bytes, Mapping[str, str]], *lines: bytes, path: bytes = b"/webhooks/stripe"
) -> bytes:
    body, headers = request
    head = [b"POST %b HTTP/1.1" % path, b"host: x", b"content-length: %d" % len(body), *lines]
    head += [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_each_shape_has_its_answer(serving: Serving, shape: Shape) -> None:
    answer = await ask(serving.url, shape.data + QUESTION)
    assert statuses(answer) == shape.statuses, answer


async def test_what_is_refused_says_so_in_json_and_closes(serving: Serving) -> None:
    answer = await ask(serving.url, SHAPES["length: twice"].data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b'{"error":"BAD_REQUEST"}'
    assert b"connection: close" in head
    answer = await ask(serving.url, SHAPES["encoding: gzip"].data)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b'{"error":"UNSUPPORTED_ENCODING"}'
    assert b"connection: close" in head


async def test_a_refused_encoding_is_counted(serving: Serving) -> None:
    await ask(serving.url, SHAPES["encoding: gzip"].data)
    metrics = await ask(
        serving.url, b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    assert b'gateway_requests_total{outcome="UNSUPPORTED_ENCODING",route="stripe"}' in metrics


async def test_a_good_request_before_a_bad_one_gets_its_own_answer(serving: Serving) -> None:
    """The bad one is read first, while the good one is still being stored."""
    for name in ("length: twice", "head: no colon", "path: fragment", "chunk: too short"):
        event_id = f"evt_{uuid4().hex}"
        answer = await ask(serving.url, on_the_wire(stripe_request(event_id)) + SHAPES[name].data)
        # A bad chunk follows a good head: that request waits, and gets its own answer.
        expected = (200, 400) if name.startswith("chunk") else (200,)
        assert statuses(answer) == expected, (name, answer)
        assert event_id.encode() in answer.partition(b"HTTP/1.1 400")[0]


async def test_nothing_behind_an_upgrade_is_read_as_http(serving: Serving) -> None:
    request = SHAPES["head: upgrade to websockets"].data
    event_id = f"evt_{uuid4().hex}"
    answer = await ask(serving.url, request + on_the_wire(stripe_request(event_id)))
    assert statuses(answer) == (200,)
    assert event_id.encode() not in answer
    assert b"connection: close" in answer


async def test_a_head_for_too_many_fields_leaves_the_answer_before_it_alone(
    serving: Serving,
) -> None:
    event_id = f"evt_{uuid4().hex}"
    many = b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n"
    answer = await ask(serving.url, on_the_wire(stripe_request(event_id)) + many)
    assert statuses(answer) == (200,)
    assert event_id.encode() in answer


async def test_strangers_cannot_fill_the_log(serving: Serving) -> None:
    before = serving.running.output.count("not_http")
    bad, upgrade = SHAPES["head: no colon"].data, SHAPES["head: upgrade to h2c"].data
    await asyncio.gather(*(ask(serving.url, bad) for _ in range(200)))
    await asyncio.gather(*(ask(serving.url, upgrade) for _ in range(20)))
    assert serving.running.output.count("not_http") - before < 100
    assert "not_http" in serving.running.output
    assert "Invalid HTTP" not in serving.running.output
    assert "pgrade" not in serving.running.output


# Twice the same header


@pytest.mark.parametrize("junk", [b"t=1,v1=0", b"", None], ids=["another", "empty", "the same"])
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
async def test_a_signature_that_comes_twice_is_refused(
    serving: Serving, junk: bytes | None, first: bool
) -> None:
    body, headers = stripe_request(f"evt_{uuid4().hex}")
    good = headers.pop("stripe-signature").encode()
    several = [good if junk is None else junk, good]
    lines = [b"stripe-signature: " + value for value in (several if first else several[::-1])]
    answer = await ask(serving.url, on_the_wire((body, headers), *lines, b"connection: close"))
    assert answer.endswith(b'{"error":"BAD_SIGNATURE"}'), answer


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("x-hub-signature-256", b"BAD_SIGNATURE"),
        ("x-github-delivery", b"BAD_PAYLOAD"),
        ("x-github-event", b"BAD_PAYLOAD"),
    ],
)
async def test_what_github_says_once_is_refused_twice(
    serving: Serving, name: str, error: bytes
) -> None:
    body, headers = github_request(uuid4().hex, body=b'{"ref":"%b"}' % uuid4().hex.encode())
    twice = f"{name}: {headers[name]}".encode()
    request = on_the_wire((body, headers), twice, b"connection: close", path=b"/webhooks/github")
    answer = await ask(serving.url, request)
    assert answer.endswith(b'{"error":"%b"}' % error), answer


async def test_another_header_may_come_twice(serving: Serving) -> None:
    lines = (b"via: 1.1 a", b"via: 1.1 b", b"connection: close")
    answer = await ask(serving.url, on_the_wire(stripe_request(f"evt_{uuid4().hex}"), *lines))
    assert statuses(answer) == (200,)


async def test_an_underscore_is_no_hyphen(serving: Serving) -> None:
    body, headers = stripe_request(f"evt_{uuid4().hex}")
    headers["stripe_signature"] = headers.pop("stripe-signature")
    answer = await ask(serving.url, on_the_wire((body, headers), b"connection: close"))
    assert answer.endswith(b'{"error":"BAD_SIGNATURE"}')


# What a body claims to be


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json; charset=utf-16", '{"a":1}'.encode("utf-16"), 400),
        ("application/json; charset=utf-16", None, 200),
        ("application/json;;;=", None, 200),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n{}\r\n--x--\r\n", 400),
        ("application/x-www-form-urlencoded; charset=utf-16", b"payload=%7B", 400),
        ("\x80\xff", None, 200),
        ("x" * 8000, None, 200),
        ("", None, 200),
    ],
)
async def test_odd_content_types_are_read_for_what_the_body_is(
    serving: Serving, kind: str, body: bytes | None, status: int
) -> None:
    document = b'{"n":"%b"}' % uuid4().hex.encode() if body is None else body
    signed, headers = github_request(uuid4().hex, body=document)
    del headers["content-type"]
    request = on_the_wire((signed, headers), b"connection: close", path=b"/webhooks/github")
    line = b"content-type: " + kind.encode("latin-1")
    answer = await ask(serving.url, request.replace(b"host: x", b"host: x\r\n" + line, 1))
    assert statuses(answer) == (status,), answer


# Behind a front

Front = Callable[[Project, list[int]], AbstractContextManager[tuple[Running, str]]]


@pytest.mark.parametrize("front", [haproxy, nginx])
async def test_a_front_and_the_gateway_agree_on_where_a_request_ends(
    serving: Serving, module_project: Project, front: Front
) -> None:
    """After each shape, the next request on the front's only connection is another client's."""
    port = urlsplit(serving.url).port
    assert port is not None
    odd = []
    with front(module_project, [port]) as (running, url):
        await Serving(running, url).ready()
        for name, shape in SHAPES.items():
            hidden = on_the_wire(stripe_request(f"evt_{uuid4().hex}"))
            await _provoke(url, shape.data + hidden)
            event_id = f"evt_{uuid4().hex}"
            answer = await ask(url, on_the_wire(stripe_request(event_id), b"connection: close"))
            if statuses(answer) != (200,) or event_id.encode() not in answer:
                odd.append((name, answer))
    assert odd == []


async def _provoke(url: str, data: bytes) -> None:
    """Sends, and hears the first answer at most."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write(data)
        await asyncio.wait_for(reader.readline(), 0.5)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()


@pytest.fixture(scope="module")
def serving(module_project: Project) -> Iterator[Serving]:
    """One that looks at every refused request, however many there are."""
    with module_project.serve(GATEWAY_REFUSED_RATE="10000/s") as process:
        asyncio.run(process.ready())
        yield process


@pytest.fixture(autouse=True, scope="module")
def _no_error_is_logged(serving: Serving) -> Iterator[None]:
    yield
    assert "Traceback" not in serving.running.output
    assert '"level":"error"' not in serving.running.output
