"""Resolves the encryption keys that routes.yaml refers to."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.problems import Location
from gateway.base.secrets import Secret, SecretRef, SecretUnusable, resolve
from gateway.config.routes.config import Config
from gateway.privacy.encryption import KEY_EXPECTED, KeyRing, key_id, read_key

DIGEST_KEY: Final[Location] = ("digest_key",)


def check_keys(
    config: Config, environ: Mapping[str, str], development: Mapping[str, str]
) -> KeyRing:
    """Return the key ring. Raises ConfigInvalid with every unresolved or repeated key."""
    problems: list[Problem] = []
    keys: dict[str, Secret] = {}
    digest_key: Secret | None = None
    named: list[tuple[Location, SecretRef]] = [
        (("keys", index), ref) for index, ref in enumerate(config.keys)
    ]
    if config.digest_key is not None:
        named.append((DIGEST_KEY, config.digest_key))
    for at, ref in named:
        try:
            key = _read(ref, environ, development, keys)
        except SecretUnusable as error:
            problems.append(config.problem(*at, found=error.found, expected=error.expected))
            continue
        if at == DIGEST_KEY:
            digest_key = key
        else:
            keys[key_id(key)] = key
    if problems:
        raise ConfigInvalid(problems)
    return KeyRing(tuple(keys.values()), digest_key)


def find_open_queues(config: Config) -> Iterator[str]:
    """Yield a warning for each queue that may store an encrypted route's data unencrypted."""
    encrypted = [route.name for route in config.routes if route.encrypt and route.handlers]
    for route in config.routes:
        if route.provider.is_queue and not route.encrypt and encrypted:
            yield (
                f"queue {route.name} is not encrypted: what handlers of {', '.join(encrypted)} "
                "publish to it is stored as it is"
            )


def _read(
    ref: SecretRef,
    environ: Mapping[str, str],
    development: Mapping[str, str],
    others: Mapping[str, Secret],
) -> Secret:
    key = read_key(ref, resolve(ref, environ, development, expected=KEY_EXPECTED))
    if key_id(key) in others:
        raise SecretUnusable(
            found=f"{ref}, which is the same key as one before it", expected="each key once"
        )
    return key
