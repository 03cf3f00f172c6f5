"""The parts of a rehearsal that need no database."""

import asyncio
import smtplib
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path

import httpx
import orjson
import pytest

from gateway.base.errors import CommandFailed
from gateway.config.registry.decorator import ResourceFunction
from gateway.testing.rehearse import services
from gateway.testing.rehearse.isolation import (
    RehearsalGuard,
    RehearsalLoop,
    quick_sleeps,
    recorded_mail,
    rehearsing,
)
from gateway.testing.rehearse.services import (
    HTTP,
    RESOURCE,
    Answers,
    RecordingTransport,
    StandIn,
    load_answers,
    make_stand_in,
)
from gateway.testing.rehearse.trace import (
    Failing,
    Killed,
    Moment,
    Outage,
    RehearsedRun,
    StepKind,
    running,
)
from gateway.worker.effects import CallOutcome, classify, counting_requests

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def test_a_killed_run_does_nothing_any_more() -> None:
    run = RehearsedRun(root=ROOT, kill_at=Moment(step=1, is_after=False))
    run.finish(run.begin(StepKind.STATEMENT, "one"))
    with pytest.raises(Killed):
        run.begin(StepKind.STATEMENT, "two")
    with pytest.raises(Killed):
        run.begin(StepKind.CALL, "three")
    assert [step.text for step in run.steps] == ["one", "two"]


async def test_a_resource_is_stood_in_for_and_its_calls_are_recorded() -> None:
    run, mailer = RehearsedRun(root=ROOT), StandIn("mailer")
    with running(run):
        async with mailer.pool.acquire() as connection:
            answer = await connection.send("jenny", idempotency_key="k")
            assert [item async for item in answer.attachments()] == []
        assert list(mailer.list_messages()) == []
    assert f"{answer}" == "mailer.pool.acquire.send"
    assert orjson.dumps({"id": answer}) == b'{"id":"mailer.pool.acquire.send"}'
    assert [(call.text, call.is_write, call.key) for call in run.calls] == [
        ("ctx.resources.mailer.pool.acquire(...)", False, None),
        ("ctx.resources.mailer.pool.acquire.send(...)", True, "k"),
        ("ctx.resources.mailer.pool.acquire.send.attachments(...)", True, None),
        ("ctx.resources.mailer.list_messages(...)", False, None),
    ]
    assert run.calls[1].content == "'jenny', idempotency_key='k'"
    assert run.calls[1].place == f"tests/unit/test_rehearse.py:{_line('connection.send(')}"


async def test_a_stand_in_for_a_client_is_asked_and_written_to() -> None:
    run, crm = RehearsedRun(root=ROOT), StandIn("crm")
    with running(run):
        answer = await crm.get("/contacts/1")
        answer.raise_for_status()
        assert answer.status_code < 400
        assert answer.json()["name"]
        await crm.post("/contacts", json={}, headers={"Idempotency-Key": "k"})
    writes = [(call.text, call.key) for call in run.calls if call.is_write]
    assert writes == [("ctx.resources.crm.post(...)", "k")]


async def _client() -> AsyncIterator[httpx.AsyncClient]:
    yield httpx.AsyncClient()


async def _blocking_client() -> AsyncIterator[httpx.Client]:
    yield httpx.Client()


async def _text() -> AsyncIterator[str]:
    yield "a text"


async def _for_type_checkers() -> AsyncIterator["NotImported"]:  # type: ignore[name-defined]  # noqa: F821
    yield None


