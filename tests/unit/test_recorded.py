"""Recorded events: what is written is read again, and what is wrong is told."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.base.errors import CommandFailed
from gateway.providers.samples import Recorded, dump_recorded, load_recorded, make_sample

NOW = datetime(2026, 11, 16, 12, 0, 7, tzinfo=UTC)
JSON = {"content-type": "application/json"}


def recorded(provider: str, type: str) -> Recorded:
    sample = make_sample(provider, type, now=NOW)
    return Recorded(provider=provider, type=type, id=sample.id, headers=JSON, body=sample.body)


def write(directory: Path, document: Any) -> Path:
    file = directory / "event.json"
    file.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return file


def changed(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(dump_recorded(recorded("stripe", "invoice.paid")))
    return {key: value for key, value in (document | changes).items() if value is not ...}


def refusal(file: Path, **given: str) -> str:
    with pytest.raises(CommandFailed) as refused:
        load_recorded(file, **given)
    assert str(file) in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("provider", "type"),
    [
        ("stripe", "invoice.paid"),
        ("stripe", "v1.billing.meter.error_report_triggered"),
        ("github", "issues.opened"),
        ("github", "push"),
    ],
)
def test_what_is_written_is_read_again(tmp_path: Path, provider: str, type: str) -> None:
    event = recorded(provider, type)
    read = load_recorded(write(tmp_path, dump_recorded(event)))
    assert read == event
    assert (read.sample.id, read.sample.type, read.sample.body) == (event.id, type, event.body)


def test_a_job_of_a_queue_is_read_as_it_was_told(tmp_path: Path) -> None:
    job = Recorded(provider="publish", type="mail", id="job_1", headers={}, body=b"[1,2]")
    assert load_recorded(write(tmp_path, dump_recorded(job))) == job


def test_a_bare_body_of_stripe_tells_what_it_is(tmp_path: Path) -> None:
    sample = make_sample("stripe", "invoice.paid", now=NOW)
    read = load_recorded(write(tmp_path, sample.body))
    assert (read.provider, read.type, read.id) == ("stripe", "invoice.paid", sample.id)
    assert read.body == sample.body
    assert load_recorded(tmp_path / "event.json", type="invoice.paid") == read


def test_a_bare_body_of_github_needs_its_provider_and_its_type(tmp_path: Path) -> None:
    sample = make_sample("github", "issues.opened", now=NOW)
    file = write(tmp_path, sample.body)
    assert "does not tell its provider and its type" in refusal(file)
    assert "does not tell its type: give" in refusal(file, provider="github")
    assert "`gateway show ID --save FILE`" in refusal(file)
    read = load_recorded(file, provider="github", type="issues.opened")
    assert (read.type, read.body) == ("issues.opened", sample.body)
    assert load_recorded(file, provider="github", type="issues") == read


def test_what_is_asked_for_must_be_what_is_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, changed())
    assert "found 'stripe' in the file; asked for 'github'" in refusal(file, provider="github")
    assert "found 'invoice.paid' in the file; asked for 'a.b'" in refusal(file, type="a.b")
    assert "asked for 'invoice'" in refusal(file, type="invoice")
    bare = write(tmp_path, make_sample("github", "issues.opened", now=NOW).body)
    assert "asked for 'issues.closed'" in refusal(bare, provider="github", type="issues.closed")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"{", ":1: not JSON: unexpected end of data in column 2"),
        (b"\xff", "not JSON"),
        ([], "found a list; expected a file of `gateway show ID --save FILE`"),
        (changed(provider=7), "`provider`: found 7; expected text"),
        (changed(provider="paypal"), "found 'paypal'; expected one of stripe, github"),
        (changed(id=...), "`id`: found nothing; expected text"),
        (changed(type=""), "`type`: found ''; expected text"),
        (changed(type="invoice.voided"), "found 'invoice.voided'; the body says 'invoice.paid'"),
        (changed(id="evt_other"), "`id`: found 'evt_other'; the body says 'evt_1"),
        (changed(headers=["a"]), "`headers`: expected names with text"),
        (changed(headers={"a": 1}), "`headers`: expected names with text"),
        (changed(boddy={}), "found `boddy`; expected only provider, type, id, headers, body"),
        (changed(body=[1]), "not an event of stripe: body: found a list"),
        (changed(body={"object": "invoice"}), "not an event of stripe: `object`"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_what_was_expected(
    tmp_path: Path, document: Any, problem: str
) -> None:
    assert problem in refusal(write(tmp_path, document))


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "nothing.json")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    assert "expected one of stripe" in refusal(write(tmp_path, {}), provider="x", type="y")
