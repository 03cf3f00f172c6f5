"""`gateway show --save`: a real event becomes a file, without what must not be in it."""

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from gateway.ledger.claims import Claim
from gateway.providers.samples import Sample, load_recorded, make_sample
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.processes import Project

HEADERS = {
    "content-type": "application/json; charset=utf-8",
    "user-agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
    "stripe-signature": "t=1,v1=5ec2e7",
    "authorization": "Bearer 5ec2e7",
    "x-forwarded-for": "203.0.113.99",
    "x-internal-token": "5ec2e7",
}


def claim_of(sample: Sample, **changes: Any) -> Claim:
    claim = make_claim(sample.id, type=sample.type, body=sample.body, handlers=[])
    return claim._replace(**{"headers": HEADERS, **changes})


@pytest.fixture
async def sample(database_url: str) -> Sample:
    """An event in the ledger."""
    made = make_sample("stripe", "charge.succeeded", now=datetime.now(UTC))
    await claim_all(database_url, [claim_of(made)])
    return made


def refused(project: Project, code: int, *arguments: str) -> str:
    result = project.run("show", *arguments)
    assert result.returncode == code, (result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_saved_event_is_read_again_and_holds_no_credentials(
    project: Project, sample: Sample
) -> None:
    result = project.run("show", sample.id, "--save", "event.json")
    assert result.stdout == f"charge.succeeded {sample.id} is in event.json\n"
    file = project.directory / "event.json"
    read = load_recorded(file)
    assert (read.provider, read.type, read.id) == ("stripe", sample.type, sample.id)
    assert read.body == sample.body
    assert read.headers == {name: HEADERS[name] for name in ("content-type", "user-agent")}
    assert "5ec2e7" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.glob(".*event*")] == []


def test_what_is_redacted_is_not_in_the_file(project: Project, sample: Sample) -> None:
    result = project.run("show", sample.id, "--save", "event.json", "--redact", "pii")
    assert result.stdout.endswith("is in event.json, 11 values redacted\n")
    text = (project.directory / "event.json").read_text()
    assert "person1@example.com" in text
    for word in ("mira.okafor", "Okafor", '"4242"', "Alder"):
        assert word not in text
    paths = ("--redact", "data.object.receipt_email", "--redact", "data.object.metadata.*")
    result = project.run("show", sample.id, "--save", "other.json", *paths)
    assert result.stdout.endswith(", 3 values redacted\n")
    charge = json.loads((project.directory / "other.json").read_text())["body"]["data"]["object"]
    assert charge["receipt_email"] == "person1@example.com"
    assert charge["shipping"] is None
    assert charge["metadata"]["channel"] == "redacted-2"


def test_the_folder_of_a_file_is_made(project: Project, sample: Sample) -> None:
    assert project.run("show", sample.id, "--save", "tests/events/paid.json").returncode == 0
    assert load_recorded(project.directory / "tests/events/paid.json").id == sample.id


def test_a_typo_saves_nothing(project: Project, sample: Sample) -> None:
    for path in ("data.object.reciept_email", "id", "type", "livemode.x"):
        error = refused(project, 1, sample.id, "--save", "event.json", "--redact", path)
        assert "nothing was saved" in error
    assert not (project.directory / "event.json").exists()


def test_a_file_is_overwritten_only_by_force(project: Project, sample: Sample) -> None:
    project.write("event.json", "mine")
    file = project.directory / "event.json"
    assert "exists already: overwrite it with --force" in refused(
        project, 1, sample.id, "--save", "event.json"
    )
    assert file.read_text() == "mine"
    assert project.run("show", sample.id, "--save", "event.json", "--force").returncode == 0
    assert load_recorded(file).id == sample.id
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_cannot_be_saved_is_one_clear_line(project: Project, sample: Sample) -> None:
    project.write("file", "mine")
    assert "cannot be written: Not a directory" in refused(
        project, 1, sample.id, "--save", "file/events/x.json"
    )
    error = refused(project, 1, sample.id, "--save", "handlers", "--force")
    assert "cannot be written: Is a directory" in error
    assert "belong to --save" in refused(project, 2, sample.id, "--redact", "pii")
    assert "belong to --save" in refused(project, 2, sample.id, "--force")
    assert "leave out --body" in refused(project, 2, sample.id, "--save", "x.json", "--body")


async def test_an_event_without_its_payload_or_on_two_routes_is_not_saved(
    project: Project, sample: Sample, database_url: str, ledger: Reader
) -> None:
    await claim_all(database_url, [claim_of(sample, route="other")])
    error = refused(project, 1, sample.id, "--save", "event.json")
    assert "on several routes" in error
    result = project.run("show", sample.id, "--save", "event.json", "--route", "stripe")
    assert result.returncode == 0
    await ledger.run("delete from gateway.payloads")
    error = refused(project, 1, sample.id, "--route", "stripe", "--save", "x.json")
    assert "pruned or erased" in error


async def test_a_form_of_github_is_saved_as_its_json(project: Project, database_url: str) -> None:
    made = make_sample("github", "issues.opened", now=datetime.now(UTC))
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-github-event": "issues",
        "x-github-delivery": made.id,
        "x-hub-signature-256": "sha256=5ec2e7",
        "x-github-token": "5ec2e7",
    }
    form = b"payload=" + quote_plus(made.body).encode()
    claim = claim_of(made, provider="github", body=form, headers=headers)
    await claim_all(database_url, [claim])
    assert project.run("show", made.id, "--save", "issue.json").returncode == 0
    read = load_recorded(Path(project.directory / "issue.json"))
    assert (read.type, read.body) == ("issues.opened", made.body)
    assert read.headers == {
        "content-type": "application/json",
        "x-github-event": "issues",
        "x-github-delivery": made.id,
    }