@pytest.mark.parametrize(
    ("function", "ways"),
    [
        (_client, HTTP),
        (_blocking_client, HTTP),
        (_text, RESOURCE),
        (_for_type_checkers, RESOURCE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_calls_of_an_http_client_fail_like_requests(
    function: ResourceFunction, ways: tuple[Outage, ...]
) -> None:
    run, crm = RehearsedRun(root=ROOT), make_stand_in("crm", function)
    with running(run):
        crm.post("/contacts", json={})
        crm.request("PATCH", "/contacts/1")
    assert [step.outages for step in run.steps] == [ways, ways]


@pytest.mark.parametrize("method", ["post", "request"])
async def test_a_client_returns_an_error_response_that_once_understands(method: str) -> None:
    outage = Outage(words="answered 401", status=401)
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    crm = make_stand_in("crm", _client)
    arguments = ("POST", "/contacts") if method == "request" else ("/contacts",)
    with running(run), counting_requests() as made:
        response = await getattr(crm, method)(*arguments)
        assert (response.status_code, response.is_error) == (401, True)
        with pytest.raises(httpx.HTTPStatusError) as refused:
            response.raise_for_status()
    assert classify(refused.value, made) is CallOutcome.NOT_DONE
    assert run.has_seen_status


def _line(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_mail_of_the_standard_library_is_recorded_and_not_sent() -> None:
    run, message = RehearsedRun(root=ROOT), EmailMessage()
    message["To"], message["From"] = "jenny@example.com, ben@example.com", "shop@example.com"
    original = smtplib.SMTP.sendmail
    with running(run), recorded_mail(), smtplib.SMTP_SSL("mail.invalid") as server:
        server.login("shop", "secret")
        assert server.send_message(message) == {}
    assert smtplib.SMTP.sendmail is original
    assert [call.text for call in run.calls] == ["e-mail to jenny@example.com, ben@example.com"]
    assert "secret" not in run.calls[0].content


async def test_what_is_secret_in_a_call_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_TOKEN", "T0p5ecret/abc")
    run = RehearsedRun(root=ROOT)
    client = httpx.AsyncClient(transport=RecordingTransport(Answers(NOW)), trust_env=False)
    with running(run):
        await client.post(
            "https://me:pass@chat.test/T0p5ecret/abc?key=k1", json={"t": "T0p5ecret/abc"}
        )
    [call] = run.calls
    assert call.text == "POST https://chat.test/$CHAT_TOKEN?..."
    assert call.content == '{"t":"$CHAT_TOKEN"}'
    assert run.steps[0].text == call.text


def _connect_by_socket() -> None:
    with socket.socket() as probe:
        probe.connect(("192.0.2.1", 8080))


def _send_a_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.sendto(b"x", ("192.0.2.1", 8125))


def _look_up() -> None:
    socket.getaddrinfo("host.invalid", 443)


def _connect_to_another_socket() -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect("/run/other/.s.PGSQL.5432")


def _start_a_program() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    ("reach", "target"),
    [
        (_connect_by_socket, "192.0.2.1:8080"),
        (_send_a_datagram, "192.0.2.1:8125"),
        (_look_up, "host.invalid:443"),
        (_connect_to_another_socket, "/run/other/.s.PGSQL.5432"),
        (_start_a_program, "true"),
    ],
)
def test_every_way_out_is_refused_and_told_with_its_line(
    reach: Callable[[], None], target: str
) -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with (
            rehearsing(guard),
            running(RehearsedRun(root=ROOT)),
            pytest.raises(ConnectionRefusedError),
        ):
            reach()
        with (
            rehearsing(guard),
            running(RehearsedRun(root=ROOT)),
            pytest.raises(ConnectionRefusedError),
        ):
            await asyncio.to_thread(reach)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    [escape] = guard.escapes.values()
    assert escape.target == target
    assert (escape.place or "").startswith("tests/unit/test_rehearse.py:")


def test_an_event_loop_reaches_nothing_either() -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with rehearsing(guard), running(RehearsedRun(root=ROOT)):
            async with httpx.AsyncClient(trust_env=False) as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://host.invalid/x")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("192.0.2.1", 25)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    assert list(guard.escapes) == ["host.invalid:80", "192.0.2.1:25"]
    assert all(escape.place for escape in guard.escapes.values())


def test_without_a_guard_everything_is_as_ever() -> None:
    guard = RehearsalGuard(ROOT)

    async def rehearse() -> None:
        with rehearsing(guard):
            pass
        subprocess.run(["true"], check=True)  # noqa: ASYNC221 (ends at once)

    with asyncio.Runner(loop_factory=RehearsalLoop) as runner:
        runner.run(rehearse())
    assert not guard.escapes


def test_the_object_of_the_event_is_what_a_request_for_it_is_answered_with() -> None:
    answers = Answers(NOW)
    payload = {"data": {"object": {"id": "sub_1", "status": "active"}}, "url": "https://x.test/y"}
    own = httpx.Request("GET", "https://api.stripe.com/v1/subscriptions/sub_1?expand=items")
    assert answers.answer(own, payload)["status"] == "active"
    assert answers.answer(httpx.Request("GET", "https://x.test/y"), payload) == payload
    other = httpx.Request("GET", "https://api.stripe.com/v1/customers/cus_1")
    assert answers.answer(other, payload)["id"] == "cus_1"
    assert answers.answer(other, payload)["email"]
    assert answers.answer(other, payload) == answers.answer(other, payload)
    assert answers.answer(httpx.Request("GET", "https://x.test/z"), payload) == {}
    created = httpx.Request("POST", "https://api.stripe.com/v1/refunds")
    assert answers.answer(created, payload)["object"] == "refund"
    listed = httpx.Request("GET", "https://api.stripe.com/v1/refunds")
    assert answers.answer(listed, payload)["data"] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "found no JSON"),
        ("{}", "found dict; expected a JSON list of"),
        ('[{"method": "GET"}]', "answer 1: found no url"),
        ('[{"url": "x"}, {"url": "x", "body": 1}]', "answer 2: found body; expected"),
        ('[{"url": "x", "status": 99}]', "status 99; expected a method such as POST"),
        ('[{"url": "x", "status": "ok"}]', "status 'ok'; expected a method such as POST"),
    ],
)
def test_answers_that_are_none_are_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "answers.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CommandFailed, match=r"answers\.json: ") as refused:
        load_answers(file)
    assert told in str(refused.value)


