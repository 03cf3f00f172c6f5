"""Clients of GET /healthz, in a process of their own: well-behaved ones, or ones that pipeline.

A well-behaved client sends its next request when the last one is answered. One that pipelines sends
as many bytes per second as it is told to, whatever is answered, and reads all answers.
"""

import argparse
import json
import select
import socket
import time

from bench.figures import Sample

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n"
ANSWER = b'{"status":"alive"}'
BURST = REQUEST * (60_000 // len(REQUEST))
READ_BYTES = 1024 * 1024
TICK_S = 0.01


class Client:
    """One connection. It is opened anew if the server closes it."""

    def __init__(self, port: int, bytes_per_second: float) -> None:
        self._port = port
        self._bytes_per_second = bytes_per_second
        """0 for a well-behaved client."""
        self.answered = self.closed = self.sent = 0
        self._open()

    def _open(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._unsent = memoryview(b"" if self._bytes_per_second else REQUEST)
        self._tail = b""
        self.send()

    def reopen(self) -> None:
        self.closed += 1
        self.socket.close()
        self._open()

    def pace(self, elapsed_s: float) -> None:
        """Send a burst if it is time for one, or the rest of the last one."""
        if not self._unsent and self.sent + len(BURST) <= elapsed_s * self._bytes_per_second:
            self._unsent = memoryview(BURST)
        self.send()

    def send(self) -> None:
        if self._unsent:
            try:
                size = self.socket.send(self._unsent)
            except BlockingIOError:  # the server reads no further
                return
            self.sent += size
            self._unsent = self._unsent[size:]

    def read(self) -> None:
        """Count answers. A well-behaved client sends its next request."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError
        data = self._tail + data
        found = data.count(ANSWER)
        self._tail = data[-len(ANSWER) + 1 :]
        self.answered += found
        if found and not self._bytes_per_second:
            self._unsent = memoryview(REQUEST)
            self.send()


def run(port: int, *, connections: int, seconds: float, bytes_per_second: float) -> Sample:
    """Return how many requests were answered, and how many connections the server closed."""
    clients = [Client(port, bytes_per_second) for _ in range(connections)]
    poll, by_descriptor = select.epoll(), {}

    def watch(client: Client) -> None:
        poll.register(client.socket, select.EPOLLIN)
        by_descriptor[client.socket.fileno()] = client

    for client in clients:
        watch(client)
    began = now = time.monotonic()
    next_tick = began
    while now - began < seconds:
        for descriptor, _ in poll.poll(max(next_tick - now, 0)):
            client = by_descriptor[descriptor]
            try:
                client.read()
            except BlockingIOError:
                continue
            except ConnectionError:
                del by_descriptor[descriptor]
                client.reopen()
                watch(client)
        now = time.monotonic()
        if now >= next_tick:
            next_tick = now + TICK_S
            for client in clients:
                client.pace(now - began) if bytes_per_second else client.send()
    for client in clients:
        client.socket.close()
    poll.close()
    return {
        "requests": sum(client.answered for client in clients),
        "seconds": now - began,
        "sent_bytes": sum(client.sent for client in clients),
        "closed": sum(client.closed for client in clients),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.healthz", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--pipeline",
        type=float,
        default=0,
        metavar="BYTES",
        help="bytes per second and connection that are sent; without it, one request at a time",
    )
    options = parser.parse_args()
    figures = run(
        options.port,
        connections=options.connections,
        seconds=options.seconds,
        bytes_per_second=options.pipeline,
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
