"""The HTTP client of what is pushed: bounded, without proxies, redirects, cookies and decoding."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import httpcore
import httpx

from gateway.errors import PushFailed
from gateway.outbound.network import CheckedNetwork

LARGEST_ANSWER_BYTES: Final = 64 * 1024
CONNECT_S: Final = 10.0
IDLE_S: Final = 4.0
"""Below the five seconds after which Node closes what is idle: a request must not meet that."""
TROUBLE: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    OSError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a service said."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes | None = field(repr=False)
    """None where it is longer than anybody needs to read."""

    @property
    def is_acknowledged(self) -> bool:
        return 200 <= self.status < 300


class Client:
    """One for all that a process pushes, with connections of its own for each origin."""

    def __init__(
        self, *, most_connections: int, network: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._most_connections = most_connections
        self._network = network or CheckedNetwork()
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}
        self._ssl: ssl.SSLContext | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Sends it once. Raises PushFailed, whose text shows nothing of the URL and the headers.

        The caller says how long it may take.
        """
        parsed = httpx.URL(url)
        target = httpcore.URL(
            scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
        )
        sent = [("host", parsed.netloc.decode()), *headers.items()]
        try:
            async with self._pool(target.origin).stream(
                "POST",
                target,
                headers=[(name.encode(), value.encode()) for name, value in sent],
                content=body,
                extensions={"timeout": {"connect": CONNECT_S}},
            ) as response:
                return await _read(response)
        except TROUBLE as error:
            told = _told(error)
        raise PushFailed(told)

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _pool(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionPool:
        pool = self._pools.get(str(origin))
        if pool is None:
            pool = self._pools[str(origin)] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls() if origin.scheme == b"https" else None,
                max_connections=self._most_connections,
                max_keepalive_connections=self._most_connections,
                keepalive_expiry=IDLE_S,
                network_backend=self._network,
            )
        return pool

    def _tls(self) -> ssl.SSLContext:
        """With the authorities of SSL_CERT_FILE or SSL_CERT_DIR, where one is set."""
        self._ssl = self._ssl or httpx.create_ssl_context()
        return self._ssl


async def _read(response: httpcore.Response) -> Answer:
    return Answer(
        status=response.status,
        headers={
            name.decode("ascii", "replace").lower(): value.decode("latin-1")
            for name, value in response.headers
        },
        body=await _read_body(response),
    )


async def _read_body(response: httpcore.Response) -> bytes | None:
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            return None
    return bytes(body)


def _told(error: Exception) -> str:
    """In words. What cannot be sent may be a secret, and is not quoted."""
    match error:
        case httpcore.ConnectTimeout() | httpcore.ConnectError():
            return f"cannot connect: {error}"
        case httpcore.LocalProtocolError():
            return "the request is none that HTTP can carry"
        case httpcore.RemoteProtocolError():
            return f"the answer is no HTTP: {error}"
    return f"the connection broke: {error or type(error).__name__}"
