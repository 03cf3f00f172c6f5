"""One trace from the request to what its handlers do, without a word of what is in the event."""

import signal
import subprocess
import sys
from typing import Final

import pytest

from tests.support.collector import Collector, Spanned, collecting
from tests.support.keys import make_key
from tests.support.ledger import Reader
from tests.support.processes import Project, Serving, stripe_request
from tests.support.receiver import answer, receiving
from tests.support.waiting import PATIENCE_S, until

TRACE_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
SENDERS_SPAN: Final = "00f067aa0ba902b7"
TRACEPARENT: Final = f"00-{TRACE_ID}-{SENDERS_SPAN}-01"
MARK: Final = "Wombat-90210"
ROUTES: Final = """
schema: [handlers/schema.sql]
defaults:
  timeout: 20s
  retry: {attempts: 2, backoff: fixed, base: 100ms, cap: 1s}
routes:
  stripe:
    provider: stripe
    secrets: [env:STRIPE_WEBHOOK_SECRET]
    handlers: [handlers.shop]
    forward: [{name: away, types: ["invoice.*"], url: env:AWAY_URL}]
  mails:
    provider: publish
    handlers: [handlers.mails]
"""
SHOP: Final = """
from os import environ

from gateway import Context, Event, handler

@handler("invoice.*")
async def book(event: Event, ctx: Context) -> None:
    insert = "insert into effects (event_id, handler, note) values ($1, 'book', $2)"
    await ctx.db.execute(insert, event.id, "Wombat-90210")
    await ctx.http.get(environ["SERVICE_URL"] + "/rates?token=Wombat-90210")
    await ctx.publish("mails", {"to": "Wombat-90210"}, key=event.id)

@handler("fail.*")
async def fail(event: Event, ctx: Context) -> None:
    answer = await ctx.http.post(environ["SERVICE_URL"] + "/orders", json={"who": "Wombat-90210"})
    answer.raise_for_status()
"""
MAILS: Final = """
from gateway import Context, Event, handler

@handler("*")
async def send(event: Event, ctx: Context) -> None:
    await ctx.db.fetchval("select 1")
"""


TOLD: Final = {
    *("receive stripe", "run handlers.shop.book", "insert", "GET 127.0.0.1", "commit"),
    *("run forward.away", "run handlers.mails.send"),
}
"""The spans that the trace must have. Each process sends its own, in its own time."""

SECRETIVE: Final = """
from gateway import Context, Event, handler

@handler("fail.*")
async def fail(event: Event, ctx: Context) -> None:
    await ctx.db.fetchval("select'Wombat-90210'")
    raise LookupError("there is no Wombat-90210")
"""


@pytest.fixture
def project(project: Project) -> Project:
    project.write("config/routes.yaml", ROUTES)
    project.write("handlers/shop.py", SHOP)
    project.write("handlers/mails.py", MAILS)
    return project


async def _post(serving: Serving, type: str, *, id: str = "evt_1", **headers: str) -> None:
    body, signed = stripe_request(id, type)
    assert (await serving.post(body, {**signed, **headers})).status_code == 200


