"""`keys`, `digest_key` and `encrypt` in the file: what is refused, and in which words."""

import base64
import hashlib
from pathlib import Path

import pytest

from gateway.base.errors import ConfigInvalid
from gateway.config.development import read_secrets
from gateway.config.routes import Config, check_keys, find_open_queues, load_config
from gateway.config.settings import Settings
from gateway.dev.up import make_up_secrets

KEY = base64.b64encode(hashlib.sha256(b"one").digest()).decode()
OTHER = hashlib.sha256(b"other").hexdigest()
ROUTE = "routes:\n  stripe:\n    provider: stripe\n    secrets: [env:A]\n    encrypt: true\n"


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "routes.yaml"
    file.write_text(text)
    return load_config(file)


def test_an_encrypted_route_needs_keys_and_says_on_which_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read(tmp_path, ROUTE)
    [problem] = refused.value.problems
    assert (problem.line, problem.key) == (5, "routes.stripe.encrypt")
    assert (problem.found, problem.expected) == (
        "true, but the file has no `keys`",
        "keys: [env:PAYLOAD_KEY] at the top of the file",
    )


def test_the_first_key_encrypts(tmp_path: Path) -> None:
    config = read(tmp_path, f"keys: [env:NEW, env:OLD]\n{ROUTE}")
    assert config.routes[0].encrypt
    ring = check_keys(config, {"NEW": KEY, "OLD": OTHER}, {})
    alone = check_keys(read(tmp_path, f"keys: [env:NEW]\n{ROUTE}"), {"NEW": KEY}, {})
    assert (ring.first, len(ring.ids)) == (alone.first, 2)


@pytest.mark.parametrize(
    ("lines", "environ", "key", "told"),
    [
        ("keys: [env:K]", {}, "keys[0]", "env:K, which is not set"),
        ("keys: [env:K]", {"K": "short"}, "keys[0]", "env:K, which has 5 characters"),
        ("keys: [env:K]", {"K": "ab" * 32}, "keys[0]", "env:K, which is not random"),
        ("keys: [env:K]", {"K": f" {KEY}"}, "keys[0]", "env:K, which begins with a space"),
        ("keys: [env:K, env:L]", {"K": KEY, "L": KEY}, "keys[1]", "the same key as one before"),
        (
            "keys: [env:K]\ndigest_key: env:L",
            {"K": KEY, "L": KEY},
            "digest_key",
            "the same key as one before it",
        ),
        ("keys: [env:K]\ndigest_key: env:L", {"K": KEY}, "digest_key", "which is not set"),
    ],
)
def test_a_key_that_cannot_be_used_is_told_and_never_shown(
    lines: str, environ: dict[str, str], key: str, told: str, tmp_path: Path
) -> None:
    config = read(tmp_path, f"{lines}\n{ROUTE}")
    with pytest.raises(ConfigInvalid) as refused:
        check_keys(config, environ, {})
    [problem] = refused.value.problems
    assert problem.key == key
    assert told in problem.found
    assert not any(value in str(refused.value) for value in environ.values())


@pytest.mark.parametrize("line", [f"keys: [{KEY}]", f"digest_key: {OTHER}", f"keys: {KEY}"])
def test_a_key_that_stands_in_the_file_itself_is_refused_and_not_shown(
    line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read(tmp_path, f"{line}\n{ROUTE}")
    assert KEY not in str(refused.value)
    assert OTHER not in str(refused.value)


@pytest.mark.parametrize("value", ["yes", "1", '"true"', "[true]"])
def test_encrypt_is_true_or_false(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="encrypt"):
        read(tmp_path, f"keys: [env:K]\n{ROUTE}".replace("encrypt: true", f"encrypt: {value}"))


def test_queues_that_are_not_encrypted_beside_routes_that_are_are_told(tmp_path: Path) -> None:
    handled = ROUTE + "    handlers: [handlers.billing]\n"
    queues = "  open:\n    provider: publish\n  closed:\n    provider: publish\n    encrypt: true\n"
    config = read(tmp_path, f"keys: [env:K]\n{handled}{queues}")
    [told] = find_open_queues(config)
    assert told.startswith("queue open is not encrypted: what handlers of stripe publish to it")


def test_up_makes_keys_up_and_keeps_them(tmp_path: Path) -> None:
    config = read(tmp_path, f"keys: [env:K, env:L]\ndigest_key: env:M\n{ROUTE}")
    settings, variables = Settings(data_dir=tmp_path), {"L": KEY}
    assert set(make_up_secrets(settings, config, variables)) == {"env:A", "env:K", "env:M"}
    file = Path(variables["GATEWAY_DEV_SECRETS"])
    made = check_keys(config, variables, read_secrets(file))
    assert len(made.ids) == 2
    make_up_secrets(settings, config, variables)
    assert check_keys(config, variables, read_secrets(file)).ids == made.ids
