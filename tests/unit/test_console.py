"""The console's parts by themselves: sessions, values, trees, charts."""

import hmac
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from starlette.requests import Request

from gateway import Context, Event
from gateway.base.secrets import Secret
from gateway.config.registry import Registry, Subscription
from gateway.config.routes import load_config
from gateway.console.charts import Chart, Series, fill
from gateway.console.event_view import DEEPEST, LONGEST_TEXT, MOST_NODES, as_curl, draw_tree
from gateway.console.pages.routes import sendable_types
from gateway.console.rendering import (
    TEMPLATES,
    age,
    code,
    milliseconds,
    moment,
    percent,
    plain,
    size,
)
from gateway.console.request import back_to, safe_place
from gateway.console.sessions import (
    FORGOTTEN_S,
    FREE_TRIES,
    LONGEST_WAIT_S,
    SESSION_S,
    Access,
    LoginBackoff,
    Role,
)
from gateway.console.site import is_own
from gateway.providers.samples import sample_types

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
ADMIN, READER = Secret(b"the token of the admin"), Secret(b"the token of the reader")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def access(admin: Secret | None = ADMIN, reader: Secret | None = READER) -> Access:
    return Access(admin=admin, reader=reader, clock=Clock())


def test_a_token_gives_a_session_of_its_role() -> None:
    for token, role in ((ADMIN, Role.ADMIN), (READER, Role.READER)):
        session = access().enter(token.reveal().decode(), "Ada\x1b[31m Lovelace")
        assert session is not None
        visitor = access().recognise(session)
        assert visitor is not None
        assert visitor.role is role
        assert visitor.name == "Ada[31m Lovelace"
        assert visitor.may_act is (role is Role.ADMIN)
        assert visitor.actor == "Ada[31m Lovelace (console)"


@pytest.mark.parametrize(
    "token", ["", "the token", "the token of the admin ", "é", "\udc80", "x" * 9000]
)
def test_any_other_token_gives_none(token: str) -> None:
    assert access().enter(token, "") is None


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them each time, as values of one length."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return hmac_compare(a, b)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr("gateway.console.sessions.hmac.compare_digest", compare)
    for token in ("", "the token", ADMIN.reveal().decode(), "x" * 9000):
        compared.clear()
        access().enter(token, "")
        assert compared == [(32, 32), (32, 32)]


def test_a_session_ends_in_time_and_with_its_token() -> None:
    clock = Clock()
    door = Access(admin=ADMIN, reader=READER, clock=clock)
    session = door.enter(READER.reveal().decode(), "")
    clock.now += SESSION_S - 1
    assert door.recognise(session) is not None
    clock.now += 2
    assert door.recognise(session) is None
    fresh = access().enter(ADMIN.reveal().decode(), "")
    assert access(admin=Secret(b"another token of the admin")).recognise(fresh) is None
    assert access(reader=None).recognise(fresh) is None


DOOR = access()


@given(st.text(max_size=200))
def test_nothing_made_up_is_a_session(text: str) -> None:
    assert DOOR.recognise(text) is None


def test_one_byte_changed_is_no_session() -> None:
    session = DOOR.enter(ADMIN.reveal().decode(), "Ada")
    assert session is not None
    for at, character in enumerate(session):
        other = "A" if character != "A" else "B"
        assert DOOR.recognise(session[:at] + other + session[at + 1 :]) is None


def test_without_any_token_it_is_off_and_an_open_one_asks_nobody() -> None:
    assert Access(admin=None, reader=None).is_off
    opened = Access(admin=None, reader=None, is_open=True)
    assert opened.recognise(None) is not None
    assert not Access(admin=ADMIN, reader=None, is_open=True).is_open


def test_wrong_tokens_cost_more_and_more_time() -> None:
    clock = Clock()
    patience = LoginBackoff(clock)
    waits = []
    for _ in range(FREE_TRIES + 10):
        patience.failed("192.0.2.1")
        waits.append(patience.wait_s("192.0.2.1"))
        clock.now += waits[-1]
    assert waits[: FREE_TRIES - 1] == [0.0] * (FREE_TRIES - 1)
    assert waits[FREE_TRIES - 1 : FREE_TRIES + 3] == [1.0, 2.0, 4.0, 8.0]
    assert max(waits) == LONGEST_WAIT_S
    assert patience.wait_s("192.0.2.2") == 0.0
    patience.succeeded("192.0.2.1")
    patience.failed("192.0.2.1")
    assert patience.wait_s("192.0.2.1") == 0.0


