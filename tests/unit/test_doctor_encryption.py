"""What the doctor says of the way to Redis; that to Postgres needs a server that can be asked."""

import pytest

from gateway.operations.health.environment import check_redis_encryption


@pytest.mark.parametrize(
    ("url", "level", "told"),
    [
        ("rediss://cache.example:6380/0", "ok", "has to prove who it is"),
        ("redis://cache.example:6379/0", "warning", "cache.example is not encrypted"),
        ("rediss://cache.example/0?ssl_cert_reqs=none", "warning", "pose as the server"),
        ("rediss://cache.example/0?ssl_check_hostname=false", "warning", "pose as the server"),
        ("redis+sentinel://:hunter2@a,b:26379/mymaster", "warning", "a, b is not encrypted"),
        ("rediss+sentinel://:hunter2@a,b:26379/mymaster", "ok", "a, b is encrypted"),
    ],
)
def test_a_way_that_leaves_the_machine(url: str, level: str, told: str) -> None:
    [finding] = check_redis_encryption(url)
    assert finding["level"] == level
    assert told in finding["found"]
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize(
    "url", ["redis://localhost/0", "redis://127.0.0.1:7/0", "redis://[::1]/0", "unix:///run/r.sock"]
)
def test_what_stays_on_the_machine_is_not_spoken_of(url: str) -> None:
    assert check_redis_encryption(url) == []
