"""A real `serve` process, fed over loopback: no error in its log, and it still answers."""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from urllib.parse import urlsplit

from tests.fuzz.target import Check, Finding, Stage, Target
from tests.fuzz.targets import bodies, jobs
from tests.support.processes import Project, Serving, github_request
from tests.support.shapes import SHAPES

TOKEN = "a-token-of-the-fuzzed-queue"
PATIENCE_S = 2.0
MOMENT_S = 0.05
LOOK_EVERY = 100
LOOKED_AT = "10000/s"
"""Refused requests: here all of them."""

RAW, GITHUB, JOB = range(3)
QUEUE = """
  mails:
    provider: publish
    tokens: [env:MAILS_TOKEN]
"""


class Sender:
    """Sends to the process, and looks into its log now and then."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._port = urlsplit(serving.url).port
        self._sent: deque[bytes] = deque(maxlen=LOOK_EVERY)
        self._count = 0

    def send(self, data: bytes) -> None:
        self._say(_request(data))
        self._sent.append(data)
        self._count += 1
        if self._count % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Raises Finding where the process has complained, or does not answer."""
        output = self._serving.running.output
        if "Traceback" in output or '"level":"error"' in output:
            sent = "\n".join(map(ascii, self._sent))
            raise Finding(f"in the log of `serve`: {output[-4000:]}\nafter one of:\n{sent}")
        answer = self._say(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Finding(f"`serve` answers {answer!r}")

    def _say(self, request: bytes) -> bytes:
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S) as connection,
        ):
            connection.sendall(request)
            select([connection], [], [], MOMENT_S)
            connection.shutdown(socket.SHUT_WR)  # or it would wait for more
            while piece := connection.recv(65536):
                answer += piece
        return answer


def _request(data: bytes) -> bytes:
    """Raw, or as a body of somebody who is known."""
    kind, body = data[0] % 3 if data else RAW, data[1:]
    if kind == RAW:
        return body
    if kind == GITHUB:
        _, headers = github_request(f"guid-{hash(body)}", "issues", body=body)
        path = "/webhooks/github"
    else:
        headers, path = {"authorization": f"Bearer {TOKEN}"}, "/v1/queues/mails/jobs"
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def _open(stage: Stage) -> Iterator[Check]:
    directory = stage.directory / "project"
    directory.mkdir()
    project = Project(directory, stage.database_url, stage.redis_url)
    project.environ["MAILS_TOKEN"] = TOKEN
    routes = (directory / "config/routes.yaml").read_text(encoding="utf-8")
    project.write("config/routes.yaml", routes + QUEUE)
    with project.serve(GATEWAY_LOG_FORMAT="json", GATEWAY_REFUSED_RATE=LOOKED_AT) as serving:
        asyncio.run(serving.ready())
        sender = Sender(serving)
        yield sender.send
        sender.look()


def _seeds() -> list[bytes]:
    raw = [bytes([RAW]) + shape.data for shape in SHAPES.values()]
    last = bytes([RAW]) + SHAPES["length: none"].data * 3
    known = [bytes([GITHUB]) + seed.rpartition(b"\xfe\xff")[2] for seed in bodies.TARGET.seeds()]
    published = [bytes([JOB]) + seed.rpartition(b"\xfe\xff")[2] for seed in jobs.TARGET.seeds()]
    return [*raw, last, *known, *published]


TARGET = Target("wire", _seeds, _open, on_engines=True)
