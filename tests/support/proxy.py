"""A real HAProxy in front of `serve` processes."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pytest

from tests.support.processes import Project, Running, free_port

CONFIG: Final = """
global
    maxconn 1000

defaults
    mode http
    timeout connect 5s
    timeout client 50s
    timeout server 50s
    timeout check 2s
    retries 0

frontend webhooks
    bind 127.0.0.1:{port}
    default_backend gateway

backend gateway
    balance roundrobin
    option httpchk GET /readyz
    default-server check inter 250ms fall 2 rise 1
    {servers}
"""
"""The time limits are Debian's. No retries: what `serve` fails to answer is a failed request."""


@contextmanager
def haproxy(project: Project, ports: Sequence[int]) -> Iterator[tuple[Running, str]]:
    """The proxy and its URL."""
    program = shutil.which("haproxy", path=f"{project.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("needs HAProxy (Debian: apt install haproxy)")
    port = free_port()
    servers = "\n    ".join(f"server serve{n} 127.0.0.1:{p}" for n, p in enumerate(ports))
    project.write("haproxy.cfg", CONFIG.format(port=port, servers=servers))
    with project.started([program, "-db", "-f", "haproxy.cfg"]) as running:
        yield running, f"http://127.0.0.1:{port}"
