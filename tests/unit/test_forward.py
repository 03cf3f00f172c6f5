"""Forwards: what the file may say, what goes out, and what an answer means."""

import base64
import json
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from standardwebhooks import Webhook

from gateway.base.errors import ConfigInvalid, Defer, PushFailed, Reject
from gateway.base.model import Backoff, Event, Rate, RetryPolicy
from gateway.config.registry import load_registry
from gateway.config.routes import Config, check_destinations, json_schema, load_config
from gateway.http.outbound import Destination, OutboundResponse
from gateway.providers.standard_webhooks import parse_key
from gateway.worker.forward import judge, make_headers

SECRET = "hunter2_hunter2"
KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
NEXT_KEY = "whsec_" + base64.b64encode(b"n" * 32).decode()
NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
HEAD = """\
defaults: {timeout: 20s, retry: {attempts: 5, base: 10s, cap: 1h}}
routes:
  one:
    provider: stripe
    secrets: [env:A]
    forward:
"""
REFERENCE = "a reference: env:NAME (in capitals) or file:/path"


def load(folder: Path, *forwards: str) -> Config:
    file = folder / "routes.yaml"
    file.write_text(HEAD + "".join(f"      - {{{forward}}}\n" for forward in forwards))
    return load_config(file)


def told(folder: Path, *forwards: str) -> list[str]:
    """Every problem, from the key on; and the schema agrees that there is one."""
    with pytest.raises(ConfigInvalid) as refused:
        load_registry(load(folder, *forwards))
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert all(problem.line for problem in refused.value.problems)
    return [
        f"{p.line}: {p.key.removeprefix('routes.one.')}: {p.found}; {p.expected}"
        for p in refused.value.problems
    ]


def schema_allows(folder: Path) -> bool:
    document = yaml.safe_load((folder / "routes.yaml").read_text())
    return Draft202012Validator(json_schema()).is_valid(document)


def test_a_forward_needs_only_a_name_and_a_url(tmp_path: Path) -> None:
    config = load(tmp_path, "name: orders, url: 'https://orders.internal/hooks?t=abc'")
    [forward] = config.routes[0].forwards
    assert forward.handler == "forward.orders"
    assert forward.types == ("*",)
    assert forward.timeout == timedelta(seconds=20)
    assert forward.retry == RetryPolicy(
        attempts=5, base=timedelta(seconds=10), cap=timedelta(hours=1)
    )
    assert (forward.sign, forward.headers, forward.concurrency, forward.rate) == (
        (),
        (),
        None,
        None,
    )
    assert forward.place == "https://orders.internal"
    assert "t=abc" not in repr(forward)
    assert schema_allows(tmp_path)


def test_a_forward_says_what_a_handler_can_say(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "name: orders, types: [invoice.*], url: env:URL, timeout: 5s, concurrency: 3, rate: 9/m,"
        " headers: {X-Team: billing, Authorization: env:AUTH}, sign: [env:K1, file:/run/k2],"
        " retry: {attempts: 2, backoff: fixed}",
        "name: second, url: 'http://localhost:1/', sign: env:K1",
    )
    first, second = load_registry(config).subscriptions
    assert (first.route, first.handler, first.types) == ("one", "forward.orders", ("invoice.*",))
    assert first.retry == RetryPolicy(
        attempts=2, backoff=Backoff.FIXED, base=timedelta(seconds=10), cap=timedelta(hours=1)
    )
    assert first.timeout == timedelta(seconds=5)
    assert (first.concurrency, first.rate) == (3, Rate(count=9, period=timedelta(minutes=1)))
    assert first.forward is not None
    assert first.forward.place == "env:URL"
    assert second.handler == "forward.second"
    assert schema_allows(tmp_path)


def test_a_queue_forwards_too(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "routes: {jobs: {provider: publish, forward: [{name: a, url: 'http://localhost/'}]}}"
    )
    registry = load_registry(load_config(file))
    assert registry.for_event("jobs", "parcel") == ("forward.a",)
    assert registry.handlers == ()


