"""The URLs of Redis and of its Sentinels."""

import pytest

from gateway.base.redis_urls import read_redis_url
from gateway.queue.connection import name_version

PASSWORD = "hunter2"


def test_a_server() -> None:
    url = read_redis_url(f"rediss://ann:{PASSWORD}%2F%40@redis.example:6380/3?ssl_ca_certs=/ca.pem")
    assert (url.hosts, url.master, url.database) == ((("redis.example", 6380),), None, 3)
    assert url.is_encrypted
    assert url.credentials == {"username": "ann", "password": f"{PASSWORD}/@"}
    assert url.options == {"ssl_ca_certs": "/ca.pem"}


def test_what_is_left_out_has_its_usual_value() -> None:
    url = read_redis_url("redis://")
    assert (url.hosts, url.database, url.credentials) == ((("localhost", 6379),), 0, {})
    assert not url.is_encrypted


def test_a_socket() -> None:
    url = read_redis_url("unix:///run/redis%20one.sock?db=2&socket_timeout=0.5")
    assert (url.hosts, url.socket, url.database) == ((), "/run/redis one.sock", 2)
    assert url.options == {"socket_timeout": 0.5}


@pytest.mark.parametrize("path", ["/mymaster/2", "/mymaster?db=2"])
def test_sentinels(path: str) -> None:
    join = "&" if "?" in path else "?"
    url = read_redis_url(
        f"redis+sentinel://:{PASSWORD}@a:1,[::1]:2,c{path}{join}sentinel_password=x%26y"
    )
    assert url.hosts == (("a", 1), ("::1", 2), ("c", 26379))
    assert (url.master, url.database) == ("mymaster", 2)
    assert url.credentials == {"password": PASSWORD}
    assert url.sentinel_credentials == {"password": "x&y"}
    assert PASSWORD not in repr(url)
    assert "x&y" not in repr(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@a,b/0",
        f"redis://:{PASSWORD}@a:0/0",
        f"redis://:{PASSWORD}@a:x/0",
        f"redis://:{PASSWORD}@a:99999/0",
        f"redis://:{PASSWORD}@a/name",
        f"redis://:{PASSWORD}@a/0#x",
        f"redis://a/0?{PASSWORD}=1",
        f"redis://a/0?sentinel_password={PASSWORD}",
        f"redis://a/0?socket_timeout={PASSWORD}",
        f"rediss://a/0?ssl_cert_reqs={PASSWORD}",
        f"redis+sentinel://:{PASSWORD}@a",
        f"redis+sentinel://:{PASSWORD}@a/",
        f"redis+sentinel://:{PASSWORD}@a/x/y",
        f"redis+sentinel://:{PASSWORD}@a,,b/x",
        f"redis+sentinel://:{PASSWORD}@/x",
        f"redis+sentinel://:{PASSWORD}@[a/x",
    ],
)
def test_what_cannot_be_read_is_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL") as refusal:
        read_redis_url(url)
    assert PASSWORD not in str(refusal.value)


def test_a_valkey_is_called_by_its_own_version_too() -> None:
    assert name_version({"redis_version": "7.2.4", "valkey_version": "9.1.2"}) == (
        "7.2.4 (Valkey 9.1.2)"
    )
    assert name_version({"redis_version": "6.2.0"}) == "6.2.0"
