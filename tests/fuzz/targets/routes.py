"""routes.yaml: whatever stands in it, it is read or every problem is named."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.errors import ConfigInvalid
from gateway.config.routes import load_config
from tests.fuzz.target import Check, Stage, Target


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    file = stage.directory / "fuzzed.yaml"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        try:
            load_config(file)
        except ConfigInvalid as invalid:
            str(invalid)

    yield check


SEED = b"""
schema: [handlers/schema.sql]
defaults:
  timeout: 60s
  retry: {attempts: 12, backoff: exponential, base: 5s, cap: 6h}
routes:
  stripe:
    provider: stripe
    path: /webhooks/stripe
    secrets: [env:STRIPE, file:/run/secrets/old]
    tolerance: 5m
    handlers: [handlers.billing]
    max_body: 1MiB
    ack_within: 3s
    types: ["payment_intent.*"]
    livemode: true
    spool: always
    repeats: flag
    redact: [data.object.email]
    retention: {key: 35d, payload: 14d, dead: 90d}
  mails:
    provider: publish
    tokens: [env:TOKEN]
    forward: [{url: "https://example.com/x", sign: env:KEY, rate: 5/s}]
"""


def _seeds() -> list[bytes]:
    return [
        SEED,
        b"",
        b"routes: {}",
        b"routes: [1]",
        b"a: &x [*x, *x]",
        b"a: !!python/object/apply:os.system [x]",
        b"[" * 200,
        b"? [a]\n: b",
        b"routes: {a: {provider: stripe, max_body: 1e400}}",
        b"routes: {a: {provider: stripe, tolerance: 99999999999999999999d}}",
        b"routes: {a: {provider: stripe, retention: {key: .inf}}}",
        b"routes:\n\ta: b",
        b"\xef\xbb\xbfroutes: {}",
        b'routes: {\'\xe2\x80\xa8\': 1, "\\ud800": 2, "\\0": 3}',
        b"%YAML 9.9\n---\na: b\n--- c",
    ]


TARGET = Target("routes", _seeds, _open)
