"""nginx and Caddy with the configuration that is shipped, before a `serve`."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy.files import DEPLOY, text_of
from tests.support.needs import program
from tests.support.ports import free_port
from tests.support.processes import Project, Running
from tests.support.waiting import until

NGINX: Final = """
{user}
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
    include {shipped};
}}
"""
"""As a distribution's, as far as the shipped file depends on it: nothing but its directories."""

SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    version: str
    body: bytes
    head: str


@dataclass(frozen=True, slots=True)
class Front:
    """A running front and how to send through it."""

    running: Running
    port: int
    directory: Path

    def send(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *options: str,
    ) -> Answer:
        """One request by curl, to the path as it is written."""
        head, answer = self.directory / "answer.head", self.directory / "answer.body"
        fields = [o for name, value in (headers or {}).items() for o in ("-H", f"{name}: {value}")]
        content = []
        if body is not None:
            (self.directory / "request.body").write_bytes(body)
            content = ["--data-binary", "@request.body"]
        # curl asks by itself whether it may go on, where a body is large: that is tried apart.
        fixed = ["--silent", "--show-error", "--insecure", "--path-as-is", "-H", "Expect:"]
        done = subprocess.run(
            [
                *(program("curl"), *fixed, *fields, *content, *options),
                *("--dump-header", head, "--output", answer),
                *("--write-out", "%{http_code} %{http_version}"),
                f"https://localhost:{self.port}{path}",
            ],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr + self.running.output
        status, version = done.stdout.split()
        return Answer(int(status), version, answer.read_bytes(), head.read_text("latin-1"))


Start = Callable[[Project, int], AbstractContextManager[Front]]


@contextmanager
def nginx(project: Project, upstream: int) -> Iterator[Front]:
    """nginx with deploy/nginx/gateway.conf."""
    found, port = program("nginx"), free_port()
    certificate, key = _certificate(project.directory)
    own = {
        "127.0.0.1:8000": f"127.0.0.1:{upstream}",
        "listen 443 ": f"listen 127.0.0.1:{port} ",
        "/etc/ssl/gateway/fullchain.pem": str(certificate),
        "/etc/ssl/gateway/privkey.pem": str(key),
    }
    shipped = text_of("nginx/gateway.conf")
    for theirs, ours in own.items():
        shipped = _replaced(shipped, theirs, ours)
    project.write("gateway.conf", shipped)
    user = "user root;" if os.geteuid() == 0 else ""  # who may write where tests do
    project.write("nginx.conf", NGINX.format(user=user, shipped="gateway.conf"))
    command = [found, "-p", str(project.directory), "-c", "nginx.conf", "-e", "stderr"]
    with _started(project, command, port) as front:
        yield front


@contextmanager
def caddy(project: Project, upstream: int) -> Iterator[Front]:
    """Caddy with deploy/caddy/Caddyfile, and a certificate of its own authority."""
    port = free_port()
    command = [
        program("caddy"),
        "run",
        "--config",
        str(DEPLOY / "caddy/Caddyfile"),
    ]
    environ = {
        "SITE": "localhost",
        "UPSTREAM": f"127.0.0.1:{upstream}",
        "HTTP_PORT": str(free_port()),
        "HTTPS_PORT": str(port),
        "XDG_DATA_HOME": str(project.directory / "caddy"),
        "XDG_CONFIG_HOME": str(project.directory / "caddy"),
    }
    with _started(project, [*command, "--adapter", "caddyfile"], port, **environ) as front:
        yield front


@contextmanager
def _started(
    project: Project, command: Sequence[str], port: int, **environ: str
) -> Iterator[Front]:
    with project.started(command, **environ) as running:
        yield Front(running, port, project.directory)


async def listening(front: Front) -> None:
    """Waits until it answers, if only that there is nothing."""

    def answers() -> bool:
        assert front.running.process.poll() is None, front.running.output
        try:
            return front.send("/").status == 404
        except AssertionError:
            return False

    await until(answers)


def _replaced(text: str, theirs: str, ours: str) -> str:
    """Where the comments do not say what to change, nobody would find it."""
    configured = [line for line in text.splitlines() if theirs in line.partition("#")[0]]
    assert configured, f"{theirs} is not in the file"
    return text.replace(theirs, ours)


def _certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "fullchain.pem", directory / "privkey.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *(
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-out",
                certificate,
                "-keyout",
                key,
            ),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
