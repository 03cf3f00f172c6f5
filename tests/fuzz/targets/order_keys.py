"""Keys by which deliveries take turns, in whatever payload: short, storable, the same each time."""

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from gateway.config.registry.key_path import LONGEST_KEY, KeyPath
from tests.fuzz.target import Check, Finding, Stage, Target, join, parts
from tests.fuzz.targets.bodies import hostile_documents


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    yield _check


def _check(data: bytes) -> None:
    text, document = parts(data, 2)
    try:
        path = KeyPath.parse(text.decode("utf-8", "replace"))
        payload = orjson.loads(document)
    except ValueError:
        return
    key = path.key(payload)
    if key is None:
        return
    if len(key) > LONGEST_KEY or "\0" in key:
        raise Finding(f"a key that cannot be stored: {key!r}")
    key.encode()
    if path.key(orjson.loads(document)) != key:
        raise Finding("another key the second time")


def _seeds() -> list[bytes]:
    paths = [b"a", b"a.b", b"0", b"a.0.c", b"a.\xc2\xb2"]
    shapes = [b"X", b"[X]", b'{"a":X}', b'{"a":{"b":X}}', b'{"a":[{"c":X}]}']
    values = [b'"in_1"', b"7", b"true", b"null", b'{"b":2,"a":1}', *hostile_documents()]
    return [
        join(path, shape.replace(b"X", value))
        for path in paths
        for shape in shapes
        for value in values
    ]


TARGET = Target("order_keys", _seeds, _open)
