"""The vectors are what their README says: somebody else's requests, whole and well formed."""

import base64
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).parent.parent / "vectors"
FILES = sorted(VECTORS.glob("*/*.json"))
MADE_BY = re.compile(r"(npm|PyPI|signed with|published:|none:) \S")
REQUIRED = {"made_by", "secret", "at", "method", "url", "headers", "events"}
OPTIONAL = {"body", "body_base64", "private_key", "answer", "unverified"}


def load(file: Path) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(file.read_bytes())
    return vector


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_vector_has_the_shape_of_the_readme(file: Path) -> None:
    vector = load(file)
    assert set(vector) >= REQUIRED
    assert not set(vector) - REQUIRED - OPTIONAL
    assert MADE_BY.match(vector["made_by"])
    assert vector["secret"]
    assert datetime.fromisoformat(vector["at"]).tzinfo is not None
    assert vector["url"].startswith("https://")
    assert all(
        name == name.lower() and value.isascii() for name, value in vector["headers"].items()
    )
    assert body_of(vector) or vector["method"] == "GET" or vector.get("unverified")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_vector_says_what_must_come_of_it(file: Path) -> None:
    vector = load(file)
    for event in vector["events"] or ():
        assert set(event) == {"id", "type"}
        assert event["type"]
    # A handshake is known by its answer: without one, nothing would be tested.
    assert vector["events"] != [] or "status" in vector["answer"]


def body_of(vector: dict[str, Any]) -> bytes:
    assert ("body" in vector) != ("body_base64" in vector)
    if "body" in vector:
        return str(vector["body"]).encode()
    return base64.b64decode(vector["body_base64"], validate=True)


def test_every_provider_has_an_event_that_can_be_read() -> None:
    readable = {file.parent.name for file in FILES if load(file)["events"]}
    assert readable == {file.parent.name for file in FILES}
