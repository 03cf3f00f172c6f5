"""HTTP contestants at work, and one measured run of one of them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environment import Environment
from bench.figures import Sample
from bench.generator import HOST, closed_loop, warm_up
from bench.processes import Process
from gateway.base.errors import CommandFailed
from gateway.http.listening import listen

PLAIN, STARLETTE, AGAIN, TEXTBOOK = "plain", "starlette", "starlette again", "textbook"
GATEWAY, PAIR, POSTGRES = "gateway", "gateway x 2", "postgres"
TITLES = {
    PLAIN: "(a) plain ASGI, HMAC",
    STARLETTE: "(b) Starlette, HMAC + json",
    AGAIN: "(b) again: what is noise",
    TEXTBOOK: "(c) textbook: INSERT + enqueue_job",
    GATEWAY: "(d) this gateway, one process",
    PAIR: "(d) this gateway, two processes",
    POSTGRES: "(e) raw Postgres, no HTTP",
}
EVENTS = "gateway.processed_events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to receive webhooks, running."""

    name: str
    processes: tuple[Process, ...]
    table: str | None = None
    """Where it stores events."""

    @property
    def ports(self) -> list[int]:
        return sorted({process.port for process in self.processes})


@contextlib.contextmanager
def contestants(environment: Environment, names: Sequence[str]) -> Iterator[dict[str, Contestant]]:
    """All of them at once; whoever is not asked anything does nothing."""
    with contextlib.ExitStack() as running:
        started = {name: _start(environment, name, running) for name in names}
        processes = [process for found in started.values() for process in found.processes]
        for process in processes:
            process.wait_ready()
        for process in processes:
            warm_up(process.port)
        try:
            yield started
        finally:
            for process in processes:
                process.ask_to_end()


def _start(environment: Environment, name: str, running: contextlib.ExitStack) -> Contestant:
    processes, table = _launch(environment, name)
    for process in processes:
        running.enter_context(process)
    return Contestant(name=name, processes=processes, table=table)


def _launch(environment: Environment, name: str) -> tuple[tuple[Process, ...], str | None]:
    if name == GATEWAY:
        return (environment.serve(),), EVENTS
    if name == PAIR:
        first = environment.serve()
        second = environment.serve(port=first.port if port_can_be_shared() else 0)
        return (first, second), EVENTS
    app = environment.http_contestant(STARLETTE if name == AGAIN else name)
    return (app,), TEXTBOOK if name == TEXTBOOK else None


def port_can_be_shared() -> bool:
    """Whether several `serve` may listen on one port; if not, each gets its own."""
    with listen(HOST, 0) as first:
        try:
            listen(HOST, first.getsockname()[1]).close()
        except CommandFailed:
            return False
    return True


def measure_closed(
    environment: Environment,
    contestant: Contestant,
    files: Sequence[Path],
    *,
    connections: int,
    seconds: float,
) -> Sample:
    """One run from an empty ledger, with what it cost and how many events it left there."""
    if contestant.table is not None:
        environment.reset()
    before = environment.read_meters(*contestant.processes)
    sample = closed_loop(contestant.ports, files, connections, seconds)
    spent = environment.read_meters(*contestant.processes).spent_since(before, sample["requests"])
    sample |= {**spent, "ports": len(contestant.ports)}
    if contestant.table is not None:
        sample["stored"] = environment.database.count(contestant.table)
    return sample
