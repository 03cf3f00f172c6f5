"""Connects to whichever of several servers can be written to, however silent the others are."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Sequence
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from gateway.notation.hosts import split_hosts

if TYPE_CHECKING:  # generic in its stubs only
    Opened = asyncpg.Connection[asyncpg.Record]
else:
    Opened = asyncpg.Connection

WANTED: Final = "target_session_attrs"
WRITABLE: Final = "read-write"
DEFAULT_PORT: Final = "5432"
ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


async def connect_to_any(url: str, *, variable: str, timeout_s: float, **options: Any) -> Opened:
    """All are asked at once. asyncpg asks one after the other within one time limit: a first one
    that is cut off, and does not even refuse, would keep it from the second for good.

    Errors of the network name the host, the port and the variable that the URL was in.
    """

    async def connect(one: str) -> Opened:
        try:
            return await asyncpg.connect(one, timeout=timeout_s, **options)
        except ssl.SSLError:
            raise
        except OSError as error:  # and its subclass TimeoutError
            raise explain_failure(error, one, variable=variable, timeout_s=timeout_s) from error

    urls = split_hosts(url)
    if len(urls) == 1:
        return await connect(url)
    if WANTED not in url:
        options |= {WANTED: WRITABLE}
    attempts = [asyncio.ensure_future(connect(one)) for one in urls]
    chosen: Opened | None = None
    try:
        chosen = await _first(attempts)
        return chosen
    finally:
        for attempt in attempts:
            _give_up(attempt, chosen)


def locate(url: str) -> str:
    """Return the host and the port of a URL, or the path of the socket, as asyncpg reads them."""
    parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
    host = unquote(parts.hostname or "") or query.get("host", [""])[0]
    host = host or os.environ.get("PGHOST", "") or "localhost"
    port = str(parts.port or "") or query.get("port", [""])[0]
    port = port or os.environ.get("PGPORT", "") or DEFAULT_PORT
    if host.startswith("/"):
        return f"the socket {host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def explain_failure(error: OSError, url: str, *, variable: str, timeout_s: float) -> OSError:
    """Return an error of the same class that says which server failed, and in which way."""
    where, reason = f"{locate(url)} ({variable})", error.strerror or str(error)
    numbers = {error.errno} if error.errno is not None else _numbers(error)
    if isinstance(error, TimeoutError):
        text = (
            f"{where} did not answer within {timeout_s:g} s. "
            "Is the address right, and does every firewall on the way let this host through?"
        )
    elif isinstance(error, socket.gaierror):
        text = f"{where}: the host name cannot be resolved ({reason})"
    elif isinstance(error, FileNotFoundError):
        text = f"{where} does not exist. Is Postgres running?"
    elif numbers == {ECONNREFUSED}:
        text = (
            f"{where} refused the connection: no server listens there. "
            "Is Postgres running, and is the port right?"
        )
    elif numbers and numbers <= {EHOSTUNREACH, ENETUNREACH}:
        text = f"{where} is unreachable from this host: {reason}"
    else:
        text = f"{where}: {reason}"
    return type(error)(text)


def _numbers(error: OSError) -> set[int]:
    """Return the error numbers of a name with several addresses, all of which failed: asyncio
    writes them into the text of one error without a number."""
    return {int(number) for number in ERRNO.findall(str(error))}


async def _first(attempts: "Sequence[asyncio.Future[Opened]]") -> Opened:
    """Of those that all fail, those that are not merely a standby say why."""
    waiting = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt.result()
    failures = [failure for attempt in attempts if (failure := attempt.exception())]
    telling = [f for f in failures if not isinstance(f, asyncpg.TargetServerAttributeNotMatched)]
    unreached = [f for f in telling if isinstance(f, OSError) and not isinstance(f, ssl.SSLError)]
    if len(unreached) > 1 and len(unreached) == len(telling):
        raise type(unreached[0])("; ".join(map(str, unreached))) from unreached[0]
    raise (telling or failures)[0]


def _give_up(attempt: "asyncio.Future[Opened]", chosen: object) -> None:
    if not attempt.done():
        attempt.cancel()
    elif attempt.exception() is None and attempt.result() is not chosen:
        attempt.result().terminate()
