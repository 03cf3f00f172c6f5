"""The commands `up`, `serve` and `worker`."""

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

from gateway.base.hangup import Hangup
from gateway.cli.output import complain, console
from gateway.config.project import Project, load_project, redis_url
from gateway.config.routes import Route
from gateway.config.settings import load_settings
from gateway.dev.reloading import Reload
from gateway.dev.up import Started, run_up
from gateway.ledger.connection import describe
from gateway.processes.serve import serve as run_server
from gateway.processes.systemd import Notifier
from gateway.processes.work import Worker, start_worker
from gateway.providers import Provider
from gateway.queue.wake_ups import end
from gateway.queue.worker import QueueConnection, listen_forever
from gateway.telemetry.logs import configure_logs
from gateway.worker.isolated import OPTION, die_first, die_when_stuck, obey_parent

REQUESTS_BETWEEN: Final = 50_000
HANDLERS_BETWEEN: Final = 10_000
"""Allocated objects between two garbage collections.

Lower than for requests, because handlers are user code and may create cycles.
"""

HURRY_S: Final = 3.0
"""Time to release leases after a second signal. Leases that are not released expire."""

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
    app.command()(up)
    app.command()(serve)
    app.command()(worker)


def up(
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Let saved handlers, routes and schema files take effect."),
    ] = False,
) -> None:
    """Start everything: Postgres and Redis (if no URL is set), migrations, serve and worker.

    Postgres and Redis are real servers, with their data in the data directory (GATEWAY_DATA_DIR).
    Secrets of the routes that are not set get a development value. Stop with Ctrl-C. With --reload,
    saved files are checked first: an error is shown, and the old code continues.

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
    """Return the command line of this program, whether or not it is on the PATH."""
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

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, a migrated database and every route's secret.
    Run as many processes as you like; each uses GATEWAY_HOST and GATEWAY_PORT. SIGHUP reloads the
    secrets, all of them or none, and drops no request.
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
    """Run handlers: an arq worker that survives a Redis restart, and always polls Postgres too.

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, and of the secrets only those of `api_key` and
    `forward`. Run as many processes as you like.

    After SIGTERM, running deliveries may finish within GATEWAY_GRACE, and the rest is released for
    other workers; a second SIGTERM releases everything at once. GATEWAY_WORKER_PORT opens a port
    for /healthz, /readyz and /metrics.
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
    stopping, hurried = asyncio.Event(), asyncio.Event()

    def hurry() -> None:
        stopping.set()
        hurried.set()
        asyncio.get_running_loop().call_later(HURRY_S, _leave, 0)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    obey_parent(stopping.set, hurry)
    worker = await start_worker(project, isolated=True)
    hurrying = asyncio.create_task(_hurry_when(hurried, worker))
    watch = asyncio.create_task(die_when_stuck(project.settings.lease))  # also during the stop
    failed = asyncio.create_task(worker.wait_failed())
    ends = {asyncio.create_task(worker.wait_idle()), asyncio.create_task(stopping.wait())}
    await asyncio.wait({failed, *ends}, return_when=asyncio.FIRST_COMPLETED)
    has_failed = failed.done()
    for task in ends:
        task.cancel()
    await worker.stop()
    watch.cancel()
    hurrying.cancel()
    if has_failed:
        log.error("worker_failed", error=describe(failed.exception() or RuntimeError("it ended")))
    _leave(int(has_failed))


async def _work(project: Project, with_parent: bool, ready_fd: int | None, hangup: Hangup) -> None:
    settings = project.settings
    queue = redis_url(settings)
    link = QueueConnection()
    stopping, hurried = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            hurried.set()
            asyncio.get_running_loop().call_later(HURRY_S, _leave, 0)
        stopping.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    if with_parent:
        await _end_with_parent()
    worker = await start_worker(project)
    worker.metrics.watch_queue(lambda: link.is_up, lambda: link.restarts)
    hurrying = asyncio.create_task(_hurry_when(hurried, worker))
    _say_ready(ready_fd)
    listening = asyncio.create_task(listen_forever(queue, worker.hint, link))
    failed = asyncio.create_task(worker.wait_failed())
    stopped = asyncio.create_task(stopping.wait())
    with hangup.obeyed_by(_tell_to_restart):
        await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await end(listening)
    await worker.stop()
    hurrying.cancel()
    if stopping.is_set():
        _leave(0)
    log.error("worker_failed", error=describe(failed.exception() or RuntimeError("it ended")))
    _leave(1)


async def _hurry_when(hurried: asyncio.Event, worker: Worker) -> None:
    await hurried.wait()
    worker.hurry()


def _tell_to_restart() -> None:
    log.warning("not_reloaded", reason="a worker reads its keys when it starts: restart it")


def _say_ready(ready_fd: int | None) -> None:
    """Notify `gateway up` or systemd that the process is ready."""
    Notifier().started()
    if ready_fd is not None:
        os.write(ready_fd, b"!")
        os.close(ready_fd)


def _collect_every(objects: int) -> None:
    """Collect garbage rarely, and never look at imported modules.

    Requests and deliveries create few cycles, and modules none. A full collection every few hundred
    objects is visible in the p99.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(objects)


def _leave(code: int) -> None:
    """End the process immediately.

    A handler that ignores its cancellation, or runs in a thread, would keep the interpreter alive.
    """
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
    """Stop like after SIGTERM when standard input ends: it is a pipe from `gateway up`."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin.fileno(), ended)
