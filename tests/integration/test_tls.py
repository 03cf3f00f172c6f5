"""TLS to Postgres and Redis, with real servers: the right one is talked to, and no other."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from gateway.base.errors import EngineFailed, StorageUnavailable
from gateway.dev.embedded import Postgres
from gateway.ledger.connection import connect
from gateway.ledger.servers import is_pooled
from gateway.operations.health.environment import check_postgres_encryption
from gateway.queue.connection import connect_redis, describe_redis
from tests.support.certificates import Authority, Pair
from tests.support.needs import lacks
from tests.support.pgbouncer import pgbouncer
from tests.support.ports import free_port
from tests.support.sentinel import PASSWORD, Tls, Watched, watched

CLIENT = "gateway"
"""The client's name in its certificate is the role's."""


class TlsPostgres(Postgres):
    """One that listens on loopback, for who has a certificate."""

    def __init__(self, directory: Path, authority: Authority, pair: Pair) -> None:
        super().__init__(directory, durable=False)
        self.port = free_port()
        self._tls = {"ssl": "on", "ssl_ca_file": str(authority.file)}
        self._tls |= {"ssl_cert_file": str(pair.certificate), "ssl_key_file": str(pair.key)}
        self._hba = directory.with_name("hba.conf")
        self._hba.write_text("local all all trust\nhostssl all all all cert\n")

    @property
    def _socket(self) -> Path:
        return self._home.sockets / f".s.PGSQL.{self.port}"

    def _command(self) -> list[str]:
        options = {**self._tls, "listen_addresses": "localhost", "port": str(self.port)}
        options |= {"hba_file": str(self._hba)}
        return super()._command() + [p for n, v in options.items() for p in ("-c", f"{n}={v}")]


@pytest.fixture(scope="module")
def authority(engine_dir: Path) -> Authority:
    return Authority(engine_dir / "tls", "right")


@pytest.fixture(scope="module")
def stranger(engine_dir: Path) -> Authority:
    return Authority(engine_dir / "tls", "wrong")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    """Of a server that is called localhost, and not by its address."""
    return authority.sign("server", "localhost")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Pair:
    return authority.sign(CLIENT)


@pytest.fixture(scope="module")
def tls_postgres(engine_dir: Path, authority: Authority, server: Pair) -> Iterator[TlsPostgres]:
    engine = TlsPostgres(engine_dir / "tls-postgres", authority, server)
    try:
        engine.start()
    except EngineFailed as error:
        if "not supported by this build" in str(error):
            lacks("a Postgres with TLS")
        raise
    yield engine
    engine.stop()


def url_of(
    port: int, authority: Authority, client: Pair | None = None, *, host: str = "localhost"
) -> str:
    """As docs/production.md has it."""
    shown = "" if client is None else f"&sslcert={client.certificate}&sslkey={client.key}"
    place = f"postgresql://gateway@{host}:{port}/gateway"
    return f"{place}?sslmode=verify-full&sslrootcert={authority.file}{shown}"


async def test_postgres_that_proves_who_it_is_is_talked_to(
    tls_postgres: TlsPostgres, authority: Authority, client: Pair
) -> None:
    connection = await connect(url_of(tls_postgres.port, authority, client), name="test")
    assert await connection.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
    await connection.close()


async def test_postgres_without_the_right_proof_is_refused(
    tls_postgres: TlsPostgres, authority: Authority, stranger: Authority, client: Pair
) -> None:
    port = tls_postgres.port
    for url, told in (
        (url_of(port, stranger, client), "certificate is not trusted: self-signed"),
        (url_of(port, authority, client, host="127.0.0.1"), "not trusted: IP address mismatch"),
        (url_of(port, authority), "client certificate"),
    ):
        with pytest.raises(StorageUnavailable, match=told) as refusal:
            await connect(url, name="test")
        assert f":{port} (GATEWAY_DATABASE_URL)" in str(refusal.value)


async def test_a_postgres_that_speaks_no_tls_is_refused(
    engine_dir: Path, postgres: Postgres, authority: Authority
) -> None:
    with (
        pgbouncer(engine_dir / "plain", postgres.url) as plain,
        pytest.raises(StorageUnavailable, match="rejected SSL upgrade"),
    ):
        await connect(url_of(plain.port, authority), name="test")


async def test_a_certificate_that_has_expired_is_refused(
    engine_dir: Path, postgres: Postgres, authority: Authority
) -> None:
    expired = authority.sign("expired", "localhost", until=-timedelta(hours=1))
    with (
        pgbouncer(
            engine_dir / "expired",
            postgres.url,
            client_tls_sslmode="require",
            client_tls_cert_file=str(expired.certificate),
            client_tls_key_file=str(expired.key),
        ) as pooler,
        pytest.raises(StorageUnavailable, match="not trusted: certificate has expired"),
    ):
        await connect(url_of(pooler.port, authority), name="test")


async def test_both_ways_of_a_pooler_are_encrypted(
    engine_dir: Path, tls_postgres: TlsPostgres, authority: Authority, server: Pair, client: Pair
) -> None:
    with pgbouncer(
        engine_dir / "encrypted",
        f"host=127.0.0.1 port={tls_postgres.port}",
        client_tls_sslmode="require",
        client_tls_cert_file=str(server.certificate),
        client_tls_key_file=str(server.key),
        server_tls_sslmode="verify-ca",
        server_tls_ca_file=str(authority.file),
        server_tls_cert_file=str(client.certificate),
        server_tls_key_file=str(client.key),
    ) as encrypted:
        connection = await connect(url_of(encrypted.port, authority), name="test", jit="off")
        assert is_pooled(connection)
        assert await connection.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
        await connection.close()


@pytest.fixture(scope="module")
def tls_redis(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, server: Pair
) -> Iterator[Watched]:
    """A master, a replica and Sentinels, which speak TLS only, also among themselves."""
    tls = Tls(authority.file, server)
    with watched(tmp_path_factory.mktemp("redis"), hosts=("localhost",), tls=tls) as redis:
        yield redis


def options_of(authority: Authority, client: Pair) -> str:
    """As docs/production.md has them."""
    shown = f"ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
    return f"ssl_ca_certs={authority.file}&{shown}"


async def ping(url: str) -> None:
    redis = connect_redis(url)
    try:
        await redis.ping()
    finally:
        await redis.aclose(close_connection_pool=True)


async def test_redis_that_proves_who_it_is_is_talked_to(
    tls_redis: Watched, authority: Authority, client: Pair
) -> None:
    options, master = options_of(authority, client), tls_redis.master()
    await ping(f"rediss://:{PASSWORD}@localhost:{master.port}/0?{options}")
    await ping(f"{tls_redis.url}&{options}")


async def test_redis_without_the_right_proof_is_refused(
    tls_redis: Watched, authority: Authority, stranger: Authority, client: Pair
) -> None:
    port = tls_redis.master().port
    right, wrong = options_of(authority, client), options_of(stranger, client)
    for url, told in (
        (f"rediss://:{PASSWORD}@localhost:{port}/0?{wrong}", "certificate is not trusted"),
        (f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?{right}", "not trusted: IP address mismatch"),
        (f"{tls_redis.url}&{wrong}", "no Sentinel names a master .*certificate is not trusted"),
        (f"{tls_redis.url.replace('localhost', '127.0.0.1')}&{right}", "IP address mismatch"),
    ):
        with pytest.raises(RedisConnectionError) as refusal:
            await ping(url)
        assert re.search(told, describe_redis(refusal.value))
        assert PASSWORD not in describe_redis(refusal.value)
    await ping(f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?{right}&ssl_check_hostname=false")


async def test_a_redis_that_speaks_no_tls_is_refused(
    tmp_path: Path, authority: Authority, client: Pair
) -> None:
    with watched(tmp_path, nodes=1, sentinels=1) as plain:
        url = f"rediss://:{PASSWORD}@127.0.0.1:{plain.master().port}/0"
        with pytest.raises(RedisTimeout) as refusal:
            await ping(f"{url}?{options_of(authority, client)}")
    assert "server without TLS" in describe_redis(refusal.value)


@pytest.mark.parametrize(
    ("mode", "level", "told"),
    [
        ("verify-full", "ok", "is encrypted, and the server has to prove who it is"),
        ("require", "warning", "anyone on the way can pose as the server"),
        ("prefer", "warning", "anyone on the way can pose as the server"),
    ],
)
async def test_the_doctor_says_how_postgres_is_reached(
    tls_postgres: TlsPostgres,
    authority: Authority,
    client: Pair,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    level: str,
    told: str,
) -> None:
    monkeypatch.setattr("gateway.operations.health.environment.LOCAL_HOSTS", frozenset())
    url = url_of(tls_postgres.port, authority, client).replace("verify-full", mode)
    connection = await connect(url, name="test")
    [finding] = await check_postgres_encryption(url, connection)
    await connection.close()
    assert finding["level"] == level
    assert told in finding["found"]


async def test_the_doctor_says_that_a_way_is_in_the_clear(
    engine_dir: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operations.health.environment.LOCAL_HOSTS", frozenset())
    with pgbouncer(engine_dir / "clear", postgres.url) as clear:
        connection = await connect(clear.url(), name="test")
        [finding] = await check_postgres_encryption(clear.url(), connection)
        await connection.close()
    assert finding["level"] == "warning"
    assert "127.0.0.1 is not encrypted" in finding["found"]
