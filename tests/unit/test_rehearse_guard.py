"""What keeps a rehearsal from reaching anything, and what it says where that is not certain."""

import importlib
import sqlite3
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from rich.text import Text

from gateway.cli import rehearsed
from gateway.testing.drivers import find_unguarded
from gateway.testing.rehearse import Report, Request, Verdict
from gateway.testing.rehearse.isolation import RehearsalGuard, rehearsing
from gateway.testing.rehearse.server_process import describe_address

ROOT = Path(__file__).parents[2]


def test_what_could_not_be_guarded_is_named_and_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rehearse(_: object, take: Callable[[Report], None], server_process: object) -> None:
        assert server_process is None
        take(Report(handler="h.safe", route="stripe", verdict=Verdict.SAFE, unguarded=("grpc",)))

    monkeypatch.setattr(rehearsed, "rehearse", rehearse)
    registry = SimpleNamespace(handlers=[], subscriptions=[])
    request = cast(
        "Request", SimpleNamespace(project=SimpleNamespace(registry=registry), handlers=())
    )
    assert not rehearsed.rehearse_and_print(request, None, as_json=False)
    assert "NOT GUARDED: grpc. Such a library may open connections in C" in capsys.readouterr().out


def test_a_package_that_may_connect_in_c_is_found() -> None:
    import uvloop  # noqa: F401 (connects by libuv)

    assert "uvloop" in find_unguarded()
    assert not {"asyncpg", "orjson", "psycopg"} & set(find_unguarded())


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (b"\x02\x00\x18\xeb\x7f\x00\x00\x01" + bytes(8), "127.0.0.1:6379"),
        (b"\x0a\x00\x18\xeb" + bytes(19) + b"\x01" + bytes(4), "::1:6379"),
        (b"\x01\x00/run/x\x00", "/run/x"),
        (b"\x01\x00\x00hidden", "@hidden"),
        (b"\x28\x00", "an address of the family 40"),
    ],
)
def test_an_address_of_c_is_read(address: bytes, text: str) -> None:
    assert describe_address(address) == text


def test_mysqlclient_is_refused_before_it_connects_in_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of its shape: building the real one needs the headers of MySQL."""
    (tmp_path / "MySQLdb").mkdir()
    (tmp_path / "MySQLdb/__init__.py").write_text(
        "def connect(*args, **options):\n"
        "    from MySQLdb.connections import Connection\n"
        "    return Connection(*args, **options)\n",
        encoding="utf-8",
    )
    (tmp_path / "MySQLdb/connections.py").write_text(
        "class Connection:\n    def __init__(self, *args, **options): self.is_open = True\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    guard = RehearsalGuard(ROOT)
    with rehearsing(guard):
        connect = importlib.import_module("MySQLdb").connect
        for options in ({"host": "db.example"}, {"unix_socket": "/run/mysqld.sock"}, {}):
            with pytest.raises(ConnectionRefusedError):
                connect(**options)
    assert connect(host="db.example").is_open
    assert list(guard.escapes) == ["db.example:3306", "/run/mysqld.sock", "localhost:3306"]
    for name in ("MySQLdb", "MySQLdb.connections"):
        del sys.modules[name]


def test_sqlite_in_memory_is_allowed_and_a_file_is_not(tmp_path: Path) -> None:
    guard = RehearsalGuard(ROOT)
    with rehearsing(guard):
        for name in (":memory:", "", "file:x?mode=memory"):
            sqlite3.connect(name, uri=name.startswith("file:")).close()
        with pytest.raises(ConnectionRefusedError):
            sqlite3.connect(tmp_path / "app.db")
    assert [escape.target for escape in guard.found()] == [
        f"the SQLite database {tmp_path / 'app.db'}"
    ]
    assert not (tmp_path / "app.db").exists()


def test_a_line_is_wrapped_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = Text("  not tried: two events at the same time, calls that fail")
    shown = {}
    for is_terminal in (True, False):
        out = Console(file=StringIO(), width=40, force_terminal=is_terminal, color_system=None)
        monkeypatch.setattr(rehearsed, "console", lambda out=out: out)
        rehearsed._say(text)
        assert isinstance(out.file, StringIO)
        shown[is_terminal] = out.file.getvalue().splitlines()
    assert shown[True] == ["  not tried: two events at the same", "    time, calls that fail"]
    assert shown[False] == [text.plain]