URL = "url: 'http://localhost/'"


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (URL, "7: forward[0].name: nothing; this key, which is required"),
        ("name: a", "7: forward[0].url: nothing; this key, which is required"),
        (f"name: 'a b', {URL}", "7: forward[0].name: 'a b'; a name of letters"),
        (f"name: a, {URL}, tipes: [a]", "7: forward[0].tipes: an unknown key; one of"),
        (f"name: a, {URL}, retry: {{atempts: 2}}", "7: forward[0].retry.atempts: an unknown key"),
        (f"name: a, {URL}, retry: {{attempts: 50}}", "attempts: 50; at most 20"),
        (f"name: a, {URL}, retry: {{base: 2h}}", "forward[0]: forward.a with base 2h and cap 1h"),
        (f"name: a, {URL}, types: []", "types: an empty list; at least 1 of them"),
        (f"name: a, {URL}, timeout: 0s", "timeout: 0s; 1ms to 1d"),
        (f"name: a, {URL}, concurrency: 0", "concurrency: 0; at least 1"),
        (f"name: a, {URL}, rate: fast", "rate: 'fast'; a rate such as"),
        (f"name: a, {URL}, rate: 5", "rate: 5; a rate such as"),
        (f"name: a, url: {SECRET}", "url: text that is no URL (not shown); a URL such as"),
        ("name: a, url: 'ftp://x/'", "url: text that is no URL (not shown)"),
        (f"name: a, url: 'https://me:{SECRET}@x/'", "url: a URL with a user name or a password"),
        (f"name: a, url: 'https://x/#{SECRET}'", "url: a URL with a fragment"),
        ("name: a, url: 'http://x:0/'", "url: a URL with a port that there is not"),
        ("name: a, url: 'http://x:65536/'", "url: a URL with a port that there is not"),
        (f"name: a, url: [{SECRET}]", "url: a literal value (not shown)"),
        (f"name: a, url: 'http://169.254.169.254/{SECRET}'", "url: a URL whose host is link-local"),
        ("name: a, url: 'http://2852039166/'", "url: a URL whose host is link-local"),
        ("name: a, url: 'http://[::ffff:169.254.169.254]/'", "url: a URL whose host is link-local"),
        ("name: a, url: 'http://metadata.google.internal/'", "the metadata service of a cloud"),
        ("name: a, url: 'http://0.0.0.0/'", "url: a URL whose host is unspecified"),
        (f"name: a, {URL}, sign: {SECRET}", f"sign[0]: a literal value (not shown); {REFERENCE}"),
        (f"name: a, {URL}, sign: [env:A, {SECRET}]", "sign[1]: a literal value (not shown)"),
        (f"name: a, {URL}, sign: []", "sign: an empty list; at least 1 of them"),
        (f"name: a, {URL}, sign: {{{SECRET}: 1}}", "sign[0]: a literal value (not shown)"),
        (f"name: a, {URL}, sign: [env:A, env:B, env:C, env:D, env:E]", "sign: a list; at most 4"),
        (f"name: a, {URL}, headers: {SECRET}", "headers: a literal value (not shown); a mapping"),
        (f"name: a, {URL}, headers: {{x: [{SECRET}]}}", "headers.x: a literal value (not shown)"),
        (f"name: a, {URL}, headers: {{authorization: {SECRET}}}", "headers: authorization as a"),
        (f"name: a, {URL}, headers: {{x: whsec_{SECRET}}}", "headers.x: a literal value (not sh"),
        (f"name: a, {URL}, headers: {{x: {SECRET}ü}}", "headers.x: a value that no header"),
        (f'name: a, {URL}, headers: {{x: "a\\nb"}}', "headers.x: a value that no header can have"),
        (f"name: a, {URL}, headers: {{'x y': a}}", "'x y'; the name of a header"),
        (f"name: a, {URL}, headers: {{webhook-id: a}}", "a header that the gateway does not set"),
        (f"name: a, {URL}, headers: {{Content-Type: a}}", "a header that the gateway does not set"),
        (f"name: a, {URL}, headers: {{X: a, x: b}}", "headers: x twice; each header once"),
    ],
)  # fmt: skip
def test_what_a_forward_cannot_say_is_refused(tmp_path: Path, forward: str, expected: str) -> None:
    [problem] = told(tmp_path, forward)
    assert expected in problem


def test_two_forwards_of_one_name_are_refused(tmp_path: Path) -> None:
    forward = f"name: a, {URL}"
    assert told(tmp_path, forward, forward) == ["6: forward: a twice; each name once in a route"]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    assert len(told(tmp_path, "name: a", f"{URL}, x: 1", "name: '', url: 3")) == 5


def test_a_handler_and_a_forward_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twinned.py").write_text(
        "from gateway import handler\n\n@handler('*', name='forward.a')\nasync def f(e, c): ...\n"
    )
    file = tmp_path / "routes.yaml"
    file.write_text(HEAD.replace("    forward:", "    handlers: [twinned]\n    forward:"))
    file.write_text(file.read_text() + f"      - {{name: a, {URL}}}\n")
    with pytest.raises(ConfigInvalid, match=r"forward\[0\]: found a handler and a forward named"):
        load_registry(load_config(file))


def destination(config: Config, **environ: str) -> Destination:
    [found] = check_destinations(config, environ).values()
    return found


