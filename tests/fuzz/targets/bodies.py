"""JSON of verified senders: read, redacted, claimed in a real Postgres, and shown again."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import orjson

from gateway.base.errors import RequestRejected
from gateway.base.model import Event, RetryPolicy
from gateway.config.registry import Registry
from gateway.config.registry.key_path import KeyPath
from gateway.config.registry.registry import Subscription
from gateway.config.routes import Config, load_config
from gateway.ledger.make_claim import make_claim
from gateway.providers import Incoming
from tests.fuzz.storage import storing
from tests.fuzz.target import Check, Stage, Target, header, join, parts
from tests.fuzz.targets.signatures import NOW

ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: [env:A]
    redact: ["data.object.*", "*.email", "a.b.c"]
    redact_at: store
  github:
    provider: github
    secrets: [env:A]
    redact: ["repository", "0"]
"""
PATHS = ("data.object", "data.object.id", "repository", "action", "a.0.0")


async def _handle(event: Event, ctx: object) -> None:
    """Is never called."""


def make_registry(config: Config) -> Registry:
    """A handler for each path by which deliveries could take turns."""
    return Registry(
        Subscription(
            route=route.name,
            handler=path,
            types=("*",),
            function=_handle,
            timeout=timedelta(seconds=1),
            retry=RetryPolicy(),
            order_by=KeyPath.parse(path),
        )
        for route in config.routes
        for path in PATHS
    )


def load_routes(directory: Path) -> Config:
    """The routes of this target."""
    file = directory / "routes.yaml"
    file.write_text(ROUTES, encoding="utf-8")
    return load_config(file)


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    config = load_routes(stage.directory)
    registry = make_registry(config)
    with storing(stage) as (storage, run):

        def check(data: bytes) -> None:
            route = config.routes[data[0] % len(config.routes) if data else 0]
            kind, id, type, body = parts(data[1:], 4)
            headers = {
                "content-type": header(kind),
                "x-github-delivery": header(id),
                "x-github-event": header(type),
            }
            try:
                envelope = route.provider.read(Incoming(headers, body))
            except RequestRejected:
                return
            claim = make_claim(
                route,
                registry,
                envelope,
                headers=headers,
                body=body,
                digest=hashlib.sha256(data).digest(),
                received_at=NOW,
            )
            run(storage.keep(claim))
            if route.redaction is not None:
                route.redaction.apply(headers, body)
                route.redaction.hiding(headers, body)("a text")

        yield check


def hostile_documents() -> list[bytes]:
    """What parsers of JSON stumble over, as values."""
    deep = 400
    return [
        b"[" * deep + b"]" * deep,
        b'{"a":' * deep + b"1" + b"}" * deep,
        b"1" * 400,
        b"-0.0",
        b"1e400",
        b"1e-400",
        b"18446744073709551616",
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\x7f\xc2\x80"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'"\xef\xbf\xbf"',
        b"NaN",
        b"Infinity",
        b'{"a":1,"a":2}',
        b'{"__proto__":{},"":{}}',
    ]


def _seeds() -> list[bytes]:
    stripe = orjson.dumps(
        {
            "id": "evt_1",
            "object": "event",
            "type": "a.b",
            "created": 1,
            "livemode": False,
            "account": "acct_1",
            "data": {"object": {"id": "in_1", "email": "a@b.c"}},
        }
    )
    thin = (
        b'{"id":"evt_2","object":"v2.core.event","type":"a","created":"2026-01-01T00:00:00Z",'
        b'"livemode":true,"context":"acct_1","data":{"object":X}}'
    )
    github = b'{"action":"opened","repository":{"owner":{"login":"x"}},"a":[[X]]}'
    kinds = (b"application/json", b"application/x-www-form-urlencoded")
    seeds = [
        b"\0" + join(b"", b"", b"", stripe),
        b"\0" + join(b"", b"", b"", b"\xef\xbb\xbf" + stripe),
        b"\1" + join(kinds[0], b"guid-1", b"push", github.replace(b"X", b"1")),
        b"\1" + join(kinds[1], b"guid-2", b"push", b"payload=%7B%22a%22%3A1%7D"),
    ]
    for n, value in enumerate(hostile_documents()):
        seeds.append(b"\0" + join(b"", b"", b"", thin.replace(b"X", value)))
        guid = b"guid-%d" % (n + 3)
        seeds.append(b"\1" + join(kinds[0], guid, b"issues", github.replace(b"X", value)))
        seeds.append(b"\1" + join(kinds[0], guid, b"issues", b'{"repository":%b}' % value))
    return seeds


TARGET = Target("bodies", _seeds, _open, on_engines=True)
