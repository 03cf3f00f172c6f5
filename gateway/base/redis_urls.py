"""Parse Redis URLs: of one server, or of the Sentinels that know the master."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from gateway.base.networks import split_hosts

Value = str | float | bool

SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
SENTINEL: Final = "+sentinel"
PORT: Final = 6379
SENTINEL_PORT: Final = 26_379
PATHS: Final[Mapping[str, re.Pattern[str]]] = {
    "unix": re.compile(r"/.+()()"),
    "redis": re.compile(r"()/?(\d*)"),
    "redis+sentinel": re.compile(r"/([^/]+)/?(\d*)"),
}
"""Path patterns with two groups: the name of the master and the number of the database."""


def _one_of(**choices: bool | str) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        if text.lower() not in choices:
            raise ValueError("not one of its choices")
        return choices[text.lower()]

    return read


TRUTH: Final = _one_of(true=True, false=False, yes=True, no=False)
OPTIONS: Final[Mapping[str, Callable[[str], Value]]] = {
    "db": int,
    "health_check_interval": int,
    "socket_connect_timeout": float,
    "socket_keepalive": TRUTH,
    "socket_timeout": float,
    "ssl_ca_certs": str,
    "ssl_cert_reqs": _one_of(required="required", none="none"),
    "ssl_certfile": str,
    "ssl_check_hostname": TRUTH,
    "ssl_keyfile": str,
}
"""Names and values as redis-py takes them."""

SENTINEL_OPTIONS: Final = ("sentinel_password", "sentinel_username")
EXPECTED: Final = (
    "a URL with a port from 1 to 65535, a percent-encoded password and known options"
    f" ({', '.join((*OPTIONS, *SENTINEL_OPTIONS))}); that of Sentinels is like"
    " redis+sentinel://host1:26379,host2:26379/name-of-the-master/0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisUrl:
    """The parsed URL: address, credentials and options of Redis."""

    hosts: tuple[tuple[str, int], ...]
    """The server or the Sentinels. Empty for a Unix socket."""
    socket: str | None
    master: str | None
    """The name of the master in the configuration of the Sentinels."""
    is_encrypted: bool
    database: int
    credentials: Mapping[str, str] = field(repr=False)
    options: Mapping[str, Value]
    sentinel_credentials: Mapping[str, str] = field(repr=False)


def read_redis_url(url: str) -> RedisUrl:
    """Parse a Redis URL. Raises a ValueError that does not quote the URL."""
    try:
        places = [urlsplit(one) for one in split_hosts(url)]
        return _read(places)
    except ValueError:
        raise ValueError(f"expected {EXPECTED}") from None


def _read(places: list[SplitResult]) -> RedisUrl:
    first = places[0]
    is_watched = first.scheme.endswith(SENTINEL)
    shape = PATHS[first.scheme.replace("rediss", "redis")].fullmatch(first.path)
    given = dict(parse_qsl(first.query, keep_blank_values=True))
    watchers = {name: given.pop(name) for name in SENTINEL_OPTIONS if name in given}
    is_socket = first.scheme == "unix"
    if shape is None or first.fragment or not given.keys() <= OPTIONS.keys():
        raise ValueError("not a path, or not an option")
    if (watchers or len(places) > 1) and not is_watched:
        raise ValueError("only Sentinels are many")
    options = {name: OPTIONS[name](text) for name, text in given.items()}
    return RedisUrl(
        hosts=() if is_socket else tuple(_host(place, is_watched) for place in places),
        socket=unquote(first.path) if is_socket else None,
        master=unquote(shape[1]) or None,
        is_encrypted=first.scheme.startswith("rediss"),
        database=int(options.pop("db", shape[2] or 0)),
        credentials=_credentials(first.username, first.password),
        options=options,
        sentinel_credentials={
            name.removeprefix("sentinel_"): value for name, value in watchers.items()
        },
    )


def _host(place: SplitResult, is_watched: bool) -> tuple[str, int]:
    if place.port == 0 or (is_watched and not place.hostname):
        raise ValueError("no host, or no port")
    return place.hostname or "localhost", place.port or (SENTINEL_PORT if is_watched else PORT)


def _credentials(username: str | None, password: str | None) -> dict[str, str]:
    given = {"username": username, "password": password}
    return {name: unquote(text) for name, text in given.items() if text}
