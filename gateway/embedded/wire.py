"""Just enough of both wire protocols to ask an engine over its unix socket whether it is up."""

import socket
import struct
from pathlib import Path

TIMEOUT_S = 5.0
PROTOCOL_3 = 196608
DATABASE_MISSING = "3D000"


def ping(path: Path) -> bool:
    """Whether Redis answers; false while it still loads its data."""
    with _connect(path) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")


def query(path: Path, *, user: str, database: str, sql: str = "") -> str | None:
    """Log in to Postgres without a password and run `sql`; the SQLSTATE if that is refused."""
    with _connect(path) as connection:
        names = f"user\0{user}\0database\0{database}\0\0".encode()
        connection.sendall(struct.pack("!ii", len(names) + 8, PROTOCOL_3) + names)
        refusal = _read_until_ready(connection)
        if refusal is None and sql:
            text = sql.encode() + b"\0"
            connection.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
            refusal = _read_until_ready(connection)
    return refusal


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _read_until_ready(connection: socket.socket) -> str | None:
    refusal = None
    while True:
        kind, length = struct.unpack("!ci", _read(connection, 5))
        body = _read(connection, length - 4)
        if kind == b"E":
            fields = {field[:1]: field[1:] for field in body.split(b"\0")}
            refusal = fields[b"C"].decode()
            if fields[b"V"] == b"FATAL":
                return refusal
        if kind == b"Z":
            return refusal


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        received += chunk
    return received
