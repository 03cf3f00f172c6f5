"""Recorded events: a file that somebody passed on is read, or refused in a line."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.base.errors import CommandFailed
from gateway.providers.samples.recorded import load_recorded
from tests.fuzz.target import Check, Stage, Target
from tests.fuzz.targets.bodies import hostile_documents


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    file = stage.directory / "fuzzed.json"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        for provider, type in ((None, None), ("github", "push"), ("stripe", None)):
            try:
                load_recorded(file, provider=provider, type=type)
            except CommandFailed as failed:
                str(failed)

    yield check


def _seeds() -> list[bytes]:
    shapes = [
        b'{"provider":"github","type":"push","id":"g","headers":{},"body":X}',
        b'{"provider":"stripe","type":"a","id":"e","headers":{"a":"b"},'
        b'"body":{"id":"e","object":"event","type":"a","created":1,"livemode":false,"data":X}}',
        b'{"id":"e","object":"event","type":"a","created":1,"livemode":false,"data":X}',
        b'{"provider":X,"body":{}}',
        b'{"provider":"publish","type":"t","id":"i","body":X}',
        b'{"object":X}',
        b"X",
    ]
    values = [b"{}", *hostile_documents()]
    return [shape.replace(b"X", value) for shape in shapes for value in values]


TARGET = Target("recorded", _seeds, _open)
