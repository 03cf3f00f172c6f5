"""What `gateway up` leaves for others: where it runs, and the secrets that it made up."""

import json
import stat
from pathlib import Path

import pytest

from gateway.base.errors import ConfigInvalid
from gateway.config.development import (
    RunningUp,
    clear_up,
    development_secrets,
    read_secrets,
    read_up,
    write_up,
)
from gateway.providers.provider import make_secret

STRIPE = "env:STRIPE_WEBHOOK_SECRET"
GITHUB = "env:GITHUB_WEBHOOK_SECRET"
UP = RunningUp(
    pid=4711,
    url="http://127.0.0.1:8000",
    database_url="postgresql://gateway:hunter2@127.0.0.1:5432/gateway",
    redis_url="redis://:hunter2@127.0.0.1:6379/0",
    dev_secrets="/somewhere/secrets.json",
)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_what_up_writes_is_what_others_read(tmp_path: Path) -> None:
    write_up(tmp_path / "new" / "folder", UP)
    assert read_up(tmp_path / "new" / "folder") == UP
    assert json.loads((tmp_path / "new" / "folder" / "up.json").read_text()) == {
        "pid": 4711,
        "url": "http://127.0.0.1:8000",
        "database_url": "postgresql://gateway:hunter2@127.0.0.1:5432/gateway",
        "redis_url": "redis://:hunter2@127.0.0.1:6379/0",
        "dev_secrets": "/somewhere/secrets.json",
    }


def test_only_the_owner_reads_it_even_over_an_open_file(tmp_path: Path) -> None:
    (tmp_path / "up.json").touch(mode=0o644)
    write_up(tmp_path, UP)
    assert mode(tmp_path / "up.json") == 0o600


def test_its_passwords_do_not_show() -> None:
    assert "hunter2" not in repr(UP)
    assert "hunter2" not in str(UP)


def test_a_cleared_up_is_gone_and_can_be_cleared_again(tmp_path: Path) -> None:
    write_up(tmp_path, UP)
    clear_up(tmp_path)
    clear_up(tmp_path)
    assert read_up(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"pid": 1}', b'{"pid": "x", "url": "u"}'],
)
def test_a_broken_file_is_as_good_as_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "up.json").write_bytes(content)
    assert read_up(tmp_path) is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_up(tmp_path, UP)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_up(tmp_path, RunningUp(pid=1, url="", database_url="", redis_url=""))
    assert read_up(tmp_path) == UP
    assert [file.name for file in tmp_path.iterdir()] == ["up.json"]


def test_a_secret_is_made_up_once_for_each_reference_that_leads_nowhere(tmp_path: Path) -> None:
    environ = {"GITHUB_WEBHOOK_SECRET": "real"}
    made = development_secrets(tmp_path, [STRIPE, GITHUB], environ, make=make_secret)
    assert made.keys() == {STRIPE}
    assert made[STRIPE].startswith("whsec_")
    assert len(made[STRIPE]) >= len("whsec_") + 32
    assert development_secrets(tmp_path, [STRIPE], {}, make=make_secret) == made
    assert mode(tmp_path / "secrets.json") == 0o600


def test_two_references_get_two_secrets_and_two_projects_too(tmp_path: Path) -> None:
    one = development_secrets(
        tmp_path / "one", [STRIPE, GITHUB, "file:/nowhere/at/all"], {}, make=make_secret
    )
    two = development_secrets(tmp_path / "two", [STRIPE], {}, make=make_secret)
    assert len({*one.values(), *two.values()}) == 4


def test_a_new_reference_leaves_the_kept_secrets_alone(tmp_path: Path) -> None:
    before = development_secrets(tmp_path, [STRIPE], {}, make=make_secret)
    after = development_secrets(tmp_path, [GITHUB], {}, make=make_secret)
    assert read_secrets(tmp_path / "secrets.json") == before | after


def test_nothing_is_written_where_nothing_is_missing(tmp_path: Path) -> None:
    assert (
        development_secrets(tmp_path, [STRIPE], {"STRIPE_WEBHOOK_SECRET": "real"}, make=make_secret)
        == {}
    )
    assert list(tmp_path.iterdir()) == []


def test_a_secret_that_is_there_but_unusable_is_not_papered_over(tmp_path: Path) -> None:
    assert (
        development_secrets(
            tmp_path, [STRIPE], {"STRIPE_WEBHOOK_SECRET": "typo "}, make=make_secret
        )
        == {}
    )


def test_no_file_holds_no_secrets(tmp_path: Path) -> None:
    assert read_secrets(None) == {}
    assert read_secrets(tmp_path / "secrets.json") == {}


@pytest.mark.parametrize("content", ["whsec_hunter2", '{"env:A": ["whsec_hunter2"]}', "{"])
def test_a_broken_secrets_file_is_a_problem_that_does_not_quote_it(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / "secrets.json").write_text(content)
    with pytest.raises(ConfigInvalid) as refused:
        development_secrets(tmp_path, [STRIPE], {}, make=make_secret)
    (problem,) = refused.value.problems
    assert problem.file == str(tmp_path / "secrets.json")
    assert "delete the file" in problem.expected
    assert "hunter2" not in str(refused.value)
    assert refused.value.__context__ is None
