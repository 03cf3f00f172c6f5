"""`up`, `serve` and `worker`."""

import asyncio
import gc
import os
import shutil
import signal
import sys
from typing import Annotated, Final

import structlog
import typer
import uvloop

from gateway.cli.output import console
from gateway.ledger.connection import describe
from gateway.logs import configure_logs
from gateway.project import Project, database_url, load_project, redis_url
from gateway.queue.cancellation import end
from gateway.queue.worker import listen_forever
from gateway.server import serve as run_server
from gateway.settings import load_settings
from gateway.up import Started, run_up
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


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(serve)
    app.command()(worker)


def up() -> None:
    """Start everything: Postgres and Redis (where no URL is set), migrate, serve and worker.

    The engines are real ones, kept in the data directory (GATEWAY_DATA_DIR). Secrets that the
    routes refer to and that are not set get a development value. Stop it with Ctrl-C.

    Example: [bold]gateway up[/bold], then in another terminal
    [bold]gateway send stripe payment_intent.succeeded[/bold]
    """
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level)
    run_up(os.environ, _tell)


def _tell(started: Started) -> None:
    out = console()
    for engine in started.engines:
        out.print(f"  [green]started[/green]  {engine}")
    for route in started.config.routes:
        out.print(f"  [green]route[/green]    {route.name}: POST {started.url}{route.path}")
    for reference in started.made_up:
        out.print(
            f"  [yellow]notice[/yellow]   {reference} is not set: a development secret is used"
        )
    for route in started.config.routes[:1]:
        command = f"{_gateway()} send {route.name} {_example(route.provider.name)}"
        out.print(f"\n  Ready. Try:  [bold]{command}[/bold]\n")


def _gateway() -> str:
    """How this very command is called from here, whether or not it is on the PATH."""
    return "gateway" if shutil.which("gateway") else os.path.relpath(sys.argv[0])


def _example(provider: str) -> str:
    return {"stripe": "payment_intent.succeeded", "github": "push"}.get(provider, "test")


def serve(with_parent: WithParent = False) -> None:
    """Receive webhooks: verify, claim, acknowledge.

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, a migrated database and every route's
    secret. Run as many as you like; each is one process on GATEWAY_HOST and GATEWAY_PORT.
    """
    project = _load(with_secrets=True)
    _collect_every(REQUESTS_BETWEEN)
    uvloop.run(_serve(project, with_parent))


async def _serve(project: Project, with_parent: bool) -> None:
    if with_parent:
        await _end_with_parent()
    await run_server(project)


def worker(with_parent: WithParent = False) -> None:
    """Run handlers: an arq worker that outlives a Redis restart, and reads Postgres either way.

    Needs GATEWAY_DATABASE_URL and GATEWAY_REDIS_URL, and no secrets. Run as many as you like.
    SIGTERM finishes what runs within GATEWAY_GRACE and hands the rest back; a second one at once.
    """
    project = _load(with_secrets=False)
    _collect_every(HANDLERS_BETWEEN)
    uvloop.run(_work(project, with_parent))


async def _work(project: Project, with_parent: bool) -> None:
    settings = project.settings
    url, queue = database_url(settings), redis_url(settings)
    worker = Worker(settings, project.config, project.registry, url)
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
    listening = asyncio.create_task(listen_forever(queue, worker.hint))
    failed = asyncio.create_task(worker.wait_failed())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await end(listening)
    await worker.stop()
    if stopping.is_set():
        _leave(0)
    log.error("worker_failed", error=describe(failed.exception() or RuntimeError("it ended")))
    _leave(1)


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


def _load(*, with_secrets: bool) -> Project:
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level)
    return load_project(settings, with_secrets=with_secrets)


async def _end_with_parent() -> None:
    """Standard input is a pipe from `gateway up`: when it ends, so do we, as on SIGTERM."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin.fileno(), ended)