async def test_one_trace_leads_from_the_sender_to_what_the_handlers_did(
    project: Project, ledger: Reader
) -> None:
    async with collecting() as collector, receiving(answer(200)) as service:
        urls = {"SERVICE_URL": service.url, "AWAY_URL": f"{service.url}/away"}
        project.environ |= urls | collector.environ
        assert project.run("migrate").returncode == 0
        with project.serve() as serving, project.process("worker"):
            await serving.ready()
            await _post(serving, "invoice.paid", traceparent=TRACEPARENT)
            await until(lambda: collector.of(TRACE_ID).keys() >= TOLD)
        spans = collector.of(TRACE_ID)
        received, booked = spans["receive stripe"], spans["run handlers.shop.book"]
        assert (received.parent_id, received.process) == (SENDERS_SPAN, "serve")
        assert received.attributes["gateway.event_ids"] == ["evt_1"]
        assert received.attributes["gateway.outcomes"] == ["accepted"]
        assert (booked.parent_id, booked.process) == (received.span_id, "worker")
        assert booked.attributes["gateway.outcome"] == "done"
        assert booked.attributes["gateway.event_id"] == "evt_1"
        inserted, asked = spans["insert"], spans["GET 127.0.0.1"]
        assert inserted.parent_id == asked.parent_id == booked.span_id
        assert inserted.attributes["db.query.text"].startswith("insert into effects")
        assert asked.attributes["server.address"] == "127.0.0.1"
        assert b"/rates" not in collector.raw
        assert asked.attributes["http.response.status_code"] == 200
        mailed = spans["run handlers.mails.send"]
        assert mailed.attributes["gateway.route"] == "mails"
        assert mailed.parent_id in {span.span_id for span in spans.values()}
        told = {request.path: request.headers["traceparent"] for request in service.requests}
        assert told["/rates?token=Wombat-90210"] == f"00-{TRACE_ID}-{asked.span_id}-01"
        assert told["/away"] == f"00-{TRACE_ID}-{spans['run forward.away'].span_id}-01"
        assert not any(span.failed for span in spans.values())
        assert {span.service for span in spans.values()} == {"webhook-gateway"}
        assert MARK.encode() not in collector.raw, "no argument, no query, no payload"
    assert await ledger.value("select count(*) from public.effects") == 1


async def test_every_run_of_a_delivery_that_fails_is_of_the_trace_and_says_why(
    project: Project,
) -> None:
    async with collecting() as collector, receiving(answer(503)) as service:
        project.environ |= {"SERVICE_URL": service.url, "AWAY_URL": service.url}
        project.environ |= collector.environ | {"OTEL_SERVICE_NAME": "billing"}
        assert project.run("migrate").returncode == 0
        with project.serve() as serving, project.process("worker"):
            await serving.ready()
            await _post(serving, "fail.now", traceparent=TRACEPARENT)
            await until(lambda: len(_runs(collector)) >= 2)
            await until(lambda: _asked(collector))
        first = _runs(collector)[0]
        assert first.failed
        assert first.attributes["gateway.outcome"] in {"retry", "deferred"}
        assert "503" in first.told
        assert {span.service for span in collector.spans} == {"billing"}
        assert all(
            span.failed and span.attributes["error.type"] == "503" for span in _asked(collector)
        )


def _runs(collector: Collector) -> list[Spanned]:
    return [span for span in collector.spans if span.name == "run handlers.shop.fail"]


def _asked(collector: Collector) -> list[Spanned]:
    return [span for span in collector.spans if span.name == "POST 127.0.0.1"]


UNREADABLE: Final = (
    "",
    "no trace",
    f"00-{'0' * 32}-{'0' * 16}-01",
    f"{TRACEPARENT}-{'x' * 7000}",
    "x" * 55,
    f"ff-{TRACE_ID}-{SENDERS_SPAN}-01",
)


async def test_a_trace_that_cannot_be_read_begins_anew_and_who_is_refused_has_none(
    project: Project,
) -> None:
    async with collecting() as collector:
        project.environ |= {"AWAY_URL": "http://127.0.0.1:1", **collector.environ}
        assert project.run("migrate").returncode == 0
        with project.serve() as serving:
            await serving.ready()
            body, _ = stripe_request("evt_forged")
            forged = {"stripe-signature": "t=1,v1=00", "traceparent": TRACEPARENT}
            assert (await serving.post(body, forged)).status_code == 403
            for n, traceparent in enumerate(UNREADABLE):
                await _post(serving, "other.thing", id=f"evt_{n}", traceparent=traceparent)
            await until(lambda: len(collector.spans) >= len(UNREADABLE))
        spans = collector.spans
    ids = [span.attributes["gateway.event_ids"] for span in spans]
    assert ids == [[f"evt_{n}"] for n in range(len(UNREADABLE))], "none for who is a stranger"
    assert {span.parent_id for span in spans} == {""}
    assert len({span.trace_id for span in spans} - {TRACE_ID, "0" * 32}) == len(UNREADABLE)


