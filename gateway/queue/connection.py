"""Connections to Redis, direct or through Sentinel, with timeouts and TLS."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from arq.connections import ArqRedis
from arq.constants import default_queue_name
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.asyncio import UnixDomainSocketConnection as SocketConnection
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from gateway.base.redis_urls import RedisUrl, read_redis_url
from gateway.http.tls import explain

REDIS_TIMEOUT_S: Final = 2.0
HEALTH_CHECK_S: Final = 30


def connect_redis(url: str) -> ArqRedis:
    """Return arq's client, which connects on first use. Ids are serialized as JSON, not pickled."""
    place = read_redis_url(url)
    return ArqRedis(
        _watched_pool(place) if place.master is not None else _pool(place),
        job_serializer=orjson.dumps,
        job_deserializer=orjson.loads,
        default_queue_name=default_queue_name,
    )


def describe_redis(error: BaseException) -> str:
    """Format the error in one line."""
    if isinstance(error, RedisTimeout) and "connecting" in str(error):
        return "no connection in time (as of rediss:// to a server without TLS, which just waits)"
    return explain(error) or " ".join(str(error).split()) or type(error).__name__


def name_version(known: Mapping[str, Any]) -> str:
    """Return the version from the server's INFO.

    Valkey reports the compatible Redis version as well.
    """
    valkey = known.get("valkey_version")
    return f"{known['redis_version']} (Valkey {valkey})" if valkey else str(known["redis_version"])


def _pool(place: RedisUrl) -> ConnectionPool:
    settings = {**_settings(place), **place.credentials, "db": place.database}
    if place.socket is not None:
        return ConnectionPool(connection_class=SocketConnection, path=place.socket, **settings)
    [(host, port)] = place.hosts
    kind = SSLConnection if place.is_encrypted else Connection
    return ConnectionPool(connection_class=kind, host=host, port=port, **settings)


def _watched_pool(place: RedisUrl) -> ConnectionPool:
    settings = _settings(place)
    watchers = {**settings, **place.sentinel_credentials, "ssl": place.is_encrypted}
    return _WatchedPool(  # type: ignore[no-untyped-call]  # like much of redis-py
        place.master,
        _Watchers(place.hosts, sentinel_kwargs=watchers),  # type: ignore[no-untyped-call]
        connection_class=_EncryptedToMaster if place.is_encrypted else _ToMaster,
        db=place.database,
        **settings,
        **place.credentials,
    )


def _settings(place: RedisUrl) -> dict[str, Any]:
    """Return settings for servers and Sentinels alike.

    By default redis-py would accept a certificate that was issued for any other host.
    """
    timeouts = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    secure = {"ssl_check_hostname": place.options.get("ssl_cert_reqs") != "none"}
    return {
        "health_check_interval": HEALTH_CHECK_S,
        **timeouts,
        **(secure if place.is_encrypted else {}),
        **{n: v for n, v in place.options.items() if place.is_encrypted or n[:4] != "ssl_"},
    }


class _Watchers(Sentinel):
    """The Sentinels, queried one by one, starting with the last one that knew the master."""

    _named: tuple[Redis, tuple[str, int]] | None = None
    """The Sentinel that answered last, and its answer."""

    def doubt(self, address: tuple[str, int]) -> None:
        """Query the Sentinel that named this address last from now on, because no master is there.

        A Sentinel that is cut off from the others keeps naming a master that was replaced.
        """
        if self._named is not None and self._named[1] == address:
            sentinel, self._named = self._named[0], None
            self.sentinels.remove(sentinel)
            self.sentinels.append(sentinel)

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master.

        Raises MasterNotFoundError with the answer of each Sentinel.
        """
        answers = []
        for sentinel in list(self.sentinels):
            try:
                masters = await sentinel.sentinel_masters()  # type: ignore[no-untyped-call]
            except (RedisError, OSError, TimeoutError) as error:
                answers.append(f"{_address(sentinel)}: {describe_redis(error)}")
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)
                self._named = sentinel, (state["ip"], state["port"])
                return self._named[1]
            known = ", ".join(sorted(masters)) or "none"
            answers.append(
                f"{_address(sentinel)}: says that it is down"
                if state
                else f"{_address(sentinel)}: knows no such master (it knows: {known})"
            )
        raise MasterNotFoundError(
            f"no Sentinel names a master {service_name!r}: {'; '.join(answers)}"
        )


class _WatchedPool(SentinelConnectionPool):
    """A connection pool whose connections go to the current master."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Disconnect. If connections in use are included, disconnect from the Sentinels too."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


class _ToMaster(SentinelManagedConnection):
    """A connection to the address that a Sentinel named. It reports addresses without a master."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        try:
            await super().connect_to(address)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError):
            self.connection_pool.sentinel_manager.doubt(address)
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read a response, and doubt the address on a lost connection.

        redis-py reports a read-only server as a lost connection.
        """
        try:
            return await super().read_response(*args, **options)
        except RedisConnectionError:
            self.connection_pool.sentinel_manager.doubt((self.host, self.port))
            raise


class _EncryptedToMaster(_ToMaster, SSLConnection):
    """A connection to the master with TLS."""


def _address(sentinel: Redis) -> str:
    place = sentinel.connection_pool.connection_kwargs
    return f"{place['host']}:{place['port']}"