def test_references_are_followed(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{NEXT_KEY}\n")
    config = load(
        tmp_path,
        f"name: a, url: env:URL, headers: {{Authorization: env:AUTH, x: y}},"
        f" sign: [env:KEY, 'file:{tmp_path}/key']",
    )
    found = destination(config, URL="https://x/path-of-it?q=1", AUTH="Bearer abcdefgh", KEY=KEY)
    assert found.url == "https://x/path-of-it?q=1"
    assert found.headers == {"Authorization": "Bearer abcdefgh", "x": "y"}
    assert found.keys == (parse_key(KEY), parse_key(NEXT_KEY))
    assert {"abcdefgh", KEY, "/path-of-it?q=1", "/path-of-it"} <= set(found.secrets)
    assert repr(found) == "Destination()"


def test_what_a_service_may_tell_back_of_its_url_is_known_part_by_part(tmp_path: Path) -> None:
    kept = destination(
        load(tmp_path, "name: a, url: env:URL"), URL="https://x/hooks/T0-B0-0123456789?key=abcdefgh"
    )
    assert {"T0-B0-0123456789", "abcdefgh"} <= set(kept.secrets)
    assert "hooks" not in kept.secrets


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ["url: found env:URL, which is not set; expected the URL in it",
              "headers.x: found env:AUTH, which is not set; expected the header's value in it",
              "sign[0]: found env:KEY, which is not set; expected the signing key in it"]),
        ({"URL": SECRET, "AUTH": f"{SECRET}\nx", "KEY": SECRET},
         ["url: found env:URL, with text that is no URL (not shown)",
          "headers.x: found env:AUTH, with a value that no header can have (not shown)",
          "sign[0]: found env:KEY, with a key without whsec_ (not shown)"]),
        ({"URL": "http://169.254.169.254/", "AUTH": "ok", "KEY": f"whsec_{SECRET}!"},
         ["url: found env:URL, with a URL whose host is link-local",
          "sign[0]: found env:KEY, with a key that is not base64 (not shown)"]),
        ({"URL": "http://x/", "AUTH": "ok", "KEY": "whsec_" + base64.b64encode(b"x").decode()},
         ["sign[0]: found env:KEY, with a key of 1 bytes"]),
    ],
)  # fmt: skip
def test_a_reference_that_leads_to_nothing_usable_is_told_and_not_shown(
    tmp_path: Path, environ: dict[str, str], expected: list[str]
) -> None:
    config = load(tmp_path, "name: a, url: env:URL, headers: {x: env:AUTH}, sign: env:KEY")
    with pytest.raises(ConfigInvalid) as refused:
        check_destinations(config, environ)
    problems = list(map(str, refused.value.problems))
    assert len(problems) == len(expected)
    for problem, part in zip(problems, expected, strict=True):
        assert f"routes.yaml:7: routes.one.forward[0].{part}" in problem
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def an_event(**changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": "evt_1",
        "type": "invoice.paid",
        "route": "one",
        "provider": "stripe",
        "account": None,
        "livemode": None,
        "occurred_at": None,
        "received_at": NOW,
        "headers": {"content-type": "application/json", "stripe-signature": "s", "x-own": "o"},
        "body": b'{"a": 1}',
    }
    return Event(**values | changes)


def headers_of(event: Event, to: Destination | None = None) -> dict[str, str]:
    to = to or Destination(url="http://x/")
    return make_headers(to, event, id="gw_1", attempt=3, now=datetime.now(UTC))


def test_nothing_of_the_original_request_goes_out_but_its_content_type() -> None:
    headers = headers_of(an_event())
    assert headers.pop("user-agent").startswith("webhook-gateway/")
    assert headers.pop("webhook-timestamp").isdigit()
    assert headers == {
        "accept": "application/json, */*;q=0.1",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "gateway-event-id": "evt_1",
        "gateway-event-type": "invoice.paid",
        "gateway-route": "one",
        "gateway-attempt": "3",
        "webhook-id": "gw_1",
    }


def test_every_key_signs() -> None:
    event = an_event()
    to = Destination(url="http://x/", keys=(parse_key(KEY), parse_key(NEXT_KEY)))
    for key in (KEY, NEXT_KEY):
        assert Webhook(key).verify(event.body, headers_of(event, to)) == {"a": 1}


def test_headers_of_the_file_stand_over_ours_but_not_over_what_is_said_of_the_event() -> None:
    to = Destination(url="http://x/", headers={"User-Agent": "me", "X-Team": "billing"})
    headers = headers_of(an_event(), to)
    assert headers["user-agent"] == "me"
    assert headers["x-team"] == "billing"


@pytest.mark.parametrize("odd", ["ü", "a b", "100%", "a\r\nx: y", "\u2028", "💥"])
def test_no_text_of_an_event_can_break_a_header(odd: str) -> None:
    from urllib.parse import unquote

    event = an_event(id=odd, type=odd, headers={"content-type": odd + "\n"})
    headers = headers_of(event)
    assert headers["content-type"] == "application/json"
    assert headers["gateway-event-id"].isascii()
    assert headers["gateway-event-id"].isprintable()
    assert " " not in headers["gateway-event-id"]
    assert unquote(headers["gateway-event-id"]) == odd


