"""The console at size: how long each of its pages takes, and /metrics, in a ledger of millions."""

import asyncio
import contextlib
import hashlib
import http.client
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

from bench.database import Database
from bench.environment import Environment
from bench.figures import Results, latency_figures, rotated
from bench.generator import HOST
from bench.past import RARE_ERROR, RARE_TYPE, Past, make_past
from bench.plan import Plan
from bench.processes import BenchFailed, Process
from gateway.ledger.budget import OFFICE_CONNECTIONS
from gateway.ledger.causes import CauseGrouper
from gateway.ledger.connection import COMMAND_TIMEOUT_S, open_pool

TOKEN = "bench-console-token"  # noqa: S105 (of a gateway that lives for minutes, on loopback)
FOUND, SEE_OTHER = 200, 303
PREFIX = "/console"
ANSWER_S = 60
WARM_ROUNDS = 6
A_CAUSE = """
select cause from gateway.deliveries where status = 'dead' and cause is not null limit 1
"""
SIZE = "select pg_database_size(current_database())"


def run(environment: Environment, plan: Plan) -> Results:
    past = Past(
        events=plan.console_events,
        waiting=plan.console_waiting,
        bodies=plan.console_bodies,
        dead=plan.console_dead,
    )
    with _ledger(environment, past) as database:
        told = asyncio.run(_tell_causes(database.url))
        print(f"  {told['dead']:,} causes told in {told['seconds']:.0f} s", flush=True)
        pages = _pages(database, past)
        database.execute("vacuum gateway.deliveries")  # as autovacuum does where there is traffic
        with environment.serve(
            GATEWAY_DATABASE_URL=database.url, GATEWAY_ADMIN_TOKEN=TOKEN
        ) as server:
            server.wait_ready()
            took, spent, steal = _measure(environment, server, pages, plan.console_rounds)
        size = database.fetchval(SIZE)
    return {
        "events": past.events,
        "dead": told["dead"],
        "waiting": past.waiting,
        "rounds": plan.console_rounds,
        "ledger_bytes": size,
        "causes_per_second": told["dead"] / told["seconds"],
        "steal": steal,
        "pages": {
            name: {**latency_figures(times), "cpu_ms": spent[name]} for name, times in took.items()
        },
    }


def _pages(database: Database, past: Past) -> dict[str, str]:
    """Their paths; what is rare is far back, and found over several pages: each of them counts."""
    n = past.events - past.bodies // 2
    event_id = "evt_" + hashlib.md5(str(n).encode(), usedforsecurity=False).hexdigest()
    route = database.fetchval("select route from gateway.deliveries where id = $1", n)
    cause = database.fetchval(A_CAUSE)
    asked: dict[str, tuple[str, Mapping[str, object]]] = {
        **{f"overview, {span}": ("/", {"span": span}) for span in ("1h", "24h", "7d")},
        "events": ("/events", {}),
        "events of a route": ("/events", {"route": "route_7"}),
        "events of a route that has none": ("/events", {"route": "none"}),
        "events of a rare type": ("/events", {"type": RARE_TYPE}),
        "events that are dead": ("/events", {"status": "dead"}),
        "events of an account": ("/events", {"account": "acct_7"}),
        "events about an object": ("/events", {"object": f"pi_{n // 3}"}),
        "events of 20 days ago": ("/events", {"until": "20d"}),
        "an event": ("/event", {"route": route, "id": event_id}),
        "dead letters": ("/dead", {}),
        "dead letters of a cause": ("/dead", {"cause": cause}),
        "dead letters of a rare error": ("/dead", {"error": RARE_ERROR}),
        "replay all that are dead": ("/dead/all", {"action": "replay"}),
        "bulk operations": ("/bulk", {}),
        "refused": ("/rejected", {}),
        "handlers": ("/handlers", {}),
        "routes": ("/routes", {}),
        "reconcile": ("/reconcile", {}),
        "system": ("/system", {}),
    }
    paths = {name: f"{PREFIX}{path}?{urlencode(query)}" for name, (path, query) in asked.items()}
    return {**paths, "GET /metrics": "/metrics"}


