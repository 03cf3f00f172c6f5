"""docs/providers.md: its table is the data's, and what it describes works as it is written."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.base.errors import BadSignature
from gateway.config.routes import Route, load_config
from gateway.providers import Incoming
from gateway.providers.entries import read_entry
from gateway.providers.samples import make_sample
from tests.support.provider_table import (
    HEADING,
    PAGE,
    make_github_table,
    make_table,
    make_window_table,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.M | re.S)
SENT = {"slack": "app_mention", "acme": "a.b", "globex": "pump.started", "initech": "hired"}


def test_the_table_is_what_the_catalogue_says() -> None:
    assert TEXT.partition(HEADING)[2].strip() == make_table().strip(), (
        "run `.venv/bin/python -m tests.support.provider_table`"
    )


def routes(tmp_path: Path) -> dict[str, Route]:
    file = tmp_path / "routes.yaml"
    blocks = [block.removeprefix("routes:\n") for block in BLOCKS if block.startswith("routes:")]
    file.write_text("routes:\n" + "".join(blocks))
    return {route.name: route for route in load_config(file).routes}


@pytest.mark.parametrize(("name", "type"), SENT.items())
def test_a_sender_that_is_described_there_is_verified(name: str, type: str, tmp_path: Path) -> None:
    described = routes(tmp_path)
    assert described.keys() == SENT.keys()
    provider = described[name].provider
    secret = provider.make_secret().encode()
    sample = make_sample(provider, type, now=NOW)
    signed = provider.sign(
        sample.body, secret=secret, id=sample.id, type=type, now=NOW, url="https://x.example/in"
    )
    incoming = Incoming(signed.headers, signed.body, "POST", signed.url)
    keys = [provider.read_key(secret)]
    provider.verify(incoming, keys=keys, now=NOW, tolerance=provider.tolerance)
    [item] = [incoming] if provider.split is None else provider.split(incoming)
    envelope = provider.read(item)
    assert (envelope.id, envelope.type) == (sample.id, type)
    other = [provider.read_key(provider.make_secret().encode())]
    with pytest.raises(BadSignature):
        provider.verify(incoming, keys=other, now=NOW, tolerance=provider.tolerance)


def test_the_entry_that_is_shown_there_can_be_read(tmp_path: Path) -> None:
    [entry] = [block for block in BLOCKS if block.startswith("title:")]
    file = tmp_path / "slack.yaml"
    file.write_text(entry)
    assert read_entry(file).name == "slack"


def test_the_page_lists_the_github_types_whose_repeats_are_refused() -> None:
    assert make_github_table() in TEXT, "run `.venv/bin/python -m tests.support.provider_table`"


def test_the_page_has_the_dedup_window_of_every_sender_without_an_id() -> None:
    assert make_window_table() in TEXT, "run `.venv/bin/python -m tests.support.provider_table`"
