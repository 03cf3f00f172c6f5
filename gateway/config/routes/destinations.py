"""Resolves the references of forwards: URLs, headers and signing keys."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import httpx

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.problems import Location, Unexpected
from gateway.base.secrets import SecretRef, SecretUnusable, resolve
from gateway.config.routes.config import Config
from gateway.config.routes.fields import check_url
from gateway.config.routes.forward import Forward, check_header_value
from gateway.http.outbound import Destination
from gateway.providers.standard_webhooks import parse_key

T = TypeVar("T")

URL_IN_IT: Final = "the URL in it, and nothing else"
VALUE_IN_IT: Final = "the header's value in it, and nothing else"
KEY_IN_IT: Final = "the signing key in it, and nothing else"
FEWEST_IN_PATH: Final = 12
"""Minimum length of a secret path segment. Shorter ones are words, such as `webhooks`."""
FEWEST_CHARS: Final = 7
"""Minimum length of a hidden text. A shorter one is too likely to be in a response by chance."""


def check_destinations(
    config: Config, environ: Mapping[str, str]
) -> dict[tuple[str, str], Destination]:
    """Return the destinations by route and handler.

    Raises ConfigInvalid with every reference that cannot be resolved.
    """
    problems: list[Problem] = []
    found: dict[tuple[str, str], Destination] = {}
    for route in config.routes:
        for index, forward in enumerate(route.forwards):
            at = ("routes", route.name, "forward", index)
            resolving = _Resolving(config, environ, at, problems)
            destination = resolving.destination(forward)
            if destination is not None:
                found[route.name, forward.handler] = destination
    if problems:
        raise ConfigInvalid(problems)
    return found


class _Resolving:
    """Resolves the references of one forward."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        at: Location,
        problems: list[Problem],
    ) -> None:
        self._config = config
        self._environ = environ
        self._at = at
        self._problems = problems
        self._secrets: list[str] = []

    def destination(self, forward: Forward) -> Destination | None:
        """Return the destination, or None if it has a problem."""
        url = self._value(("url",), forward.url, check_url, URL_IN_IT)
        headers = {
            name: self._value(("headers", name), value, check_header_value, VALUE_IN_IT)
            for name, value in forward.headers
        }
        keys = [
            self._value(("sign", index), ref, parse_key, KEY_IN_IT)
            for index, ref in enumerate(forward.sign)
        ]
        if url is None or None in headers.values() or None in keys:
            return None
        return Destination(
            url=url,
            headers={name: value for name, value in headers.items() if value is not None},
            keys=tuple(key for key in keys if key is not None),
            secrets=tuple(_telling([*self._secrets, *_shown_of(forward.url, url)])),
        )

    def _value(
        self, key: Location, value: str | SecretRef, read: Callable[[str], T], expected: str
    ) -> T | None:
        try:
            if isinstance(value, str):
                return read(value)
            text = resolve(value, self._environ, {}, expected=expected).decode()
            self._secrets.append(text)
            return read(text)
        except SecretUnusable as error:
            found, expected = error.found, error.expected
        except Unexpected as error:
            found, expected = f"{value}, with {error.found}", error.expected
        self._problems.append(self._config.problem(*self._at, *key, found=found, expected=expected))
        return None


def _shown_of(kept: str | SecretRef, url: str) -> Iterator[str]:
    """Yield the parts of a URL to hide in responses that quote it.

    These are all parts of a URL that is a reference, or else only its query.
    """
    parsed = httpx.URL(url)
    yield parsed.query.decode()
    yield from parsed.params.values()
    if isinstance(kept, SecretRef):
        yield parsed.raw_path.decode()
        yield parsed.path
        yield from (part for part in parsed.path.split("/") if len(part) >= FEWEST_IN_PATH)


def _telling(secrets: Iterable[str]) -> Iterator[str]:
    """Yield each secret as a whole and by its words, longest first.

    A response may quote `Bearer abc` as `abc`.
    """
    found = {part for secret in secrets for part in (secret, *secret.split())}
    yield from sorted((part for part in found if len(part) >= FEWEST_CHARS), key=len, reverse=True)