async def test_an_encrypted_route_tells_of_no_statement_and_no_error(project: Project) -> None:
    routes = ROUTES.replace("  stripe:\n", "  stripe:\n    encrypt: true\n")
    project.write("config/routes.yaml", "keys: [env:KEY]\ndigest_key: env:DIGEST_KEY\n" + routes)
    project.write("handlers/shop.py", SECRETIVE)
    async with collecting() as collector:
        project.environ |= {
            "KEY": make_key().reveal().hex(),
            "DIGEST_KEY": make_key().reveal().hex(),
        }
        project.environ |= {"AWAY_URL": "http://127.0.0.1:1", **collector.environ}
        assert project.run("migrate").returncode == 0
        with project.serve() as serving, project.process("worker"):
            await serving.ready()
            await _post(serving, "fail.now")
            await until(lambda: len(_runs(collector)) >= 2)
            await until(lambda: "select" in {span.name for span in collector.spans})
        assert all(run.failed and run.told for run in _runs(collector))
        assert MARK.lower().encode() not in collector.raw.lower()


async def test_a_collector_that_is_away_holds_up_nothing(project: Project, ledger: Reader) -> None:
    async with collecting() as collector, receiving(answer(200)) as service:
        away = {**collector.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
        project.environ |= {"SERVICE_URL": service.url, "AWAY_URL": service.url, **away}
        assert project.run("migrate").returncode == 0
        with project.serve() as serving, project.process("worker") as worker:
            await serving.ready()
            for n in range(20):
                await _post(serving, "invoice.paid", id=f"evt_{n}")
            await until(lambda: ledger.value("select count(*) = 20 from public.effects"))
            for process in (serving.running, worker):
                process.process.send_signal(signal.SIGTERM)
            for process in (serving.running, worker):
                process.process.wait(PATIENCE_S)
                assert "Traceback" not in process.output
                assert process.output.count("127.0.0.1:1") < 50


def test_without_its_packages_it_says_which_to_install(project: Project) -> None:
    project.write("gone/opentelemetry/__init__.py", "raise ImportError('none of it is here')")
    project.environ["AWAY_URL"] = "http://127.0.0.1:1"
    assert project.run("migrate").returncode == 0
    for command in ("serve", "worker"):
        ran = subprocess.run(
            [sys.executable, "-m", "gateway", command],
            cwd=project.directory,
            env={**project.environ, "GATEWAY_TRACES": "on", "PYTHONPATH": "gone"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 2, ran.stderr
        assert "GATEWAY_TRACES: found on, without OpenTelemetry" in ran.stderr
        assert "webhook-gateway-server[traces]" in ran.stderr
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer Wombat-90210"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,x-key: Wombat-90210"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1"),
    ],
)
def test_what_opentelemetry_cannot_read_is_told_and_no_secret_is_shown(
    project: Project, key: str, value: str
) -> None:
    project.environ |= {"AWAY_URL": "http://127.0.0.1:1", "GATEWAY_TRACES": "on", key: value}
    assert project.run("migrate").returncode == 0
    for command in ("serve", "worker"):
        ran = project.run(command)
        assert ran.returncode == 2, ran.stderr
        assert key in ran.stderr
        assert "Traceback" not in ran.stderr
        assert MARK not in ran.stdout + ran.stderr


def test_off_nothing_of_it_is_imported() -> None:
    look = (
        "import sys, gateway.processes.serve, gateway.processes.work;"
        " print(*sys.modules, sep='\\n')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "gateway.telemetry.traces" in ran.stdout
    assert "opentelemetry" not in ran.stdout
