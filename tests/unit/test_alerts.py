"""Alerts without a ledger: what the file may say, when people are told, and in which words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.base.errors import ConfigInvalid
from gateway.config.routes import Alerts, Config, check_alerts, load_config
from gateway.ledger.alerts import (
    MOST_COUNTED,
    Alert,
    AlertFinding,
    AlertKind,
    Details,
    HandlerPause,
)
from gateway.operations.alerts.message import make_message, message_id, slack_message
from gateway.operations.alerts.rules import QUIET, REMINDER, AlertDecision, AlertNews, judge

NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SLACK = "https://hooks.slack.com/services/T000/B000/XXXXSECRETXXXX"


def load(directory: Path, alerts: str) -> Config:
    file = directory / "routes.yaml"
    route = "routes:\n  one:\n    provider: stripe\n    secrets: [env:A]\n"
    file.write_text(f"alerts:\n{alerts}{route}" if alerts else route)
    return load_config(file)


def problems(directory: Path, alerts: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(ConfigInvalid) as refused:
        load(directory, alerts)
    assert "SECRET" not in str(refused.value)
    return [(p.line, p.key, p.found) for p in refused.value.problems]


def test_without_the_section_nobody_is_told(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.alerts == Alerts()
    found = check_alerts(config, {})
    assert (found.webhook, found.slack) == (None, None)


def test_a_section_in_full(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "  dead: 5\n  backlog: 30m\n  repeat: 2h\n  slack: env:SLACK_URL\n"
        "  webhook:\n    url: https://ops.internal/alerts\n    sign: env:ALERT_KEY\n",
    )
    assert (config.alerts.dead, config.alerts.backlog) == (5, 30 * MINUTE)
    assert config.alerts.repeat == 2 * HOUR
    found = check_alerts(config, {"SLACK_URL": SLACK, "ALERT_KEY": KEY})
    assert found.webhook is not None
    assert found.webhook.reveal() == b"https://ops.internal/alerts"
    assert found.slack is not None
    assert found.slack.reveal() == SLACK.encode()
    assert SLACK not in repr(found) + repr(config)
    assert "ops.internal" not in repr(found) + repr(config)


@pytest.mark.parametrize(
    ("alerts", "line", "key", "found"),
    [
        ("  dead: 1\n", 1, "alerts", "neither webhook nor slack"),
        ("  slack: hooks.slack.com/SECRET\n", 2, "alerts.slack", "no URL (not shown)"),
        ("  slack: ftp://h/SECRET\n", 2, "alerts.slack", "no URL (not shown)"),
        (f"  slack: [{SLACK}]\n", 2, "alerts.slack", "a literal value (not shown)"),
        (f"  webhook: {SLACK}\n", 2, "alerts.webhook", "a literal value (not shown)"),
        ("  webhook:\n    url: https://u:SECRET@h/\n", 3, "alerts.webhook.url", "a password"),
        (f"  webhook:\n    url: https://h/\n    sign: {KEY}SECRET\n", 4, "alerts.webhook.sign",
         "a literal value (not shown)"),
        (f"  slack: {SLACK}\n  dead: -1\n", 3, "alerts.dead", "-1"),
        (f"  slack: {SLACK}\n  dead: 10001\n", 3, "alerts.dead", "10001"),
        (f"  slack: {SLACK}\n  dead: yes\n", 3, "alerts.dead", "'yes'"),
        (f"  slack: {SLACK}\n  backlog: 31d\n", 3, "alerts.backlog", "31d"),
        (f"  slack: {SLACK}\n  repeat: 10s\n", 3, "alerts.repeat", "10s"),
        (f"  slack: {SLACK}\n  email: a@b\n", 3, "alerts.email", "an unknown key"),
        ("  webhook:\n    uri: https://h/\n    url: https://h/\n", 3, "alerts.webhook.uri",
         "an unknown key"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line_and_without_the_url(
    tmp_path: Path, alerts: str, line: int, key: str, found: str
) -> None:
    [problem] = problems(tmp_path, alerts)
    assert problem[:2] == (line, key)
    assert found in problem[2]


def test_the_whole_section_may_be_a_url_by_mistake(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(f"alerts: {SLACK}\nroutes: {{}}\n")
    with pytest.raises(ConfigInvalid) as refused:
        load_config(file)
    assert "SECRET" not in str(refused.value)


def test_every_reference_that_leads_nowhere_is_told_at_once(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "  slack: env:SLACK_URL\n  webhook:\n    url: env:HOOK_URL\n    sign: env:ALERT_KEY\n",
    )
    with pytest.raises(ConfigInvalid) as refused:
        check_alerts(config, {"SLACK_URL": "hooks.slack.com/SECRET", "ALERT_KEY": "SECRET"})
    told = [(p.line, p.key, p.found) for p in refused.value.problems]
    assert told == [
        (4, "alerts.webhook.url", "env:HOOK_URL, which is not set"),
        (5, "alerts.webhook.sign", "env:ALERT_KEY, with a key without whsec_ (not shown)"),
        (2, "alerts.slack", "env:SLACK_URL, with text that is no URL (not shown)"),
    ]
    assert "SECRET" not in str(refused.value)


DEAD = AlertFinding(kind=AlertKind.DEAD, route="stripe", handler="h")
SOME_DEAD = replace(DEAD, is_enough=False)
LATE = AlertFinding(kind=AlertKind.BACKLOG, route="stripe", handler="h")
PAUSED = replace(LATE, paused=True)


class Story:
    """What is told when, as time goes by."""

    def __init__(self, *, repeat: timedelta = HOUR, tells: bool = True) -> None:
        self.alert: Alert | None = None
        self._repeat, self._tells = repeat, tells

    def at(self, after: timedelta, finding: AlertFinding | None) -> AlertNews | None:
        decision: AlertDecision | None = judge(
            self.alert, finding, repeat=self._repeat, at=NOON + after, tells=self._tells
        )
        if decision is None:
            return None
        self.alert = decision.alert
        return decision.news


def test_it_is_told_when_raised_and_again_only_after_the_time_to_repeat() -> None:
    story = Story()
    assert story.at(0 * HOUR, LATE) is AlertNews.RAISED
    assert story.at(5 * timedelta(seconds=1), LATE) is None
    assert story.at(HOUR - timedelta(seconds=1), LATE) is None
    assert story.at(HOUR, LATE) is AlertNews.REPEATED
    assert story.at(HOUR + MINUTE, LATE) is None
    assert story.at(2 * HOUR, LATE) is AlertNews.REPEATED
    assert story.at(2 * HOUR + MINUTE, None) is AlertNews.RECOVERED
    assert story.at(3 * HOUR, None) is None


def test_dead_letters_of_which_all_was_told_are_not_told_again() -> None:
    story = Story()
    assert story.at(0 * HOUR, DEAD) is AlertNews.RAISED
    assert story.at(5 * HOUR, SOME_DEAD) is None
    assert story.at(6 * HOUR, DEAD) is AlertNews.REPEATED
    assert story.at(7 * HOUR, None) is AlertNews.RECOVERED


def test_fewer_than_asked_for_raise_nothing() -> None:
    story = Story()
    assert story.at(0 * HOUR, SOME_DEAD) is None
    assert story.alert is None


def test_one_that_goes_up_and_down_is_told_of_a_few_times_an_hour() -> None:
    story = Story()
    told = [
        story.at(n * timedelta(seconds=5), LATE if n % 2 == 0 else None)
        for n in range(int(HOUR / timedelta(seconds=5)))
    ]
    assert 2 <= len([news for news in told if news]) <= 2 * (HOUR // QUIET)


def test_one_that_comes_back_is_told_once_it_was_quiet_for_a_while() -> None:
    story = Story()
    story.at(0 * HOUR, LATE)
    assert story.at(MINUTE, None) is AlertNews.RECOVERED
    assert story.at(2 * MINUTE, LATE) is None
    assert story.at(MINUTE + QUIET, LATE) is AlertNews.RAISED


def test_what_nobody_was_told_of_does_not_recover_aloud() -> None:
    story = Story(tells=False)
    assert story.at(0 * HOUR, LATE) is None
    assert story.alert is not None
    assert story.alert.stands
    assert story.at(HOUR, None) is None
    assert not story.alert.stands


def test_whoever_is_added_later_is_told_of_what_stands() -> None:
    silent = Story(tells=False)
    silent.at(0 * HOUR, LATE)
    story = Story()
    story.alert = silent.alert
    assert story.at(MINUTE, LATE) is AlertNews.RAISED


def test_a_paused_handler_is_told_of_once_a_day() -> None:
    story = Story()
    assert story.at(0 * HOUR, PAUSED) is AlertNews.RAISED
    assert story.at(5 * HOUR, PAUSED) is None
    assert story.at(REMINDER, PAUSED) is AlertNews.REPEATED


def test_pausing_and_resuming_silence_an_alarm_for_a_while() -> None:
    story = Story()
    assert story.at(0 * HOUR, LATE) is AlertNews.RAISED
    assert story.at(2 * HOUR, PAUSED) is None
    assert story.at(20 * HOUR, PAUSED) is None
    assert story.at(21 * HOUR, LATE) is None  # resumed: let it catch up
    assert story.at(22 * HOUR, LATE) is AlertNews.REPEATED


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    story = Story()
    story.at(48 * HOUR, LATE)
    assert story.at(0 * HOUR, LATE) is AlertNews.REPEATED
    assert story.at(MINUTE, LATE) is None


ALERT = Alert(
    kind=AlertKind.DEAD, route="stripe", handler="handlers.billing.fulfil", raised_at=NOON
)
FOUND = Details(count=5000, since=NOON - MINUTE, untold=5000, error="TimeoutError: too slow")


def test_the_id_is_the_same_for_one_telling_and_no_other() -> None:
    ids = {
        message_id(replace(ALERT, **changes))
        for changes in (
            {},
            {"round": 2},
            {"raised_at": NOON + MINUTE},
            {"handler": "other"},
            {"route": "github"},
            {"kind": AlertKind.BACKLOG},
        )
    }
    assert len(ids) == 6
    assert message_id(replace(ALERT, told_at=NOON)) in ids
    assert all("." not in id for id in ids)


def test_dead_letters_in_words() -> None:
    message = make_message(replace(ALERT, round=1), AlertNews.RAISED, FOUND, NOON)
    assert message["type"] == "alert.raised"
    assert message["data"]["count"] == 5000
    assert slack_message(message)["text"].splitlines() == [
        "5,000 dead letters of handlers.billing.fulfil on route stripe since 2026-11-17 11:59 UTC.",
        "> `TimeoutError: too slow`",
        "`gateway dead --route stripe --handler handlers.billing.fulfil --since 2026-11-17T11:59Z`",
    ]


def test_more_of_them_in_words() -> None:
    more = replace(FOUND, count=MOST_COUNTED, untold=12, error=None)
    data = make_message(replace(ALERT, round=2), AlertNews.REPEATED, more, NOON)["data"]
    assert data["text"].startswith("Still: at least 10,000 dead letters of")
    assert data["text"].endswith(", 12 of them new.")
    assert data["count_capped"]
    assert data["error"] is None


def test_the_end_of_it_in_words() -> None:
    data = make_message(replace(ALERT, round=2), AlertNews.RECOVERED, None, NOON)["data"]
    assert data["text"] == (
        "Recovered: no dead letters are left of handlers.billing.fulfil on route stripe."
        " It began 2026-11-17 12:00 UTC."
    )
    assert (data["count"], data["command"]) == (0, None)


def test_a_backlog_in_words() -> None:
    late = replace(ALERT, kind=AlertKind.BACKLOG)
    one = Details(count=1, since=NOON - HOUR, orphaned=True)
    data = make_message(late, AlertNews.RAISED, one, NOON)["data"]
    assert data["text"] == (
        "Backlog of handlers.billing.fulfil on route stripe: 1 delivery due, the oldest since"
        " 2026-11-17 11:00 UTC. No worker has this handler."
    )
    assert data["command"] == "gateway status"


@pytest.mark.parametrize(
    ("of", "command"),
    [("", "gateway resume stripe"), ("h one", "gateway resume stripe 'h one'")],
)
def test_a_pause_in_words_is_no_alarm(of: str, command: str) -> None:
    pause = HandlerPause(handler=of, actor="ann", since=NOON - 2 * HOUR, reason="mail is <down>")
    late = replace(ALERT, kind=AlertKind.BACKLOG, handler="h one", paused=True)
    details = Details(count=3, since=NOON - HOUR, pause=pause)
    message = make_message(late, AlertNews.REPEATED, details, NOON)
    assert message["data"]["text"] == (
        "Paused: h one on route stripe, by ann 2026-11-17 10:00 UTC: mail is <down>"
        " (3 deliveries due, the oldest since 2026-11-17 11:00 UTC)."
    )
    assert "mail is &lt;down&gt;" in slack_message(message)["text"]
    assert message["data"]["command"] == command


@pytest.mark.parametrize(
    "error",
    [
        "boom <!channel> & <!here|here> <@U123> <https://evil|ok>",
        "a `code` and ``` a block ``` \r\n> quote\n*bold*",
        "@channel @here @everyone @all",
        "\x1b[31mred\x00\u202egnp.exe\u2028next\tcolumn",
        "x" * 100_000,
        "\ud800 half a character",
    ],
)
def test_a_hostile_error_is_one_harmless_line_of_slack(error: str) -> None:
    message = make_message(ALERT, AlertNews.RAISED, replace(FOUND, error=error), NOON)
    text = slack_message(message)["text"]
    lines = text.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("> `")
    assert lines[1].count("`") == 2
    assert "<" not in text
    assert not any(word in text for word in ("@channel", "@here", "@everyone", "@all"))
    assert len(lines[1]) < 1500
    assert "".join(lines).replace("\u200b", "").isprintable()
    text.encode()


@pytest.mark.parametrize(
    "error",
    [f"refused {KEY}", "401 for https://user:pass@host/", "sk_live_123 is no key", "ghp_abc"],
)
def test_an_error_that_looks_like_a_credential_is_not_sent(error: str) -> None:
    data = make_message(ALERT, AlertNews.RAISED, replace(FOUND, error=error), NOON)["data"]
    assert data["error"] == "(not shown: it may hold a credential)"
