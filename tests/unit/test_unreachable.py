"""Why a Postgres cannot be reached: the host, the port, the variable and what to look at."""

import socket
from errno import ECONNREFUSED, EHOSTUNREACH

import pytest

from gateway.ledger.servers import explain_failure, locate

URL = "postgresql://someone:hush@db.example.com:6432/shop?sslmode=require"
WHERE = "db.example.com:6432 (GATEWAY_DATABASE_URL)"
REFUSED = (
    f"{WHERE} refused the connection: no server listens there. "
    "Is Postgres running, and is the port right?"
)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        (URL, "db.example.com:6432"),
        ("postgres://u:p%40ss@localhost/x", "localhost:5432"),
        ("postgres://u@[::1]:5433/x", "[::1]:5433"),
        ("postgres://u@/x?host=/run/pg&port=5433", "the socket /run/pg/.s.PGSQL.5433"),
        ("postgres://u@%2Frun%2Fpg/x", "the socket /run/pg/.s.PGSQL.5432"),
        ("postgres://u@/x?host=db2", "db2:5432"),
        ("postgres://u@/x", "localhost:5432"),
        ("postgres://", "localhost:5432"),
    ],
)
def test_host_and_port_are_those_that_the_driver_takes(
    url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert locate(url) == where


def test_the_variables_of_libpq_count_where_the_url_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "db3")
    monkeypatch.setenv("PGPORT", "7000")
    assert locate("postgres://u@/x") == "db3:7000"
    assert locate(URL) == "db.example.com:6432"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(ECONNREFUSED, "Connect call failed"), REFUSED),
        (
            # asyncio's error for a name with several addresses
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 6432, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 6432)"
            ),
            REFUSED,
        ),
        (
            OSError("Multiple exceptions: [Errno 111] refused, [Errno 101] unreachable"),
            f"{WHERE}: Multiple exceptions: [Errno 111] refused, [Errno 101] unreachable",
        ),
        (
            TimeoutError(),
            f"{WHERE} did not answer within 5 s. "
            "Is the address right, and does every firewall on the way let this host through?",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            f"{WHERE}: the host name cannot be resolved (Name or service not known)",
        ),
        (
            OSError(EHOSTUNREACH, "No route to host"),
            f"{WHERE} is unreachable from this host: No route to host",
        ),
        (
            FileNotFoundError(2, "No such file or directory"),
            f"{WHERE} does not exist. Is Postgres running?",
        ),
        (
            ConnectionResetError(104, "Connection reset by peer"),
            f"{WHERE}: Connection reset by peer",
        ),
    ],
)
def test_each_failure_says_what_was_tried_and_why_it_failed(error: OSError, text: str) -> None:
    explained = explain_failure(error, URL, variable="GATEWAY_DATABASE_URL", timeout_s=5.0)
    assert str(explained) == text
    assert "hush" not in str(explained)
    assert isinstance(explained, type(error))
