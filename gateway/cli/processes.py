"""`up`, `serve` and `worker`."""

import asyncio
import gc
import os
import shlex
import shutil
import signal
import socket
import sys
from typing import Annotated, Final
from urllib.parse import urlsplit

import structlog
import typer
import uvloop

from gateway.cli.output import complain, console
from gateway.hangup import Hangup
from gateway.ledger.connection import describe
from gateway.logs import configure_logs
from gateway.notify import Notifier
from gateway.project import Project, load_project, redis_url
from gateway.providers import Provider
from gateway.queue.cancellation import end
from gateway.queue.worker import Link, listen_forever
from gateway.routes import Route
from gateway.run.isolated import OPTION, die_first, obey_parent
from gateway.server import serve as run_server
from gateway.settings import load_settings
from gateway.up import Reload, Started, run_up
from gateway.worker import Worker

REQUESTS_BETWEEN: Final = 50_000
HANDLERS_BETWEEN: Final = 10_000
"""Objects made before the garbage collector looks: handlers are not ours, and may make cycles."""

HURRY_S: Final = 3.0
"""After a second signal: time to hand deliveries back. What is not handed back is taken back."""

log = structlog.get_logger("gateway.worker")

WithParent = Annotated[
    bool, typer.Option("--with-parent", hidden=True, help="End when standard input ends.")
]
ListenerFd = Annotated[
    int | None, typer.Option(hidden=True, help="A port that the parent has opened already.")
]
Isolated = Annotated[
    bool,
    typer.Option(OPTION, hidden=True, help="Run suspects only, for the worker that started it."),
]
ReadyFd = Annotated[
    int | None, typer.Option(hidden=True, help="Where to write a byte as soon as it works.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(serve)
    app.command()(worker)


def up(
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Let saved handlers, routes and schema files take effect."),
    ] = False,
) -> None:
    """Start everything: Postgres and Redis (where no URL is set), migrate, serve and worker.

    The engines are real ones, kept in the data directory (GATEWAY_DATA_DIR). Secrets that the
    routes refer to and that are not set get a development value. Stop it with Ctrl-C.

    With --reload, what you save is checked first: a mistake is shown, and the old code goes on.

    Example: [bold]gateway up[/bold], then in another terminal
    [bold]gateway send stripe payment_intent.succeeded[/bold]
    """
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level)
    run_up(os.environ, _tell, _tell_reload if reload else None)


def _tell(started: Started) -> None:
    out = console()
    for engine in started.engines:
        out.print(f"  [green]started[/green]  {engine}")
    for route in started.config.doors:
        out.print(f"  [green]route[/green]    {route.name}: POST {started.url}{route.path}")
    for route in started.config.open_queues:
        out.print(f"  [green]queue[/green]    {route.name}: POST {started.url}{route.path}")
    if started.console_url is not None:
        tokens = " or ".join(started.console_tokens)
        asks = f" (asks for {tokens})" if tokens else ""
        out.print(f"  [green]console[/green]  {started.console_url}{asks}")
    else:
        host = urlsplit(started.url).hostname
        out.print(f"  [yellow]notice[/yellow]   no console: it needs GATEWAY_ADMIN_TOKEN on {host}")
    for reference in started.made_up:
        out.print(
            f"  [yellow]notice[/yellow]   {reference} is not set: a development secret is used"
        )
    for route in (*started.config.doors, *started.config.open_queues)[:1]:
        out.print(f"\n  Ready. Try:  [bold]{_first_command(route)}[/bold]\n")
    if started.reloads:
        out.print("  Saved handlers, routes and schema files take effect.\n")


def _tell_reload(reload: Reload) -> None:
    files = ", ".join(reload.files)
    if reload.problems:
        complain("\n".join(reload.problems))
        console().print(f"  not reloaded: {files}; what ran before goes on", markup=False)
    else:
        console().print(f"  reloaded {files} in {reload.took_s:.1f} s", markup=False)


def _gateway() -> str:
    """How this very command is called from here, whether or not it is on the PATH."""
    return "gateway" if shutil.which("gateway") else os.path.relpath(sys.argv[0])


def _first_command(route: Route) -> str:
    if route.provider.is_queue:
        return f"echo '{{}}' | {_gateway()} publish {route.name} --payload -"
    return f"{_gateway()} send {route.name} {_example(route.provider)}"


def _example(provider: Provider) -> str:
    if provider.drafts is not None:
        return shlex.quote(provider.drafts.example)
    return {"stripe": "payment_intent.succeeded"}.get(provider.name, "push")


