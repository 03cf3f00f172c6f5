"""Secrets by reference: what a reference is, what is read through it, and that nothing shows it."""

import dataclasses
import traceback
from pathlib import Path

import pytest

from gateway.base.problems import Unexpected
from gateway.base.secrets import Secret, SecretMissing, SecretRef, SecretUnusable, resolve

SECRET = "whsec_do_not_print_me"
ENV = SecretRef(kind="env", target="STRIPE_WEBHOOK_SECRET")


def env_secret(value: str) -> bytes:
    return resolve(ENV, {"STRIPE_WEBHOOK_SECRET": value}, {})


def file_secret(folder: Path, content: bytes) -> bytes:
    file = folder / "secret"
    file.write_bytes(content)
    return resolve(SecretRef.parse(f"file:{file}"), {}, {})


@pytest.mark.parametrize(
    "text",
    ["env:STRIPE_WEBHOOK_SECRET", "env:_A1", "file:/run/secrets/old", "file:secrets/a b.txt"],
)
def test_a_reference_is_written_as_it_is_read(text: str) -> None:
    assert str(SecretRef.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            SECRET,
            "",
            "env:",
            "env: A",
            "env:A B",
            "env:1A",
            "env:A\n",
            "file:",
            "file: /x",
            "file:/x ",
        ),
        *("file:/x\n", "file:a\0b", "ENV:A", "vault:a", "$STRIPE_WEBHOOK_SECRET", f"env:{SECRET}"),
        *(12345, None, True, ["env:A"], b"env:A"),
    ],
)
def test_whatever_is_no_reference_is_taken_for_a_secret_and_not_shown(text: object) -> None:
    with pytest.raises(Unexpected) as refused:
        SecretRef.parse(text)
    assert refused.value.found == "a literal value (not shown)"
    assert refused.value.expected == "a reference: env:NAME (in capitals) or file:/path"
    shown = "".join(traceback.format_exception_only(refused.value))
    assert SECRET not in shown


def test_a_secret_comes_from_its_variable() -> None:
    assert env_secret(SECRET) == SECRET.encode()
    assert env_secret("pässword with spaces") == "pässword with spaces".encode()


def test_a_variable_that_is_not_set_is_a_missing_secret() -> None:
    with pytest.raises(SecretMissing) as refused:
        resolve(ENV, {}, {})
    assert refused.value.found == "env:STRIPE_WEBHOOK_SECRET, which is not set"
    assert refused.value.expected == "the signing secret in it, and nothing else"


@pytest.mark.parametrize("value", ["", " ", "\n", " \t\r\n"])
def test_an_empty_secret_is_a_missing_secret(value: str, tmp_path: Path) -> None:
    with pytest.raises(SecretMissing) as refused:
        env_secret(value)
    assert refused.value.found == "env:STRIPE_WEBHOOK_SECRET, which is empty"
    with pytest.raises(SecretMissing, match="which is empty"):
        file_secret(tmp_path, value.encode())


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (f"{SECRET}\n", "ends with a newline"),
        (f"{SECRET} ", "ends with a space"),
        (f"{SECRET}\t", "ends with a tab"),
        (f"{SECRET}\r", "ends with a carriage return"),
        (f"{SECRET}\u2003", r"ends with '\u2003'"),
        (f" {SECRET}", "begins with a space"),
        (f"\ufeff{SECRET}", "begins with a byte order mark"),
    ],
)
def test_what_surrounds_a_secret_by_accident_is_named(value: str, name: str) -> None:
    with pytest.raises(SecretUnusable) as refused:
        env_secret(value)
    assert not isinstance(refused.value, SecretMissing)
    assert refused.value.found == f"env:STRIPE_WEBHOOK_SECRET, which {name}"
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"{SECRET}\r\n"])
def test_a_file_may_end_with_one_newline(content: str, tmp_path: Path) -> None:
    assert file_secret(tmp_path, content.encode()) == SECRET.encode()


@pytest.mark.parametrize(
    ("ending", "name"), [("\n\n", "a newline"), (" \n", "a space"), ("\r", "a carriage return")]
)
def test_a_file_may_not_end_with_more_than_that(ending: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match=f"which ends with {name}") as refused:
        file_secret(tmp_path, f"{SECRET}{ending}".encode())
    assert SECRET not in str(refused.value)


def test_a_relative_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    assert resolve(SecretRef.parse("file:here"), {}, {}) == SECRET.encode()
    with pytest.raises(SecretMissing) as refused:
        resolve(SecretRef.parse("file:gone"), {}, {})
    assert refused.value.found == f"file:gone, but there is no {tmp_path}/gone"


def test_a_file_that_cannot_be_read_is_unusable_not_missing(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable) as refused:
        resolve(SecretRef.parse(f"file:{tmp_path}"), {}, {str(tmp_path): "made up"})
    assert not isinstance(refused.value, SecretMissing)
    assert refused.value.found == f"file:{tmp_path}, which cannot be read (Is a directory)"


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(SecretUnusable, match="file:/dev/zero, over 64KiB"):
        resolve(SecretRef.parse("file:/dev/zero"), {}, {})


def test_bytes_that_are_not_utf8_are_a_problem_that_does_not_quote_them(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="which is not UTF-8") as refused:
        file_secret(tmp_path, b"\xff" + SECRET.encode())
    assert refused.value.__context__ is None
    with pytest.raises(SecretUnusable, match="which is not UTF-8") as refused:
        env_secret(f"{SECRET}\udcff!")
    assert SECRET not in "".join(traceback.format_exception_only(refused.value))


def test_a_made_up_secret_stands_in_only_for_a_missing_one() -> None:
    made_up = {str(ENV): "made up"}
    assert resolve(ENV, {}, made_up) == b"made up"
    assert resolve(ENV, {"STRIPE_WEBHOOK_SECRET": ""}, made_up) == b"made up"
    assert resolve(ENV, {"STRIPE_WEBHOOK_SECRET": SECRET}, made_up) == SECRET.encode()
    with pytest.raises(SecretUnusable, match="ends with a space"):
        resolve(ENV, {"STRIPE_WEBHOOK_SECRET": "typo "}, made_up)
    with pytest.raises(SecretMissing):
        resolve(SecretRef.parse("env:OTHER"), {}, made_up)


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret(SECRET.encode())
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", repr([secret])]
    assert all(SECRET not in text for text in shown)
    assert repr(secret) == "Secret(not shown)"
    assert secret.reveal() == SECRET.encode()
    assert secret == Secret(SECRET.encode())
    with pytest.raises(dataclasses.FrozenInstanceError):
        secret._value = b""  # type: ignore[misc]