def test_wrong_tokens_are_forgotten_after_an_hour_without_one() -> None:
    clock = Clock()
    patience = LoginBackoff(clock)
    for _ in range(FREE_TRIES + 3):
        patience.failed("192.0.2.1")
    clock.now += patience.wait_s("192.0.2.1") + FORGOTTEN_S - 1
    patience.failed("192.0.2.1")
    assert patience.wait_s("192.0.2.1") > 0
    clock.now += patience.wait_s("192.0.2.1") + FORGOTTEN_S + 1
    patience.failed("192.0.2.1")
    assert patience.wait_s("192.0.2.1") == 0.0


def test_a_session_tells_nobody_the_admins_token_fast() -> None:
    """A reader can try at home which token would give his session its signature: slowly."""
    began_s = time.process_time()
    access()
    assert time.process_time() - began_s > 0.001


def test_without_a_token_nothing_that_was_signed_elsewhere_is_known() -> None:
    mark = access(admin=None, reader=None).remember()
    assert access(admin=None, reader=None).known_browser(mark) is None


@pytest.mark.parametrize("notice", ["a" * 9000, "中" * 500, "\U0001f468" * 500, "%" * 500])
def test_no_notice_is_too_long_for_a_browser_to_keep(notice: str) -> None:
    written = back_to("/console/", notice).headers["set-cookie"]
    assert len(written) < 4096
    kept = unquote(written.split("=", 1)[1].split(";")[0])
    assert len(kept) >= 200
    assert notice.startswith(kept)


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    patience = LoginBackoff(Clock())
    for n in range(5000):
        patience.failed(f"192.0.2.{n}")
    assert len(patience._failures) == 1000


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://gateway.example"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://gateway.example"}, True),
        ({"origin": "https://gateway.example"}, True),
        ({"origin": "http://gateway.example:81"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_form_is_taken_from_our_own_pages_only(headers: dict[str, str], expected: bool) -> None:
    raw = [(n.encode(), v.encode()) for n, v in {"host": "gateway.example", **headers}.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": raw, "query_string": b""}
    assert is_own(Request(scope)) is expected


@pytest.mark.parametrize(
    "place",
    [
        None,
        "",
        "https://evil.example/console/",
        "//evil.example/console/",
        "/console",
        "/consolex/",
        "/elsewhere",
        "/console/\\evil",
        "/console/\r\nset-cookie: a=b",
        "javascript:alert(1)",
    ],
)
def test_no_link_leads_elsewhere(place: str | None) -> None:
    assert safe_place(place) == "/console/"


def test_a_page_of_ours_is_gone_back_to() -> None:
    assert safe_place("/console/dead?error=a%20b") == "/console/dead?error=a%20b"


def test_marks_that_do_not_show_are_written_out_and_markup_is_escaped() -> None:
    hostile = "<b>\u202eevil\u2066\x00\x1b\u200b\ufeff"
    assert plain(hostile) == "<b>\\u202eevil\\u2066\\u0000\\u001b\\u200b\\ufeff"
    rendered = TEMPLATES.from_string("{{ text }}|{{ text|plain }}").render(text=hostile)
    assert "<" not in rendered
    assert "\u202e" not in rendered
    assert rendered.count("\\u202e") == 2


def test_two_ids_that_are_not_the_same_do_not_look_the_same() -> None:
    ids = {"evt_1", *(f"evt_{mark}1" for mark in "\u00ad\u3164\u115f\u180e\U000e0041\u2064")}
    shown = {plain(id) for id in ids}
    assert len(shown) == len(ids)
    assert all(id.isascii() for id in shown)
    assert plain("\U000e0041") == "\\U000e0041"


def test_what_is_typed_is_marked_and_nothing_else_is() -> None:
    assert code("see `gateway show <id>`, then") == Markup(
        "see <code>gateway show &lt;id&gt;</code>, then"
    )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (milliseconds(None), "–"),  # noqa: RUF001 (a dash)
        (milliseconds(0.123), "0.1 ms"),
        (milliseconds(999), "999 ms"),
        (milliseconds(1500), "1.5 s"),
        (milliseconds(7_200_000), "2h"),
        (size(None), ""),
        (size(1023), "1,023 B"),
        (size(1536), "1.5 KiB"),
        (size(5 * 1024**4), "5.0 TiB"),
        (percent(None), "–"),  # noqa: RUF001 (a dash)
        (percent(1.0), "100 %"),
        (percent(0.99999), "99.9 %"),
    ],
)
def test_figures_are_said_as_people_say_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_time_has_its_exact_utc() -> None:
    shown = moment(NOW.astimezone().replace(microsecond=123000))
    assert 'title="2026-11-17 12:00:00.123 UTC"' in shown
    assert "3m ago" in age(NOW - timedelta(minutes=3), NOW)
    assert ">now<" in age(NOW + timedelta(seconds=5), NOW)


def test_a_tree_folds_and_shows_everything_as_text() -> None:
    drawn = draw_tree({"a": [1, 2.5, None, True, "<i>"], "b": {}, "<k>": "\u202e"})
    assert drawn is not None
    for piece in (
        "<details open>",
        "&lt;i&gt;",
        "&lt;k&gt;",
        "\\u202e",
        "2.5",
        "null",
        "true",
        "{}",
    ):
        assert piece in drawn


def test_a_tree_that_is_too_large_or_too_deep_is_cut() -> None:
    assert draw_tree(list(range(MOST_NODES))) is None
    deep: object = 1
    for _ in range(1000):
        deep = [deep]
    drawn = draw_tree(deep)
    assert drawn is not None
    assert drawn.count("<details") == DEEPEST
    assert "deeper than is shown" in drawn


def test_a_chart_has_a_bar_for_each_step_that_has_any() -> None:
    series = fill(
        [{"accepted": 3}, {}, {"accepted": 1, "BAD": 2}],
        {"accepted": ("good", ("accepted",)), "refused": ("bad", ("BAD", "WORSE"))},
    )
    chart = Chart(title="Requests", start=NOW, step=timedelta(hours=1), series=series)
    assert chart.svg.count("<g>") == 2
    assert chart.svg.count('class="bad"') == 1
    assert "2026-11-17 14:00 UTC: accepted 1, refused 2" in chart.svg
    assert 'aria-label="Requests: accepted 4, refused 2"' in chart.svg
    assert "style=" not in chart.svg
    assert not chart.is_empty


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_no_bar_leaves_its_chart(values: list[int]) -> None:
    series = [Series(name="n", kind="good", values=values)]
    chart = Chart(title="t", start=NOW, step=timedelta(minutes=1), series=series)
    for bar in str(chart.svg).split("<rect ")[1:]:
        y = float(bar.split('y="')[1].split('"')[0])
        assert 0 <= y <= 104


def test_no_single_value_makes_a_tree_that_is_too_large() -> None:
    drawn = draw_tree({"a": "\u202e" * 25_000_000, "b" * 1_000_000: 1})
    assert drawn is not None
    assert len(drawn) < 10 * LONGEST_TEXT
    assert "and 24,996,00" in drawn
    assert draw_tree([["x" * LONGEST_TEXT] for _ in range(200)]) is None


@pytest.mark.parametrize(
    "body",
    [
        '{"a": "it\'s"}',
        "@/etc/passwd",
        '{"a": "\U0001f468\u200d\U0001f469"}\r\n\ttail\n',
        "\\n \\' $HOME $(id) `id` !! \u202e\u2066 %s \x1b[31m",
        "-",
        "",
    ],
)
def test_a_curl_command_carries_the_exact_bytes_to_any_shell(body: str) -> None:
    headers = {"x-signature": "a'b\u200b", "x-empty": "", "content-length": "3", "host": "here"}
    command = as_curl("http://127.0.0.1:8000/webhooks/it's", headers, body)
    assert command is not None
    assert plain(command) == command
    shown = f'curl() {{ printf "%s\\0" "$@"; }}\n{command}'
    ran = subprocess.run(["bash", "-c", shown], capture_output=True, check=True)
    assert ran.stdout.decode().split("\0")[:-1] == [
        "http://127.0.0.1:8000/webhooks/it's",
        *("-H", "x-signature: a'b\u200b", "-H", "x-empty;", "--data-raw", body),
    ]


def test_a_nul_is_carried_by_no_command() -> None:
    assert as_curl("http://here", {}, "a\x00b") is None


@pytest.mark.parametrize("types", ["", "types: ['payment_*', 'invoice.*']"])
def test_a_test_event_is_first_of_a_type_that_a_handler_takes(tmp_path: Path, types: str) -> None:
    """The first thing that a newcomer sees is a handler at work, not an event that none took."""
    file = tmp_path / "routes.yaml"
    file.write_text(
        "routes:\n  shop:\n    provider: stripe\n    secrets: [env:S]\n"
        f"    handlers: []\n    {types}\n"
    )
    config = load_config(file)

    async def fulfil(event: Event, ctx: Context) -> None: ...

    registry = Registry(
        [
            Subscription(
                route="shop",
                handler="handlers.fulfil",
                types=("customer.*", "invoice.paid"),
                function=fulfil,
                timeout=config.timeout,
                retry=config.retry,
            )
        ]
    )
    [shop] = config.routes
    sendable = sendable_types(shop, registry)
    assert registry.for_event("shop", sendable[0])
    assert shop.wants_type(sendable[0])  # what a route does not keep comes last
    assert sorted(sendable) == sorted(sample_types("stripe"))
