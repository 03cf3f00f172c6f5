"""A real HAProxy or nginx in front of `serve` processes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.support.needs import program
from tests.support.ports import free_port
from tests.support.processes import Project, Running

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
    http-reuse always
    option httpchk GET /readyz
    default-server check inter 250ms fall 2 rise 1
    {servers}
"""
"""The time limits are Debian's. No retries: what `serve` fails to answer is a failed request."""


NGINX: Final = """
daemon off;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 200; }}
http {{
    access_log off;
    client_body_temp_path nginx-body;
    proxy_temp_path nginx-proxy;
    fastcgi_temp_path nginx-fastcgi;
    uwsgi_temp_path nginx-uwsgi;
    scgi_temp_path nginx-scgi;
    upstream gateway {{
        {servers}
        keepalive 1;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
        }}
    }}
}}
"""
"""One process, one kept connection: what one client leaves on it, the next one meets."""


@contextmanager
def nginx(project: Project, ports: Sequence[int]) -> Iterator[tuple[Running, str]]:
    """The proxy and its URL."""
    port = free_port()
    servers = "\n        ".join(f"server 127.0.0.1:{p};" for p in ports)
    project.write("nginx.conf", NGINX.format(port=port, servers=servers))
    prefix = str(project.directory)
    with project.started(
        [program("nginx"), "-p", prefix, "-c", "nginx.conf", "-e", "stderr"]
    ) as running:
        yield running, f"http://127.0.0.1:{port}"


@contextmanager
def haproxy(project: Project, ports: Sequence[int]) -> Iterator[tuple[Running, str]]:
    """The proxy and its URL."""
    port = free_port()
    servers = "\n    ".join(f"server serve{n} 127.0.0.1:{p}" for n, p in enumerate(ports))
    project.write("haproxy.cfg", CONFIG.format(port=port, servers=servers))
    with project.started([program("haproxy"), "-db", "-f", "haproxy.cfg"]) as running:
        yield running, f"http://127.0.0.1:{port}"
