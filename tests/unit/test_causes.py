"""Why a request was refused: each cause is found, and none is guessed."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.base.errors import RequestRejected
from gateway.base.secrets import Secret
from gateway.config.routes import load_config
from gateway.ledger.rejected import Clocks
from gateway.providers import PROVIDERS, Incoming
from gateway.providers.provider import Signed
from gateway.receive.rejected.causes import CauseFinder, RejectionCause
from gateway.receive.rejected.recorder import HASHED_BYTES
from gateway.receive.rejected.requests import UnexaminedRequest
from gateway.receive.rejected.tries import HashBudget, body_forms, marks_of, secret_forms
from tests.support.refused import turned_away

IN_THE_BODY = {"mailgun", "microsoft-graph"}
SENDERS = sorted(
    name for name, provider in PROVIDERS.items() if not provider.is_queue and name != "adyen"
)
"""Adyen signs fields of its own payload, so it has no signature for BODY."""
NOW = datetime(2026, 11, 17, 2, 0, tzinfo=UTC)
BODY = b'{"id": "evt_1", "b": [1, 2.5], "a": "\\u00e9 </x>", "livemode": false}'
PUBLIC_URL = "https://hooks.example.com"
PLENTY = 10**9


class Desk:
    """Two routes of each kind of sender, with a secret each."""

    def __init__(self, tmp_path: Path, routes: Mapping[str, str], **secrets: str) -> None:
        lines = ["routes:"]
        for name, said in routes.items():
            lines.append(f"  {name}: {{{said}, secrets: [env:{name.upper()}]}}")
        file = tmp_path / "routes.yaml"
        file.write_text("\n".join(lines))
        self.config = load_config(file)
        self.secrets = {
            route.name: secrets.get(route.name) or route.provider.make_secret()
            for route in self.config.routes
        }
        known = {name: [Secret(text.encode())] for name, text in self.secrets.items()}
        self.examiner = CauseFinder(self.config.routes, known, PUBLIC_URL)

    def sign(
        self, route: str, *, body: bytes = BODY, secret: str | None = None, at: datetime = NOW
    ) -> Signed:
        """As the sender of a route signs, under its secret or another one."""
        [provider] = [r.provider for r in self.config.routes if r.name == route]
        signed_with = (secret or self.secrets[route]).encode()
        url = f"{PUBLIC_URL}/webhooks/first"  # where it is sent to
        return provider.sign(body, secret=signed_with, id="evt_1", type="test", now=at, url=url)

    def why(
        self,
        sent: Signed,
        *,
        to: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        clocks: Clocks | None = None,
        budget: int = PLENTY,
    ) -> RejectionCause:
        """Refused by the route's own provider, then explained."""
        given = sent.headers if headers is None else headers
        lower = {k.lower(): v for k, v in given.items()}
        request = self.refused(to, lower, body or sent.body, url=sent.url)
        return self.examiner.explain(request, clocks, HashBudget(budget))

    def is_verified(self, sent: Signed) -> bool:
        route = self.config.routes[0]
        keys = [route.provider.read_key(self.secrets[route.name].encode())]
        headers = {k.lower(): v for k, v in sent.headers.items()}
        try:
            route.provider.verify(
                Incoming(headers, sent.body, "POST", sent.url),
                keys=keys,
                now=NOW,
                tolerance=route.tolerance,
            )
        except RequestRejected:
            return False
        return True

    def refused(
        self, to: str, headers: Mapping[str, str], body: bytes, *, url: str = ""
    ) -> UnexaminedRequest:
        url = url or f"{PUBLIC_URL}/webhooks/first"
        [route] = [r for r in self.config.routes if r.name == to]
        keys = [route.provider.read_key(self.secrets[to].encode())]
        incoming = Incoming(headers, body, "POST", url)
        with pytest.raises(RequestRejected) as refusal:
            route.provider.verify(incoming, keys=keys, now=NOW, tolerance=route.tolerance)
        return turned_away(
            body,
            headers,
            route=to,
            at=NOW,
            path=url.removeprefix(PUBLIC_URL),
            code=refusal.value.code,
            reason=refusal.value.reason,
        )


