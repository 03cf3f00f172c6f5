"""Whether what leaves this machine is encrypted, and whether who answers has to prove who it is."""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gateway.ledger.connection import Connection
from gateway.ledger.pooler import is_pooled
from gateway.ledger.queries import QUERIES
from gateway.notation.hosts import split_hosts
from gateway.notation.redis_urls import read_redis_url
from gateway.operate.doctor.finding import Finding, ok, warning

LOCAL: Final = frozenset({"", "localhost", "127.0.0.1", "::1"})
VERIFIED: Final = "verify-full"
DEMANDED: Final = frozenset({"require", "verify-ca", VERIFIED})
"""Without one of these, asyncpg goes on in the clear where the server speaks no TLS."""

READ: Final = "anyone on the way can read and change it"
FAKED: Final = "encrypted, but anyone on the way can pose as the server"


async def check_postgres_encryption(url: str, connection: Connection) -> list[Finding]:
    """Of the way to Postgres, or to the pooler before it."""
    hosts, options = _hosts(url), parse_qs(urlsplit(split_hosts(url)[0]).query)
    mode = options.get("sslmode", ["prefer"])[-1]
    is_encrypted = mode in DEMANDED
    if not is_pooled(connection):
        is_encrypted = bool(await connection.fetchval(QUERIES["is_encrypted"]))
    advice = f"GATEWAY_DATABASE_URL=...?sslmode={VERIFIED}&sslrootcert=/path/ca.pem"
    return list(_judge("Postgres", hosts, is_encrypted, mode == VERIFIED, advice))


def check_redis_encryption(url: str) -> list[Finding]:
    """Of the way to Redis, and to its Sentinels."""
    place = read_redis_url(url)
    hosts = [host for host, _ in place.hosts]
    is_verified = (
        place.options.get("ssl_cert_reqs") != "none"
        and place.options.get("ssl_check_hostname") is not False
    )
    advice = "GATEWAY_REDIS_URL=rediss://...?ssl_ca_certs=/path/ca.pem"
    return list(_judge("Redis", hosts, place.is_encrypted, is_verified, advice))


def _judge(
    what: str, hosts: Sequence[str], is_encrypted: bool, is_verified: bool, advice: str
) -> Iterator[Finding]:
    far = ", ".join(host for host in hosts if host not in LOCAL and not host.startswith("/"))
    if not far:
        return
    if not is_encrypted:
        yield warning(what, f"the way to {far} is not encrypted: {READ}", advice)
    elif not is_verified:
        yield warning(what, f"the way to {far} is {FAKED}", advice)
    else:
        yield ok(what, f"the way to {far} is encrypted, and the server has to prove who it is")


def _hosts(url: str) -> list[str]:
    """Of a URL of Postgres; none is a socket."""
    parts = [urlsplit(one) for one in split_hosts(url)]
    named = parse_qs(parts[0].query).get("host", [""])[-1].split(",")
    return [part.hostname for part in parts if part.hostname] or named