def _measure(
    environment: Environment, server: Process, pages: Mapping[str, str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, float], float]:
    """By turns, on one connection: from the request to the last byte of the page, in ms. Then each
    as often in a row: the CPU time that serve and Postgres spend on it, whoever else is there."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=ANSWER_S)
    headers = {"cookie": _log_in(connection), "authorization": f"Bearer {TOKEN}"}
    with ThreadPoolExecutor(OFFICE_CONNECTIONS) as people:
        looking = [
            people.submit(_look_around, server.port, pages, headers)
            for _ in range(OFFICE_CONNECTIONS)
        ]
        for looked in looking:
            looked.result()
    took: dict[str, list[float]] = {name: [] for name in pages}
    before = environment.read_meters(server)
    for number in range(rounds):
        for name in rotated(tuple(pages), number):
            took[name].append(_get(connection, pages[name], headers))
    steal = environment.read_meters(server).spent_since(before, 1)["steal"]
    spent: dict[str, float] = {}
    for name, path in pages.items():
        before = environment.read_meters(server)
        for _ in range(rounds):
            _get(connection, path, headers)
        costs = environment.read_meters(server).spent_since(before, rounds)
        spent[name] = (costs["own_cpu_us"] + costs["postgres_cpu_us"]) / 1000
        worst = max(took[name])
        print(f"  {name:<34} {worst:7.1f} ms at the most, {spent[name]:5.1f} of CPU", flush=True)
    connection.close()
    return took, spent, steal


def _look_around(port: int, pages: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """As others did before: templates are compiled, and statements prepared in each session, with
    plans that are made for good after some times."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    for path in [*pages.values()] * WARM_ROUNDS:
        _get(connection, path, headers)
    connection.close()


def _get(connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]) -> float:
    began = time.perf_counter()
    connection.request("GET", path, headers=dict(headers))
    answer = connection.getresponse()
    answer.read()
    took_ms = (time.perf_counter() - began) * 1000
    if answer.status != FOUND:
        raise BenchFailed(f"{path} answered {answer.status}")
    return took_ms


def _log_in(connection: http.client.HTTPConnection) -> str:
    origin = f"http://{connection.host}:{connection.port}"
    headers = {"origin": origin, "content-type": "application/x-www-form-urlencoded"}
    form = urlencode({"token": TOKEN, "name": "bench"})
    connection.request("POST", f"{PREFIX}/login", form, headers)
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"]
    if answer.status != SEE_OTHER or cookie is None:
        raise BenchFailed(f"the console let nobody in: {answer.status}")
    return cookie.partition(";")[0]


async def _tell_causes(url: str) -> dict[str, float]:
    """As the sweep of a worker does, round after round without a rest."""
    pool = await open_pool(url, name="bench", size=1, command_timeout_s=COMMAND_TIMEOUT_S)
    causes, dead, began = CauseGrouper(), 0, time.perf_counter()
    while told := await causes.keep(pool):
        dead += told
    await pool.close()
    return {"dead": dead, "seconds": time.perf_counter() - began}


@contextlib.contextmanager
def _ledger(environment: Environment, past: Past) -> Iterator[Database]:
    def tell(filled: int) -> None:
        if filled % 1_000_000 == 0:
            print(f"  {filled:,} events filled, {time.monotonic() - began:.0f} s", flush=True)

    began = time.monotonic()
    database = environment.add_database("console")
    try:
        environment.put_off_checkpoints("2GB")  # so that filling is not all checkpoints
        make_past(database, past, tell)
        environment.put_off_checkpoints(None)
        print(f"  filled and indexed after {time.monotonic() - began:.0f} s", flush=True)
        yield database
    finally:
        database.close()
        environment.database.execute('drop database "console" with (force)')
