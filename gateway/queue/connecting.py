"""Connections to Redis: a server, or the one that Sentinels name, with time-outs and TLS."""

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

from gateway.notation.redis_urls import RedisUrl, read_redis_url
from gateway.tls import explain

REDIS_TIMEOUT_S: Final = 2.0
HEALTH_CHECK_S: Final = 30


def connect_redis(url: str) -> ArqRedis:
    """arq's client, with ids as JSON instead of pickles. It connects when it is used."""
    place = read_redis_url(url)
    return ArqRedis(
        _watched_pool(place) if place.master is not None else _pool(place),
        job_serializer=orjson.dumps,
        job_deserializer=orjson.loads,
        default_queue_name=default_queue_name,
    )


def describe_redis(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, RedisTimeout) and "connecting" in str(error):
        return "no connection in time (as of rediss:// to a server without TLS, which just waits)"
    return explain(error) or " ".join(str(error).split()) or type(error).__name__


def name_version(known: Mapping[str, Any]) -> str:
    """Of the server, by its INFO: Valkey tells the Redis that it is compatible with, too."""
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
    return _WatchedPool(  # type: ignore[no-untyped-call]  # as much of redis-py
        place.master,
        _Watchers(place.hosts, sentinel_kwargs=watchers),  # type: ignore[no-untyped-call]
        connection_class=_EncryptedToMaster if place.is_encrypted else _ToMaster,
        db=place.database,
        **settings,
        **place.credentials,
    )


def _settings(place: RedisUrl) -> dict[str, Any]:
    """For servers and Sentinels alike. redis-py would take a certificate of any host for good."""
    timeouts = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    secure = {"ssl_check_hostname": place.options.get("ssl_cert_reqs") != "none"}
    return {
        "health_check_interval": HEALTH_CHECK_S,
        **timeouts,
        **(secure if place.is_encrypted else {}),
        **{n: v for n, v in place.options.items() if place.is_encrypted or n[:4] != "ssl_"},
    }


class _Watchers(Sentinel):
    """The Sentinels, who are asked one after the other, from the last one that knew."""

    _named: tuple[Redis, tuple[str, int]] | None = None
    """Who answered last, and what."""

    def doubt(self, address: tuple[str, int]) -> None:
        """No master is there: whoever said so is asked last from now on. One that is cut off from
        the others goes on naming a master that was replaced."""
        if self._named is not None and self._named[1] == address:
            sentinel, self._named = self._named[0], None
            self.sentinels.remove(sentinel)
            self.sentinels.append(sentinel)

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Where the master is. Raises MasterNotFoundError, and says what each of them said."""
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
    """Its connections go to the master, wherever it is by then."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """When all are to go, so do those to the Sentinels."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


class _ToMaster(SentinelManagedConnection):
    """Goes to where a Sentinel says, and tells when that was no master."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        try:
            await super().connect_to(address)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError):
            self.connection_pool.sentinel_manager.doubt(address)
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Of a server that takes no writes, redis-py makes a lost connection."""
        try:
            return await super().read_response(*args, **options)
        except RedisConnectionError:
            self.connection_pool.sentinel_manager.doubt((self.host, self.port))
            raise


class _EncryptedToMaster(_ToMaster, SSLConnection):
    """The same, with TLS."""


def _address(sentinel: Redis) -> str:
    place = sentinel.connection_pool.connection_kwargs
    return f"{place['host']}:{place['port']}"
