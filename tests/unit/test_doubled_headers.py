"""A header that comes twice, for every provider: no reading of it lets anybody in."""

from datetime import datetime
from functools import cache
from pathlib import Path

import pytest

from gateway.base.errors import RequestRejected
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.entries import entry_names, read_scheme
from gateway.providers.schemes.sections import SignedSection
from gateway.receive.reading import join_repeated
from tests.unit.test_vectors import FILES, body_of, load

SIGNED = [
    file
    for file in FILES
    if load(file)["method"] == "POST"
    and not load(file).get("unverified")
    and file.stem not in {"intent-bad"}
]


@cache
def lists_of_signatures(provider: str) -> frozenset[str]:
    """Headers of which any one signature may match."""
    scheme = read_scheme(provider) if provider in entry_names() else None
    if not isinstance(scheme, SignedSection) or scheme.signature.separator is None:
        return frozenset()
    return frozenset(place.name for place in scheme.signature.at if place.source == "header")


@pytest.mark.parametrize("file", SIGNED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_is_proven_once_is_not_proven_twice(file: Path) -> None:
    vector, provider = load(file), PROVIDERS[file.parent.name]
    headers, key = vector["headers"], provider.read_key(vector["secret"].encode())

    def verifies(*fields: tuple[str, str]) -> bool:
        joined = join_repeated((name.encode(), value.encode()) for name, value in fields)
        try:
            provider.verify(
                Incoming(joined, body_of(vector), "POST", vector["url"]),
                keys=[key],
                now=datetime.fromisoformat(vector["at"]),
                tolerance=provider.tolerance,
            )
        except RequestRejected:
            return False
        return True

    assert verifies(*headers.items())
    for name, value in headers.items():
        others = [item for item in headers.items() if item[0] != name]
        if verifies(*others):
            continue  # nothing is proven by it
        assert not verifies(*others, (name, "x"), (name, "x"))
        assert not verifies(*others, (name, ""), (name, ""))
        if name in lists_of_signatures(provider.name):
            continue  # one that is right is right in any company
        for twice in ((value, value), (value, "x"), ("x", value), (value, ""), ("", value)):
            assert not verifies(*others, *((name, one) for one in twice)), (name, twice)