CAP = timedelta(minutes=10)


def decide(status: int, content: object = b"", **headers: str) -> None:
    body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
    answer = OutboundResponse(status=status, headers=headers, body=body)
    judge(answer, now=NOW, cap=CAP, hide=lambda text: text.replace(SECRET, "(hidden)"))


def retry_after(value: str) -> dict[str, str]:
    return {"retry-after": value}


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize(
    "content", [b"", b"ok", b"{", None, {}, {"ok": True}, [], "nack", {"nack": None}]
)
def test_2xx_acknowledges(status: int, content: object) -> None:
    decide(status, content)


@pytest.mark.parametrize(
    "status", [101, 400, 401, 404, 408, 409, 418, 422, 429, 500, 502, 503, 529, 599, 999]
)
def test_other_answers_are_failures_that_say_the_status(status: int) -> None:
    with pytest.raises(PushFailed, match=f"HTTP {status}"):
        decide(status)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_redirect_is_a_failure_that_says_so_whatever_it_holds(status: int) -> None:
    with pytest.raises(PushFailed, match="redirects are not followed"):
        decide(status, {"nack": {"retryable": False}}, location="http://169.254.169.254/")


def test_410_is_a_dead_letter() -> None:
    with pytest.raises(Reject, match="HTTP 410 Gone: closed"):
        decide(410, b"closed")


@pytest.mark.parametrize("status", [200, 202, 400, 404, 410, 429, 500, 503])
def test_a_nack_says_itself_whether_it_is_worth_a_retry(status: int) -> None:
    with pytest.raises(Reject, match="no such order"):
        decide(status, {"nack": {"retryable": False, "reason": "no such order"}})
    with pytest.raises(PushFailed, match="nack"):
        decide(status, {"nack": {"retryable": True}})
    with pytest.raises(PushFailed, match="nack"):
        decide(status, {"nack": {}})


@pytest.mark.parametrize("status", [200, 404, 410, 429, 500])
def test_a_service_may_defer(status: int) -> None:
    with pytest.raises(Defer) as deferred:
        decide(status, {"defer": {"retryAfter": 30}})
    assert deferred.value.after == timedelta(seconds=30)


def test_a_deferral_is_never_of_no_time() -> None:
    for asked in (0, 0.001):
        with pytest.raises(Defer) as deferred:
            decide(200, {"defer": {"retryAfter": asked}})
        assert deferred.value.after == timedelta(seconds=1)


@pytest.mark.parametrize(
    "content",
    [
        {"nack": True},
        {"nack": {"retryable": "no"}},
        {"nack": {"retryable": False, "reason": 7}},
        {"nack": {"retryable": False}, "defer": {"retryAfter": 1}},
        {"defer": {}},
        {"defer": 30},
        {"defer": {"retryAfter": -1}},
        {"defer": {"retryAfter": "30"}},
        {"defer": {"retryAfter": True}},
        {"defer": {"retryAfter": 30 * 86400 + 1}},
        {"defer": {"retryAfter": 10**400}},
    ],
)
def test_a_decision_that_cannot_be_understood_is_no_acknowledgement(content: object) -> None:
    with pytest.raises(PushFailed):
        decide(200, content)


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("30", 30),
        ("0", 1),
        ("99999999999999999999", 600),
        ("Tue, 17 Nov 2026 12:02:00 GMT", 120),
        ("Tue, 17 Nov 2020 12:02:00 GMT", 1),
        ("Tue, 17 Nov 2099 12:02:00 GMT", 600),
    ],
)
def test_a_busy_service_says_when(status: int, asked: str, seconds: int) -> None:
    with pytest.raises(Defer) as deferred:
        decide(status, **retry_after(asked))
    assert deferred.value.after == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "asked", ["", "soon", "-5", "1.5", "١٢", "\x00", "Tue, 17 Nov 2026 12:02:00 +99999999999999"]
)
def test_a_retry_after_that_is_none_leaves_it_to_the_policy(asked: str) -> None:
    with pytest.raises(PushFailed):
        decide(503, **retry_after(asked))


def test_retry_after_of_another_status_is_no_deferral() -> None:
    with pytest.raises(PushFailed):
        decide(500, **retry_after("30"))


def test_what_is_kept_of_an_answer_is_short_printable_and_without_secrets() -> None:
    body = b"\x1b[31mno\x00\r\n token " + SECRET.encode() + b" \xff" + b"x" * 60_000
    with pytest.raises(PushFailed) as failed:
        decide(500, body)
    text = str(failed.value)
    assert text.startswith("HTTP 500 Internal Server Error: [31mno token (hidden) \ufffdxxx")
    assert text.isprintable()
    assert len(text) < 350