@pytest.fixture(scope="module", params=SENDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(provider: str, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Two routes of one provider."""
    said = f"provider: {provider}"
    desk = Desk(tmp_path_factory.mktemp("routes"), {"first": said, "second": said})
    assert desk.is_verified(desk.sign("first"))
    return desk


def test_another_routes_secret_is_named_and_not_shown(pair: Desk) -> None:
    cause = pair.why(pair.sign("second"), to="first")
    assert cause.kind in {"another_route", "wrong_url"}
    assert "route second" in cause.words
    assert not any(secret in cause.words for secret in pair.secrets.values())


def test_a_secret_that_no_route_has_is_said_to_be_one(pair: Desk) -> None:
    stranger = pair.config.routes[0].provider.make_secret()
    cause = pair.why(pair.sign("first", secret=stranger), to="first")
    assert cause.kind in {"unknown_secret", "malformed"}
    assert stranger not in cause.words


@pytest.mark.parametrize("provider", sorted({*SENDERS} - IN_THE_BODY), scope="module")
def test_a_missing_signature_is_named_with_its_header(pair: Desk) -> None:
    """Not of senders whose proof is in the body."""
    sent = pair.sign("first")
    marks = marks_of(pair.config.routes[0].provider).signatures
    assert marks
    left = {k: v for k, v in sent.headers.items() if k.lower() not in marks}
    cause = pair.why(sent, to="first", headers=left)
    assert cause.kind == "no_signature"
    assert all(name in cause.words for name in marks)


def test_a_signature_is_known_from_the_headers_that_depend_on_the_secret() -> None:
    assert marks_of(PROVIDERS["stripe"]).signatures == {"stripe-signature"}
    assert marks_of(PROVIDERS["github"]).signatures == {"x-hub-signature-256"}
    assert marks_of(PROVIDERS["stripe"]).tokens == frozenset()


FORMS = {
    "compact": json.dumps(json.loads(BODY), separators=(",", ":")).encode(),
    "spaces": json.dumps(json.loads(BODY)).encode(),
    "utf-8": json.dumps(json.loads(BODY), ensure_ascii=False).encode(),
    "sorted": json.dumps(json.loads(BODY), sort_keys=True).encode(),
    "indented": json.dumps(json.loads(BODY), indent=2).encode(),
    "php": json.dumps(json.loads(BODY), separators=(",", ":")).replace("/", "\\/").encode(),
    "newline": BODY + b"\n",
}


@pytest.mark.parametrize("sender", ["stripe", "github"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_body_that_was_written_anew_is_recognised(
    sender: str, form: bytes, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, {"first": f"provider: {sender}"})
    touched = json.dumps({**json.loads(BODY), "b": [1, 2.5]}, indent=4).encode()
    assert touched != form
    cause = desk.why(desk.sign("first", body=form), to="first", body=touched)
    if form == BODY + b"\n":  # what was between its tokens cannot be known
        assert cause.kind == "unknown_secret"
    else:
        assert cause.kind == "reserialised"
        assert "let it pass the bytes" in cause.words


@pytest.mark.parametrize(
    ("sent", "came", "told"),
    [
        (BODY, BODY + b"\n", "without its trailing newline"),
        (BODY + b"\n", BODY, "with a trailing newline"),
        (b"{\r\n}", b"{\n}", "with CRLF in place of LF"),
        (b"{\n}", b"{\r\n}", "with LF in place of CRLF"),
    ],
)
def test_line_ends_that_were_changed_are_named(
    sent: bytes, came: bytes, told: str, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, {"first": "provider: github"})
    cause = desk.why(desk.sign("first", body=sent), to="first", body=came)
    assert (cause.kind, told in cause.words) == ("reserialised", True)


@pytest.mark.parametrize("hostile", [b"[" * 100_000, b'"\\ud800"', b"\xff", b"", b"1e999", b"{}"])
def test_forms_of_a_hostile_body_are_few_and_raise_nothing(hostile: bytes) -> None:
    forms = list(body_forms(hostile, HashBudget(PLENTY)))
    assert len(forms) <= 40
    assert hostile not in {form.body for form in forms}


@pytest.mark.parametrize(
    ("configured", "meant", "told"),
    [
        ('"whsec_quoted"', "whsec_quoted", "quotes around it"),
        ("'whsec_quoted'", "whsec_quoted", "quotes around it"),
        ("without_prefix", "whsec_without_prefix", "lacks its whsec_"),
        ("whsec_with_prefix", "with_prefix", "without its whsec_"),
        ("plain", "plain\n", "lacks the newline"),
    ],
)
def test_a_secret_in_another_form_is_told(
    configured: str, meant: str, told: str, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, {"first": "provider: github"}, first=configured)
    cause = desk.why(desk.sign("first", secret=meant), to="first")
    assert (cause.kind, told in cause.words) == ("secret_form", True)
    assert cause.words.startswith("the secret in env:FIRST ")


def test_a_secret_that_is_used_as_text_where_its_base64_is_meant_is_told() -> None:
    key = b"twenty-four random bytes"
    forms = {form.secret: form.words for form in secret_forms(b"whsec_" + base64.b64encode(key))}
    assert "Standard Webhooks" in forms[key]
    assert any(form.secret == b"bare" for form in secret_forms(b"  bare\n"))


def test_the_header_of_another_provider_tells_of_a_wrong_url(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"first": "provider: github"})
    body = BODY
    sent = PROVIDERS["stripe"].sign(body, secret=b"whsec_other", id="e", type="t", now=NOW)
    cause = desk.why(sent, to="first")
    assert cause.kind == "other_provider"
    assert "signature header of stripe" in cause.words
    assert "this is a github route" in cause.words


def test_a_request_for_another_route_of_another_provider_is_sent_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"shop": "provider: stripe", "code": "provider: github"})
    cause = desk.why(desk.sign("shop"), to="code")
    assert cause.kind == "wrong_url"
    assert "signed for route shop" in cause.words
    assert "/webhooks/shop" in cause.words


def test_an_empty_body_is_blamed_on_a_redirect(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"first": "provider: stripe"})
    sent = desk.sign("first")
    request = desk.refused("first", sent.headers, b"")
    cause = desk.examiner.explain(request, None, HashBudget(PLENTY))
    assert (cause.kind, "redirect" in cause.words) == ("empty_body", True)


@pytest.mark.parametrize(
    ("clocks", "told"),
    [
        (None, "it may be our clock"),
        (Clocks(0, None), "it may be our clock"),
        (Clocks(40, 0.4), "so it is the sender's"),
        (Clocks(40, -200.0), "look at our clock"),
    ],
)
def test_a_clock_that_is_apart_is_told_with_whose_it_is(
    clocks: Clocks | None, told: str, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, {"first": "provider: stripe"})
    sent = desk.sign("first", at=NOW - timedelta(minutes=9, seconds=12))
    cause = desk.why(sent, to="first", clocks=clocks)
    assert cause.kind == "clock"
    assert "clock 9m apart: signed 9m12s ago" in cause.words
    assert told in cause.words


def test_a_time_ahead_of_ours_did_not_wait_on_its_way(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"first": "provider: stripe"})
    sent = desk.sign("first", at=NOW + timedelta(hours=1))
    cause = desk.why(sent, to="first", clocks=Clocks(9, 0.1))
    assert "signed 1h ahead of us" in cause.words
    assert "waited" not in cause.words


def test_live_and_test_events_that_are_mixed_up_are_told(tmp_path: Path) -> None:
    desk = Desk(
        tmp_path,
        {"live": "provider: stripe, livemode: true", "try": "provider: stripe, livemode: false"},
    )
    cause = desk.why(desk.sign("live", secret="whsec_nobodys"), to="live")
    assert (cause.kind, "test endpoint" in cause.words) == ("other_mode", True)
    cause = desk.why(desk.sign("try"), to="live")
    assert (cause.kind, "the modes are mixed up" in cause.words) == ("another_route", True)


def test_what_is_malformed_keeps_the_words_of_who_refused_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"first": "provider: stripe"})
    cause = desk.why(desk.sign("first"), to="first", headers={"stripe-signature": "t=1,t=2,v1=0"})
    assert cause == RejectionCause("malformed", "stripe-signature: 2 timestamps; expected one")


def test_an_unknown_path_that_is_signed_for_a_route_says_which(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"first": "provider: stripe", "second": "provider: github"})
    sent = desk.sign("first")
    request = turned_away(
        sent.body, sent.headers, route="", code="NOT_FOUND", path="/webhook/first", at=NOW
    )
    cause = desk.examiner.explain(request, None, HashBudget(PLENTY))
    assert (cause.kind, "--to-route first" in cause.words) == ("wrong_url", True)
    stranger = request._replace(headers={})
    cause = desk.examiner.explain(stranger, None, HashBudget(PLENTY))
    assert cause == RejectionCause(
        "unknown_path", "no route has this path; route first has /webhooks/first"
    )


def test_what_is_looked_into_is_bounded(pair: Desk) -> None:
    sent = pair.sign("first", secret=pair.config.routes[0].provider.make_secret())
    cause = pair.why(sent, to="first", budget=0)
    assert cause.kind in {"not_examined", "malformed"}
    request = pair.refused("first", sent.headers, sent.body)._replace(body=None)
    assert pair.examiner.explain(request, None, HashBudget(PLENTY)).kind == "not_examined"


def test_a_short_body_cannot_make_others_wait_for_its_forms() -> None:
    """Indented, two kilobytes of brackets are megabytes: to write them all took 0.4 s of a core,
    and sixteen of them a second held up every good request."""
    deep = b"[" * 900 + b"]" * 900
    budget = HashBudget(HASHED_BYTES)
    written = list(body_forms(deep, budget))
    assert budget.is_spent
    assert len(written) < 4
    assert not list(body_forms(deep, budget)), "nor does the next one"


@pytest.mark.parametrize(
    "code", ["TOO_LARGE", "TIMEOUT", "BAD_PAYLOAD", "REPEATED_BODY", "RATE_LIMITED"]
)
def test_the_other_codes_speak_for_themselves(code: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"stripe": "provider: stripe"})
    request = turned_away(None, code=code, reason="more than 1 bytes")
    assert desk.examiner.explain(request, None, HashBudget(0)) == RejectionCause(
        code.lower(), "more than 1 bytes"
    )


HOSTILE = ("", "t=1", "sha256=" + "0" * 64, "\x00", "é" * 5000, "v1," * 500)


def test_hostile_headers_are_explained_and_raise_nothing(pair: Desk) -> None:
    marks = marks_of(pair.config.routes[0].provider).signatures
    for junk in HOSTILE:
        request = turned_away(BODY, dict.fromkeys(marks, junk), route="first", at=NOW)
        cause = pair.examiner.explain(request, None, HashBudget(PLENTY))
        assert re.fullmatch("[a-z_]+", cause.kind)
        assert len(cause.words) <= 500
