"""What fuzzing and hostile input have found: each by its name, so that it does not come back."""

from pathlib import Path

import orjson
import pytest

from gateway.base.errors import CommandFailed
from gateway.config.registry.key_path import KeyPath
from gateway.operations.record import record
from gateway.privacy.redaction import MOST_CHARS, hide_values
from gateway.providers.samples.recorded import load_recorded

DEEP = 1000


def nested(innermost: object, *, depth: int = DEEP) -> object:
    for _ in range(depth):
        innermost = {"a": innermost}
    return innermost


def test_the_key_of_a_value_too_deep_to_be_written_is_its_digest() -> None:
    """orjson reads 1024 levels and writes 254: the TypeError was a 500."""
    key = KeyPath.parse("object").key
    one, other = key({"object": nested(1)}), key({"object": nested(2)})
    assert one is not None
    assert one.startswith("sha256:")
    assert one != other
    assert key({"object": nested(1)}) == one


def test_the_order_of_names_does_not_change_the_key_of_a_deep_value() -> None:
    first = {"x": 1, "y": [nested(None)]}
    second = {"y": [nested(None)], "x": 1}
    assert KeyPath.parse("o").key({"o": first}) == KeyPath.parse("o").key({"o": second})


def test_a_body_whose_object_is_no_text_is_refused_in_a_line(tmp_path: Path) -> None:
    """A dict was looked up in a set."""
    file = tmp_path / "event.json"
    file.write_bytes(b'{"object":{}}')
    with pytest.raises(CommandFailed, match="does not tell its provider"):
        load_recorded(file)


def test_a_recorded_event_too_deep_to_be_written_is_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_bytes(b'{"object":"event","a":' + b"[" * 400 + b"]" * 400 + b"}")
    with pytest.raises(CommandFailed, match="more than 254 levels"):
        load_recorded(file)


@pytest.mark.parametrize("redacting", [(), ("pii",), ("a.a",)])
def test_a_stored_event_too_deep_to_be_written_is_not_saved(redacting: tuple[str, ...]) -> None:
    """Its bytes are: --body."""
    body = b'{"a":' * DEEP + b"1" + b"}" * DEEP
    event = {
        "provider": "github",
        "type": "push",
        "event_id": "guid-1",
        "headers": {},
        "body": body,
    }
    assert orjson.loads(body)
    with pytest.raises(CommandFailed, match="more than 254 levels"):
        record(event, redacting=redacting)


def test_a_text_is_hidden_whole_where_the_redacted_values_are_long() -> None:
    """The pattern for a value of a megabyte took 27 seconds to make."""
    hide = hide_values(["x y." * (MOST_CHARS // 4), "another"], "[redacted]")
    assert hide("no value of it") == "[redacted]"
    short = hide_values(["x" * (MOST_CHARS - 7), "another"], "[redacted]")
    assert short("has another in it") == "has [redacted] in it"