async def test_a_request_is_answered_as_was_said_last_and_may_only_read(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('[{"url": "https://x.test/*"}, {"url": "https://x.test/y", "status": 404}]')
    wire = RecordingTransport(Answers(NOW, load_answers(file)), reads=["https://x.test/y*"])
    run = RehearsedRun(root=ROOT)
    async with httpx.AsyncClient(transport=wire, trust_env=False) as client:
        with running(run):
            answers = [await client.post(f"https://x.test/{name}") for name in ("y", "z")]
            await client.post("https://other.test/")
    assert [(answer.status_code, answer.json()) for answer in answers] == [(404, {}), (200, {})]
    assert [call.is_write for call in run.calls] == [False, True, True]
    assert run.invented == ["POST https://other.test/"]


def test_the_newest_state_that_is_known_is_the_answer() -> None:
    newer, older = [{"data": {"object": {"id": "sub_1", "n": n}}} for n in (2, 1)]
    request = httpx.Request("GET", "https://api.stripe.com/v1/subscriptions/sub_1")
    assert Answers(NOW).answer(request, [newer, older])["n"] == 2


async def _answered(outage: Outage) -> tuple[RehearsedRun, httpx.Response]:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    async with httpx.AsyncClient(transport=RecordingTransport(Answers(NOW))) as client:
        with running(run):
            return run, await client.post("https://mail.example/send")


@pytest.mark.parametrize("outage", services.HTTP, ids=lambda outage: outage.words)
async def test_every_request_to_a_failing_callee_fails_and_others_do_not(outage: Outage) -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=1, outage=outage))
    async with httpx.AsyncClient(transport=RecordingTransport(Answers(NOW))) as client:
        with running(run):
            assert (await client.get("https://mail.example/send")).is_success
            for _ in range(2):
                if outage.status is None:
                    with pytest.raises(httpx.TransportError):
                        await client.post("https://mail.example/send")
                else:
                    answer = await client.post("https://mail.example/send")
                    assert answer.status_code == outage.status
            assert (await client.post("https://other.example/send")).is_success
    assert [call.outage for call in run.calls] == [None, outage, outage, None]
    assert [c.is_received for c in run.calls] == [True, *[outage.is_received] * 2, True]


async def test_a_failed_answer_notes_who_looks_at_its_status() -> None:
    run, answer = await _answered(services.HTTP[0])
    assert answer.json()["error"]["code"] == "rehearsed_500"
    assert answer.headers["content-type"] == "application/json"
    assert not run.has_seen_status
    with pytest.raises(httpx.HTTPStatusError):
        answer.raise_for_status()
    assert run.has_seen_status
    for look in ("status_code", "is_success", "is_error"):
        run, answer = await _answered(services.HTTP[0])
        assert getattr(answer, look) is not None
        assert run.has_seen_status


@pytest.mark.parametrize("outage", services.MAIL, ids=lambda outage: outage.words)
def test_mail_to_a_failing_server_raises_what_smtplib_would(outage: Outage) -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=outage))
    refused = pytest.raises((smtplib.SMTPException, ConnectionRefusedError))
    with recorded_mail(), running(run), smtplib.SMTP("mail.example") as server, refused:
        server.sendmail("a@example.com", "b@example.com", "hello")
    [call] = run.calls
    assert call.is_received is outage.is_received


async def test_a_resource_fails_at_what_it_is_to_do_and_not_at_what_it_only_asks() -> None:
    run = RehearsedRun(root=ROOT)
    with running(run):
        StandIn("mailer").send("x")
        StandIn("mailer").get_template("x")
    assert [step.outages for step in run.steps] == [services.RESOURCE, ()]
    failing = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=services.RESOURCE[0]))
    with running(failing), pytest.raises(ConnectionRefusedError):
        StandIn("mailer").send("x")


async def test_runs_in_a_failing_world_do_not_wait_between_their_own_retries() -> None:
    run = RehearsedRun(root=ROOT, failing=Failing(step=0, outage=services.HTTP[0]))
    with quick_sleeps(), running(run):
        async with asyncio.timeout(5):
            await asyncio.sleep(3600)
    with quick_sleeps(), running(RehearsedRun(root=ROOT)), pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(3600)