def serve(
    with_parent: WithParent = False, listener_fd: ListenerFd = None, ready_fd: ReadyFd = None
) -> None:
    """Receive webhooks: verify, claim, acknowledge.

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, a migrated database and every route's
    secret. Run as many as you like; each is one process on GATEWAY_HOST and GATEWAY_PORT.
    SIGHUP reads the secrets anew, all of them or none, and drops no request.
    """
    hangup = Hangup()
    hangup.listen()
    project = _load(with_secrets=True)
    _collect_every(REQUESTS_BETWEEN)
    listener = None if listener_fd is None else socket.socket(fileno=listener_fd)
    uvloop.run(_serve(project, with_parent, listener, ready_fd, hangup))


async def _serve(
    project: Project,
    with_parent: bool,
    listener: socket.socket | None,
    ready_fd: int | None,
    hangup: Hangup,
) -> None:
    if with_parent:
        await _end_with_parent()
    await run_server(
        project, listener=listener, on_started=lambda: _say_ready(ready_fd), hangup=hangup
    )


def worker(
    with_parent: WithParent = False, ready_fd: ReadyFd = None, isolated: Isolated = False
) -> None:
    """Run handlers: an arq worker that outlives a Redis restart, and reads Postgres either way.

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, and of the secrets only what `api_key` and
    `forward` refer to. Run as many as you like.
    SIGTERM finishes what runs within GATEWAY_GRACE and hands the rest back; a second one at once.
    GATEWAY_WORKER_PORT opens a port for /healthz, /readyz and /metrics.
    """
    hangup = Hangup()
    hangup.listen()
    project = _load(with_api_keys=True)
    _collect_every(HANDLERS_BETWEEN)
    if isolated:
        uvloop.run(_work_isolated(project))
    else:
        uvloop.run(_work(project, with_parent, ready_fd, hangup))


async def _work_isolated(project: Project) -> None:
    """Run suspects until none is due, or the worker that started this process stops or is gone."""
    die_first()
    worker, stopping = Worker(project, isolated=True), asyncio.Event()

    def hurry() -> None:
        stopping.set()
        worker.hurry()
        asyncio.get_running_loop().call_later(HURRY_S, _leave, 0)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    obey_parent(stopping.set, hurry)
    await worker.start()
    failed = asyncio.create_task(worker.wait_failed())
    ends = {asyncio.create_task(worker.wait_idle()), asyncio.create_task(stopping.wait())}
    await asyncio.wait({failed, *ends}, return_when=asyncio.FIRST_COMPLETED)
    has_failed = failed.done()
    for task in ends:
        task.cancel()
    await worker.stop()
    if has_failed:
        log.error("worker_failed", error=describe(failed.exception() or RuntimeError("it ended")))
    _leave(int(has_failed))


async def _work(project: Project, with_parent: bool, ready_fd: int | None, hangup: Hangup) -> None:
    settings = project.settings
    queue = redis_url(settings)
    worker, link = Worker(project), Link()
    worker.metrics.watch_queue(lambda: link.is_up, lambda: link.restarts)
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            worker.hurry()
            asyncio.get_running_loop().call_later(HURRY_S, _leave, 0)
        stopping.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    if with_parent:
        await _end_with_parent()
    await worker.start()
    _say_ready(ready_fd)
    listening = asyncio.create_task(listen_forever(queue, worker.hint, link))
    failed = asyncio.create_task(worker.wait_failed())
    stopped = asyncio.create_task(stopping.wait())
    with hangup.obeyed_by(_tell_to_restart):
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await end(listening)
    await worker.stop()
    if stopping.is_set():
        _leave(0)
    log.error("worker_failed", error=describe(failed.exception() or RuntimeError("it ended")))
    _leave(1)


def _tell_to_restart() -> None:
    log.warning("not_reloaded", reason="a worker reads its keys when it starts: restart it")


def _say_ready(ready_fd: int | None) -> None:
    """To `gateway up`, or to systemd."""
    Notifier().started()
    if ready_fd is not None:
        os.write(ready_fd, b"!")
        os.close(ready_fd)


def _collect_every(objects: int) -> None:
    """Requests and deliveries make few cycles, and the modules none: looking through all of them
    every few hundred objects shows in the p99."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(objects)


def _leave(code: int) -> None:
    """Ends the process here and now: a handler that ignores its cancellation, or sits in a thread,
    would keep the interpreter from ending by itself."""
    strays = len(asyncio.all_tasks()) - 1
    if strays > 0:
        log.info("tasks_left_behind", tasks=strays)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _load(*, with_secrets: bool = False, with_api_keys: bool = False) -> Project:
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level)
    return load_project(settings, with_secrets=with_secrets, with_api_keys=with_api_keys)


async def _end_with_parent() -> None:
    """Standard input is a pipe from `gateway up`: when it ends, so do we, as on SIGTERM."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin.fileno(), ended)
