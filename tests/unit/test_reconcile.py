"""Reconcile's small parts: what the routes may say, and how GitHub knows an App."""

import base64
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from gateway.base.errors import ConfigInvalid
from gateway.base.model import Rate
from gateway.config.routes import check_hook_keys, load_config
from gateway.config.routes.reconcile import GITHUB_API, STRIPE_API, Reconcile
from gateway.operations.reconcile.api import LIFETIME_S, app_tokens, make_token, read_key

HOOK = "hook: repos/o/r/hooks/7, token: env:T"


def load(folder: Path, provider: str, reconcile: str) -> Reconcile | None:
    file = folder / "routes.yaml"
    key = "    api_key: env:KEY\n" if provider == "stripe" else ""
    file.write_text(
        f"routes:\n  one:\n    provider: {provider}\n    secrets: [env:A]\n{key}"
        f"    reconcile: {{{reconcile}}}\n",
        encoding="utf-8",
    )
    return load_config(file).routes[0].reconcile


def said(folder: Path, provider: str, reconcile: str) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load(folder, provider, reconcile)
    return [f"{p.key.removeprefix('routes.one.')}: {p.expected}" for p in caught.value.problems]


def test_every_key_is_read(tmp_path: Path) -> None:
    asked = load(tmp_path, "stripe", "every: 15m, accounts: [acct_1, acct_2]")
    assert asked is not None
    assert (asked.api_url, asked.accounts) == (STRIPE_API, ("acct_1", "acct_2"))
    assert asked.every is not None
    assert asked.every.total_seconds() == 900
    asked = load(tmp_path, "github", f"{HOOK}, rate: 3/s, wait: 5s")
    assert asked is not None
    assert (asked.api_url, asked.hook, asked.every) == (GITHUB_API, "repos/o/r/hooks/7", None)
    assert asked.rate == Rate(count=3, period=asked.rate.period)
    more = "api_url: https://ghes.example.com/api/v3/"
    asked = load(tmp_path, "github", f"hook: app, app_id: 12, private_key: file:/k, {more}")
    assert asked is not None
    assert (asked.app_id, asked.api_url) == ("12", "https://ghes.example.com/api/v3")
    asked = load(tmp_path, "github", "hook: orgs/o-o/hooks/9, token: env:T")
    assert asked is not None


@pytest.mark.parametrize(
    ("provider", "reconcile", "expected"),
    [
        ("stripe", "every: 59s", "reconcile.every: 1m to 1d"),
        ("stripe", "hook: app", "reconcile.hook: no hook: it is for provider github"),
        ("stripe", "token: env:T", "reconcile.token: no token: it is for provider github"),
        ("stripe", "wait: 1s", "reconcile.wait: no wait: it is for provider github"),
        ("stripe", "accounts: []", "reconcile.accounts: at least 1 of them"),
        ("stripe", "accounts: [me]", "reconcile.accounts[0]: a connected account such as"),
        ("stripe", "api_url: http://stripe.test", "reconcile.api_url: https://: a key goes there"),
        ("stripe", "api_url: https://u:p@x", "reconcile.api_url: a URL such as"),
        ("stripe", "api_url: 'https://x/?a=1'", "reconcile.api_url: a URL without one"),
        ("stripe", "evry: 1m", "reconcile.evry: one of accounts, api_url"),
        ("github", "every: 1m", "reconcile.hook: where the webhook is: repos/OWNER/REPO"),
        ("github", "hook: repos/o/hooks/7, token: env:T", "reconcile.hook: repos/OWNER/REPO"),
        ("github", "hook: repos/o/../hooks/7/x, token: env:T", "reconcile.hook: repos/OWNER"),
        ("github", "hook: orgs/o/hooks/7", "reconcile.token: a token that may read and write"),
        ("github", f"{HOOK}, app_id: 1", "reconcile.app_id: no app_id: it is for hook: app"),
        ("github", "hook: app, app_id: 1", "reconcile.private_key: the App's key"),
        ("github", f"{HOOK}, accounts: [acct_1]", "reconcile.accounts: no accounts: it is for"),
        ("github", f"{HOOK}, rate: fast", "reconcile.rate: a rate such as"),
        ("github", f"{HOOK}, wait: 1h", "reconcile.wait: 0s to 30m"),
    ],
)
def test_what_a_route_cannot_say_is_refused(
    provider: str, reconcile: str, expected: str, tmp_path: Path
) -> None:
    [problem] = said(tmp_path, provider, reconcile)
    assert problem.startswith(expected)


def test_a_token_in_the_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, "github", "hook: orgs/o/hooks/7, token: ghs_secret_secret")
    assert "ghs_secret" not in str(caught.value)


def test_a_token_that_is_not_set_is_told_with_its_line(tmp_path: Path) -> None:
    load(tmp_path, "github", HOOK)
    config = load_config(tmp_path / "routes.yaml")
    assert check_hook_keys(config, {"T": "hush"})["one"].reveal() == b"hush"
    with pytest.raises(ConfigInvalid, match=r":5: routes\.one\.reconcile\.token: found env:T"):
        check_hook_keys(config, {})


@pytest.fixture(scope="module")
def pem() -> bytes:
    key = generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def test_an_apps_token_is_signed_with_its_key_and_short_lived(pem: bytes) -> None:
    key = read_key(pem)
    head, claims, signature = make_token("Iv23", key, 1_000_000).split(".")

    def decoded(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    key.public_key().verify(decoded(signature), f"{head}.{claims}".encode(), PKCS1v15(), SHA256())
    assert orjson.loads(decoded(head)) == {"alg": "RS256", "typ": "JWT"}
    told = orjson.loads(decoded(claims))
    assert told == {"iat": 999_940, "exp": 1_000_000 + LIFETIME_S, "iss": "Iv23"}
    assert told["exp"] - told["iat"] <= 600
    assert app_tokens("Iv23", key)().count(".") == 2


def test_a_key_from_a_variable_may_have_its_line_ends_escaped(pem: bytes) -> None:
    assert read_key(pem.replace(b"\n", b"\\n")).key_size == 2048


@pytest.mark.parametrize("text", [b"", b"hush hush", b"-----BEGIN PRIVATE KEY-----\nhush\n"])
def test_what_is_no_key_is_refused_and_not_quoted(text: bytes) -> None:
    with pytest.raises(ValueError, match="not an RSA private key") as caught:
        read_key(text)
    assert "hush" not in str(caught.value)
