"""Routes: what `routes.yaml` may say, and that everything else is refused by file, line and key."""

import json
import re
import textwrap
import time
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Backoff, Envelope, Rate, RepeatPolicy, Retention, RetryPolicy
from gateway.base.networks import make_networks
from gateway.base.secrets import SecretRef
from gateway.config.routes import (
    Config,
    Route,
    check_api_keys,
    check_secrets,
    json_schema,
    load_config,
)
from gateway.privacy.redaction import FieldPath, RedactAt, Redaction
from gateway.providers import PROVIDERS

SHIPPED = Path(__file__).parents[2] / "config" / "routes.yaml"
SECRET = "hunter2_hunter2"
ROUTE_KEYS = (
    "ack_within, allow, api_key, dedup_window, encrypt, enforce, formerly, forward, handlers,"
    " limit, livemode, max_body, path, provider, receive_within, reconcile, redact, redact_at,"
    " repeats, retention, scheme, secrets, spool, tolerance, types, verify_token"
)
RATE = "a rate such as 5/s, 100/m or 20/10s, of at most 10000 a period"
TOP_KEYS = "one of alerts, defaults, digest_key, keys, routes, schema"
DURATION = "a duration such as 250ms, 15s, 5m, 1h30m or 35d"
FIELD = "the path of a field in the payload, such as data.object.email or items.*.phone"
REFERENCE = "a reference: env:NAME (in capitals) or file:/path"
LITERAL = "a literal value (not shown)"
EXPIRES_AT = "secrets[0].expires_at"
TIME = "a time such as 2026-12-01T00:00:00Z"


def load(folder: Path, text: str) -> Config:
    file = folder / "routes.yaml"
    file.write_text(textwrap.dedent(text))
    return load_config(file)


def problems(folder: Path, text: str) -> list[Problem]:
    with pytest.raises(ConfigInvalid) as refused:
        load(folder, text)
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert {problem.file for problem in refused.value.problems} == {str(folder / "routes.yaml")}
    return list(refused.value.problems)


def said(folder: Path, text: str) -> list[tuple[int | None, str, str, str]]:
    return [(p.line, p.key, p.found, p.expected) for p in problems(folder, text)]


def route_with(line: str, provider: str = "stripe") -> str:
    """A file whose only route has one more line, the fifth."""
    return f"""
routes:
  one:
    provider: {provider}
    {line}
    secrets: [env:A]
"""


def a_route(**changes: Any) -> Route:
    values: dict[str, Any] = {
        "name": "stripe",
        "provider": PROVIDERS["stripe"],
        "path": "/webhooks/stripe",
        "secrets": (SecretRef(kind="env", target="A"),),
        "api_key": None,
        "tolerance": timedelta(minutes=5),
        "handlers": (),
        "max_body": 1024**2,
        "ack_within": timedelta(seconds=3),
        "receive_within": timedelta(seconds=10),
        "types": None,
        "livemode": None,
        "repeats": RepeatPolicy.REFUSE,
        "spools": False,
        "retention": Retention(
            key=timedelta(days=35), payload=timedelta(days=14), dead=timedelta(days=90)
        ),
        "line": 3,
    }
    return Route(**values | changes)


def test_a_route_needs_only_a_provider_and_a_secret(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """\
        routes:
          stripe: {provider: stripe, secrets: [env:A]}
          github: {provider: github, secrets: [env:B]}
        """,
    )
    assert config == Config(
        file=tmp_path / "routes.yaml",
        schema=(),
        timeout=timedelta(seconds=60),
        retry=RetryPolicy(),
        routes=(
            a_route(line=2),
            a_route(
                name="github",
                provider=PROVIDERS["github"],
                path="/webhooks/github",
                secrets=(SecretRef(kind="env", target="B"),),
                tolerance=None,
                max_body=25 * 1024**2,
                spools=True,
                line=3,
            ),
        ),
    )


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """\
        schema: [handlers/schema.sql, /abs/more.sql]
        defaults:
          timeout: 90s
          retry: {attempts: 20, backoff: fixed, base: 0s, cap: 1h30m}
        routes:
          payments-eu:
            provider: stripe
            path: /hooks/stripe_eu.v2
            secrets: [env:NEW, "file:/run/secrets/old stripe"]
            api_key: env:STRIPE_API_KEY
            tolerance: 1d
            handlers: [handlers.billing, other]
            max_body: 64KiB
            ack_within: 500ms
            receive_within: 5m
            types: ["payment_intent.*", "*"]
            livemode: false
            spool: always
            retention: {key: 31d, payload: 0s, dead: 1d}
          hub:
            provider: github
            secrets: [env:A]
            repeats: flag
            spool: never
            max_body: 1000
            retention: {key: 4d}
        """,
    )
    assert config.schema == (Path("handlers/schema.sql"), Path("/abs/more.sql"))
    assert config.timeout == timedelta(seconds=90)
    assert config.retry == RetryPolicy(
        attempts=20, backoff=Backoff.FIXED, base=timedelta(0), cap=timedelta(minutes=90)
    )
    payments, hub = config.routes
    assert payments == a_route(
        name="payments-eu",
        path="/hooks/stripe_eu.v2",
        secrets=(
            SecretRef(kind="env", target="NEW"),
            SecretRef(kind="file", target="/run/secrets/old stripe"),
        ),
        api_key=SecretRef(kind="env", target="STRIPE_API_KEY"),
        tolerance=timedelta(days=1),
        handlers=("handlers.billing", "other"),
        max_body=65_536,
        ack_within=timedelta(milliseconds=500),
        receive_within=timedelta(minutes=5),
        types=("payment_intent.*", "*"),
        livemode=False,
        spools=True,
        retention=Retention(key=timedelta(days=31), payload=timedelta(0), dead=timedelta(days=1)),
        line=6,
    )
    assert (hub.repeats, hub.spools, hub.max_body) == (RepeatPolicy.FLAG, False, 1000)
    assert hub.retention == Retention(
        key=timedelta(days=4), payload=timedelta(days=4), dead=timedelta(days=90)
    )


def test_a_queue_is_a_route_without_a_door(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        routes:
          tasks: {provider: publish, handlers: [handlers.tasks], api_key: env:KEY, max_body: 2KiB}
          stripe: {provider: stripe, secrets: [env:A], path: /webhooks/tasks}
        """,
    )
    tasks, stripe = config.routes
    assert (tasks.provider.is_queue, tasks.secrets, tasks.max_body) == (True, (), 2048)
    assert tasks.api_key == SecretRef(kind="env", target="KEY")
    assert config.doors == (stripe,)


@pytest.mark.parametrize(
    "line",
    ["secrets: [env:A]", "path: /x", "tolerance: 5m", "spool: always", "types: [a]", "zzz: 1"],
)
def test_a_queue_has_no_key_of_the_way_in(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    (problem,) = said(tmp_path, f"routes:\n  tasks:\n    provider: publish\n    {line}\n")
    assert problem[:3] == (4, f"routes.tasks.{key}", "an unknown key")
    known = (
        "ack_within, allow, api_key, encrypt, formerly, forward, handlers, limit, max_body,"
        " provider, receive_within, redact, redact_at, retention, tokens"
    )
    assert known in problem[3]


def test_who_may_send_and_how_much_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        routes:
          stripe:
            provider: stripe
            secrets: [env:A]
            allow: [3.18.12.63, 2001:db8::/32]
            limit: 5/s
          tasks: {provider: publish, tokens: [env:B], allow: [10.0.0.0/8], limit: 100/m}
          github: {provider: github, secrets: [env:C], allow: [192.30.252.0/22]}
        """,
    )
    stripe, tasks, github = config.routes
    assert stripe.allow == make_networks(["3.18.12.63", "2001:db8::/32"])
    assert stripe.limit == Rate(count=5, period=timedelta(seconds=1))
    assert (tasks.allow, tasks.limit) == (
        make_networks(["10.0.0.0/8"]),
        Rate(count=100, period=timedelta(minutes=1)),
    )
    assert (github.allow, github.limit) == (make_networks(["192.30.252.0/22"]), None)


def test_a_sender_that_does_not_come_again_has_no_limit(tmp_path: Path) -> None:
    for more in ("", "\n    spool: always"):
        (problem,) = said(tmp_path, route_with(f"limit: 500/s{more}", "github"))
        assert problem == (
            5,
            "routes.one.limit",
            "500/s",
            "no limit: github does not send again what is answered 429",
        )


@pytest.mark.parametrize("line", ["allow: [10.0.0.0/8]", "limit: 5/s"])
def test_a_queue_without_a_url_has_nothing_to_limit(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    (problem,) = said(tmp_path, f"routes:\n  tasks:\n    provider: publish\n    {line}\n")
    assert problem[:2] == (4, f"routes.tasks.{key}")
    assert problem[3] == f"tokens beside {key}: without them the queue has no URL"


def test_a_queue_with_tokens_is_open(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        routes:
          tasks: {provider: publish}
          orders: {provider: publish, tokens: [env:ORDERS, file:/run/old], ack_within: 1s}
        """,
    )
    [orders] = config.open_queues
    assert (orders.name, orders.path) == ("orders", "/v1/queues/orders/jobs")
    assert [str(ref) for ref in orders.secrets] == ["env:ORDERS", "file:/run/old"]
    assert (orders.ack_within, orders.spools) == (timedelta(seconds=1), False)


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "[hunter2-hunter2-hunter2]",
        "env:hunter2",
        "{hunter2: 1, hunter2: 2}",
        "[{hunter2: 1}]",
    ],
)
def test_tokens_are_references_and_never_shown(tmp_path: Path, value: str) -> None:
    problems = said(tmp_path, f"routes:\n  one:\n    provider: publish\n    tokens: {value}\n")
    assert problems
    assert {(problem[0], problem[1][:17]) for problem in problems} == {(4, "routes.one.tokens")}
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize("token", ["", "too-short", "a token with spaces", "x" * 513, "é" * 20])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(tmp_path: Path, token: str) -> None:
    config = load(tmp_path, "routes: {tasks: {provider: publish, tokens: [env:TASKS]}}")
    with pytest.raises(ConfigInvalid) as refusal:
        check_secrets(config, {"TASKS": token}, {})
    [problem] = refusal.value.problems
    assert problem.key == "routes.tasks.tokens[0]"
    assert not token or token not in str(problem)
    good = check_secrets(config, {"TASKS": "0123456789abcdef"}, {})
    assert [secret.reveal() for secret in good["tasks"]] == [b"0123456789abcdef"]


def test_an_api_key_is_for_routes_whose_handlers_call_stripe(tmp_path: Path) -> None:
    assert said(tmp_path, route_with("api_key: env:KEY", "github")) == [
        (5, "routes.one.api_key", "a literal value (not shown)",
         "no api_key: it is Stripe's, and provider is github"),
    ]  # fmt: skip
    assert said(tmp_path, route_with(f"api_key: {SECRET}")) == [
        (5, "routes.one.api_key", "a literal value (not shown)", REFERENCE),
    ]


def test_an_api_key_that_is_not_there_is_a_problem_of_its_line(tmp_path: Path) -> None:
    config = load(tmp_path, route_with("api_key: env:KEY"))
    assert check_api_keys(config, {"KEY": SECRET})["one"].reveal() == SECRET.encode()
    with pytest.raises(ConfigInvalid) as refused:
        check_api_keys(config, {})
    assert [(p.line, p.key, p.found) for p in refused.value.problems] == [
        (5, "routes.one.api_key", "env:KEY, which is not set")
    ]
    assert "Stripe's API key" in refused.value.problems[0].expected


def test_the_shipped_file_loads() -> None:
    config = load_config(SHIPPED)
    assert config.schema == (Path("handlers/schema.sql"),)
    assert [(route.name, route.path, route.handlers) for route in config.routes] == [
        ("stripe", "/webhooks/stripe", ("handlers.billing",)),
        ("github", "/webhooks/github", ("handlers.repos",)),
    ]
    assert [str(ref) for route in config.routes for ref in route.secrets] == [
        "env:STRIPE_WEBHOOK_SECRET",
        "env:GITHUB_WEBHOOK_SECRET",
    ]


@pytest.mark.parametrize(
    ("line", "key", "found", "expected"),
    [
        ("path: webhooks", "path", "'webhooks'", "a path such as /webhooks/stripe"),
        ("path: /a?b=c", "path", "'/a?b=c'", "a path such as /webhooks/stripe"),
        ("path: /a b", "path", "'/a b'", "a path such as /webhooks/stripe"),
        ("path: /a/", "path", "'/a/'", "a path such as /webhooks/stripe"),
        ("path: /a//b", "path", "'/a//b'", "a path such as /webhooks/stripe"),
        ("path: /a/../b", "path", "'/a/../b'", "a path such as /webhooks/stripe"),
        ("path: /", "path", "'/'", "a path such as /webhooks/stripe"),
        ("path: /{x}", "path", "'/{x}'", "a path such as /webhooks/stripe"),
        ("path: 5", "path", "5", "text"),
        ("tolerance: 5", "tolerance", "5", DURATION),
        ("tolerance: 5 minutes", "tolerance", "'5 minutes'", DURATION),
        ("tolerance: 0s", "tolerance", "0s", "more than 0s, which would switch the check off"),
        ("tolerance: 25h", "tolerance", "1d1h", "0s to 1d"),
        (
            "handlers: handlers.billing",
            "handlers",
            "'handlers.billing'",
            "a list: write [handlers.billing]",
        ),
        ("handlers: 5", "handlers", "5", "a list"),
        ("handlers: [a b]", "handlers[0]", "'a b'", "a module such as handlers.billing"),
        ("handlers: [x, .a]", "handlers[1]", "'.a'", "a module such as handlers.billing"),
        ("handlers: [a/b.py]", "handlers[0]", "'a/b.py'", "a module such as handlers.billing"),
        ("handlers: [a, b, a]", "handlers", "a twice", "each module once"),
        ("max_body: 0", "max_body", "0B", "1B to 256MiB"),
        ("max_body: 257MiB", "max_body", "257MiB", "1B to 256MiB"),
        ("max_body: -5", "max_body", "-5", "a size that is not negative"),
        ("max_body: big", "max_body", "'big'", "a size such as 64KiB, 1MiB or 1000000"),
        ("ack_within: 0s", "ack_within", "0s", "1ms to 5m"),
        ("receive_within: 6m", "receive_within", "6m", "1ms to 5m"),
        ("types: []", "types", "an empty list", "at least 1 of them"),
        ("types: invoice.*", "types", "'invoice.*'", "a list: write [invoice.*]"),
        ("types: '*'", "types", "'*'", 'a list: write ["*"]'),
        (f"types: {'a' * 61}", "types", f"'{'a' * 59}...", "a list"),
        (
            "types: ['']",
            "types[0]",
            "''",
            "an event type such as invoice.paid or invoice.*",
        ),
        ("types: [5]", "types[0]", "5", "text"),
        ("livemode: yes", "livemode", "'yes'", "true or false"),
        ("livemode: 1", "livemode", "1", "true or false"),
        ("retention: 35d", "retention", "'35d'", "a mapping"),
        ("retention: {dead: 23h}", "retention.dead", "23h", "1d to 36500d"),
        ("retention: {payload: 36d}", "retention.payload", "36d", "at most retention.key (35d)"),
        (
            "retention: {key: 31d, payload: 32d}",
            "retention.payload",
            "32d",
            "at most retention.key (31d)",
        ),
        (
            "retention: {key: 30d}",
            "retention.key",
            "30d",
            "at least 31d: stripe can deliver an event again for 30d, and a day more",
        ),
        (
            "tolerence: 5m",
            "tolerence",
            "an unknown key",
            f"one of {ROUTE_KEYS} (did you mean tolerance?)",
        ),
        ("zzz: 5m", "zzz", "an unknown key", f"one of {ROUTE_KEYS}"),
        (
            "retention: {keys: 35d}",
            "retention.keys",
            "an unknown key",
            "one of dead, key, payload (did you mean key?)",
        ),
        ("redact: [a..b]", "redact[0]", "'a..b'", FIELD),
        ("redact: ['a b']", "redact[0]", "'a b'", FIELD),
        ("redact: [7]", "redact[0]", "7", FIELD),
        ("redact: []", "redact", "an empty list", "at least 1 of them"),
        (
            "redact: [pii]",
            "redact[0]",
            "'pii'",
            "the paths of fields: pii is a word of `gateway show --save --redact`",
        ),
        (
            "redact: [data.object.email, type]",
            "redact[1]",
            "'type'",
            "no field that is the event's type: it is always stored and shown",
        ),
        ("redact_at: store", "redact_at", "'store'", "redact beside it: which fields"),
        (
            "allow: [10.0.0.1, hooks.stripe.com]",
            "allow[1]",
            "'hooks.stripe.com'",
            "an address or a network such as 3.18.12.63, 192.30.252.0/22 or 2001:db8::/32",
        ),
        (
            "allow: [192.30.252.7/22]",
            "allow[0]",
            "'192.30.252.7/22', which does not begin its network",
            "the network 192.30.252.0/22, or the address 192.30.252.7 without a prefix",
        ),
        (
            "allow: [0.0.0.0/0]",
            "allow[0]",
            "'0.0.0.0/0', which is everybody",
            "the networks that are meant",
        ),
        ("limit: 500", "limit", "500", RATE),
        ("limit: fast", "limit", "'fast'", RATE),
        ("path:", "path", "nothing", "a value, or the key left out"),
        ("path: ~", "path", "nothing", "a value, or the key left out"),
        ("types: [a, null]", "types[1]", "nothing", "a value, or the key left out"),
    ],
)
def test_a_value_that_a_route_cannot_have_is_refused(
    line: str, key: str, found: str, expected: str, tmp_path: Path
) -> None:
    assert said(tmp_path, route_with(line)) == [(5, f"routes.one.{key}", found, expected)]


@pytest.mark.parametrize(
    ("line", "key", "found", "expected"),
    [
        ("tolerance: 5m", "tolerance", "5m", "no tolerance: github signs no time"),
        (
            "livemode: true",
            "livemode",
            "true",
            "no livemode: github does not tell live events from test events",
        ),
        (
            "retention: {key: 95h}",
            "retention.key",
            "3d23h",
            "at least 4d: github can deliver an event again for 3d, and a day more",
        ),
        ("repeats: ignore", "repeats", "'ignore'", "'refuse' or 'flag'"),
        (
            "dedup_window: 9d",
            "dedup_window",
            "9d",
            "no dedup window: github has an id that tells events apart",
        ),
        ("spool: true", "spool", "true", "'always' or 'never'"),
    ],
)
def test_a_value_that_the_provider_gives_no_ground_for_is_refused(
    line: str, key: str, found: str, expected: str, tmp_path: Path
) -> None:
    text = route_with(line, provider="github")
    assert said(tmp_path, text) == [(5, f"routes.one.{key}", found, expected)]


@pytest.mark.parametrize(
    ("line", "found", "expected"),
    [
        (
            "dedup_window: 7d",
            "7d",
            "at least 8d: meta can deliver an event again for 7d, and a day more",
        ),
        ("dedup_window: 36d", "36d", "at most retention.key (35d)"),
    ],
)
def test_a_dedup_window_is_neither_too_short_nor_longer_than_its_keys(
    line: str, found: str, expected: str, tmp_path: Path
) -> None:
    text = route_with(line, provider="meta")
    assert said(tmp_path, text) == [(5, "routes.one.dedup_window", found, expected)]


def test_the_dedup_window_is_that_of_the_route_or_of_its_provider(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """\
        routes:
          adyen: {provider: adyen-platform, secrets: [env:A]}
          lemon: {provider: lemon-squeezy, secrets: [env:A]}
          meta: {provider: meta, secrets: [env:A]}
          webflow: {provider: webflow, secrets: [env:A]}
          own: {provider: meta, secrets: [env:A], dedup_window: 10d}
          times: {provider: zoom, secrets: [env:A], retention: {key: 20d}}
          ids: {provider: stripe, secrets: [env:A]}
        """,
    )
    day = timedelta(days=1)
    assert [route.dedup_window for route in config.routes] == [
        *(31 * day, day + timedelta(minutes=3), 8 * day, day + timedelta(minutes=30)),
        *(10 * day, 20 * day, None),
    ]


def test_a_replay_policy_where_the_time_is_signed_is_refused(tmp_path: Path) -> None:
    ((line, key, found, expected),) = said(tmp_path, route_with("repeats: flag"))
    assert (line, key, found) == (5, "routes.one.repeats", "'flag'")
    assert expected == "no policy for repeats: stripe signs the event id or the time"


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/console", "/console/x", "/api/hooks", "/v1", "/v1/a/b"],
)
def test_a_path_that_the_gateway_uses_itself_is_refused(path: str, tmp_path: Path) -> None:
    expected = "a path that the gateway does not use itself"
    assert said(tmp_path, route_with(f"path: {path}")) == [
        (5, "routes.one.path", f"'{path}'", expected)
    ]


@pytest.mark.parametrize(
    "path", ["/healthz/x", "/consoles", "/apis/v1", "/v1x", "/x/console", "/a"]
)
def test_a_path_that_only_looks_like_one_of_them_is_taken(path: str, tmp_path: Path) -> None:
    assert load(tmp_path, route_with(f"path: {path}")).routes[0].path == path


def test_two_routes_on_one_path_are_both_named_with_their_lines(tmp_path: Path) -> None:
    text = """\
    routes:
      one:
        provider: stripe
        secrets: [env:A]
      two:
        provider: stripe
        secrets: [env:A]
        path: /webhooks/one
    """
    found = "'/webhooks/one', which routes.one has on line 2"
    assert said(tmp_path, text) == [(8, "routes.two.path", found, "a path of its own")]


@pytest.mark.parametrize("name", ["One", "1one", "a b", "-a", "a.b", "a" * 64, "ä"])
def test_a_route_name_that_fits_no_url_is_refused(name: str, tmp_path: Path) -> None:
    text = f"\nroutes:\n  {name}: {{provider: stripe, secrets: [env:A], path: /x}}\n"
    ((line, key, found, expected),) = said(tmp_path, text)
    assert line == 3
    assert key in (f"routes.{name}", f"routes.{found}")
    assert found.startswith(repr(name)[:20])
    assert expected == "a name in lower case: a letter, then letters, digits, - or _"


@pytest.mark.parametrize("name", ["a", "a" * 63, "stripe-eu_2"])
def test_a_route_name_may_be(name: str, tmp_path: Path) -> None:
    text = f"routes:\n  {name}: {{provider: stripe, secrets: [env:A]}}\n"
    assert load(tmp_path, text).routes[0].name == name


def test_an_unknown_provider_is_refused_and_the_closest_named(tmp_path: Path) -> None:
    ((line, key, found, expected),) = said(tmp_path, route_with("", provider="strpe"))
    assert (line, key, found) == (4, "routes.one.provider", "'strpe'")
    assert expected.startswith("a name that `gateway providers` lists, or hmac, ")
    assert expected.endswith("(did you mean stripe?)")


@pytest.mark.parametrize(
    ("written", "meant"), [("whatsapp", "meta"), ("Shopify", "shopify"), ("hmca", "hmac")]
)
def test_a_sender_is_known_by_the_names_of_its_products(
    written: str, meant: str, tmp_path: Path
) -> None:
    ((*_, expected),) = said(tmp_path, route_with("", provider=written))
    assert expected.endswith(f"(did you mean {meant}?)")


def test_a_route_without_provider_or_secrets_is_refused_at_its_own_line(tmp_path: Path) -> None:
    text = "routes:\n  one:\n    path: /x\n"
    assert said(tmp_path, text) == [
        (2, "routes.one.provider", "nothing", "this key, which is required"),
        (2, "routes.one.secrets", "nothing", "this key, which is required"),
    ]


@pytest.mark.parametrize(
    ("line", "key", "found", "expected"),
    [
        (f"secrets: [{SECRET}]", "secrets[0]", "a literal value (not shown)", REFERENCE),
        (f"secrets: [env:A, {SECRET}]", "secrets[1]", "a literal value (not shown)", REFERENCE),
        (f"secrets: [env:{SECRET}]", "secrets[0]", "a literal value (not shown)", REFERENCE),
        ("secrets: [123456]", "secrets[0]", "a literal value (not shown)", REFERENCE),
        (f"secrets: [[{SECRET}]]", "secrets[0]", "a literal value (not shown)", REFERENCE),
        (f"secrets: {SECRET}", "secrets", LITERAL, f"a list with {REFERENCE}"),
        (f"secrets: env:{SECRET}", "secrets", LITERAL, f"a list with {REFERENCE}"),
        ("secrets: 123456", "secrets", LITERAL, f"a list with {REFERENCE}"),
        (f"secrets: {{{SECRET}: x}}", "secrets", "a mapping", "a list"),
        ("secrets: []", "secrets", "an empty list", "at least 1 of them"),
        ("secrets: env:A", "secrets", "env:A", "a list: write [env:A]"),
        ("secrets: file:/run/a", "secrets", "file:/run/a", "a list: write [file:/run/a]"),
        ("secrets: 'file:/run/a b'", "secrets", "file:/run/a b", 'a list: write ["file:/run/a b"]'),
        (f"secrets: [{{secret: {SECRET}}}]", "secrets[0].secret", LITERAL, REFERENCE),
        (f"secrets: [{{secret: [{SECRET}]}}]", "secrets[0].secret", LITERAL, REFERENCE),
        (f"secrets: [{{secret: env:A, expires_at: {SECRET}}}]", EXPIRES_AT, LITERAL, TIME),
        ("secrets: [{secret: env:A, expires_at: 5}]", EXPIRES_AT, LITERAL, TIME),
        ("secrets: [{secret: env:A, expires_at: 30d}]", EXPIRES_AT, LITERAL, TIME),
        ("secrets: [{secret: env:A, expires_at: 2026-13-01}]", EXPIRES_AT, LITERAL, TIME),
        ("secrets: [{secret: env:A, expires_at: {}}]", EXPIRES_AT, "an empty mapping", TIME),
        ("secrets: [{}]", "secrets[0].secret", "nothing", "this key, which is required"),
        (
            f"secrets: [{{secret: env:A, {SECRET}: x}}]",
            "secrets[0].(not shown)",
            "an unknown key",
            "one of expires_at, secret",
        ),
    ],
)
def test_a_secret_that_is_no_reference_is_refused_and_not_shown(
    line: str, key: str, found: str, expected: str, tmp_path: Path
) -> None:
    text = f"routes:\n  one:\n    provider: stripe\n    {line}\n"
    assert said(tmp_path, text) == [(4, f"routes.one.{key}", found, expected)]


@pytest.mark.parametrize(
    "text",
    [
        f"routes: {{one: {{provider: stripe, secret: {SECRET}, secrets: [env:A]}}}}",
        f"routes: {{one: {{provider: stripe, secret: {{{SECRET}: }}, secrets: [env:A]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: {{{SECRET}}}}}}}",
        f"routes: {{one: {{provider: stripe, secrets: [{SECRET}: {SECRET}: {SECRET}]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: [*{SECRET}]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: [&{SECRET} x]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: [!{SECRET} x]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: [!{SECRET}!x y]}}}}",
        f"routes: {{one: {{provider: stripe, secrets: ['{SECRET}]}}}}",
        f"{SECRET}",
        f"- {SECRET}",
    ],
)
def test_however_a_literal_secret_gets_into_the_file_it_is_not_shown(
    text: str, tmp_path: Path
) -> None:
    assert problems(tmp_path, text)


@pytest.mark.parametrize(
    "line",
    [
        "path: whsec_x",
        "types: whsec_x",
        "handlers: [sk_live_x y]",
        "types: ['ghp_x y']",
        "whsec_x: 1",
    ],
)
def test_a_credential_under_another_key_is_not_shown_either(line: str, tmp_path: Path) -> None:
    shown = "\n".join(map(str, problems(tmp_path, route_with(line))))
    assert not re.search("whsec_x|sk_live_x|ghp_x", shown)
    assert "not shown" in shown


@pytest.mark.parametrize(
    ("text", "line", "key", "found", "expected"),
    [
        ("routes: []", 1, "routes", "an empty list", "a mapping"),
        ("routes: [1]", 1, "routes", "a list", "a mapping"),
        ("routes: {}", 1, "routes", "an empty mapping", "at least 1 of them"),
        ("routes:\n  one: [1]", 2, "routes.one", "a list", "a mapping"),
        ("routes:\n  one: 5", 2, "routes.one", "5", "a mapping"),
        ("routes:\n  one:", 2, "routes.one", "nothing", "a value, or the key left out"),
        ("routes:", 1, "routes", "nothing", "a value, or the key left out"),
        ("schema: []", None, "routes", "nothing", "this key, which is required"),
    ],
)
def test_routes_of_the_wrong_shape_are_refused(
    text: str, line: int | None, key: str, found: str, expected: str, tmp_path: Path
) -> None:
    assert (line, key, found, expected) in said(tmp_path, text)


@pytest.mark.parametrize(
    ("lines", "line", "key", "found", "expected"),
    [
        ("schema: a.sql", 1, "schema", "'a.sql'", "a list: write [a.sql]"),
        ("keys: env:A", 1, "keys", "env:A", "a list: write [env:A]"),
        ("schema: [a.sql, b.txt]", 1, "schema[1]", "'b.txt'", "the path of an .sql file"),
        ("schema:\n- a.sql\n- 5", 3, "schema[1]", "5", "text"),
        ("defaults: [1]", 1, "defaults", "a list", "a mapping"),
        ("defaults: {timeout: 0s}", 1, "defaults.timeout", "0s", "1ms to 1d"),
        ("defaults: {timeout: 60}", 1, "defaults.timeout", "60", DURATION),
        ("defaults: {retry: 5}", 1, "defaults.retry", "5", "a mapping"),
        ("defaults: {retry: {attempts: 0}}", 1, "defaults.retry.attempts", "0", "at least 1"),
        ("defaults: {retry: {attempts: 21}}", 1, "defaults.retry.attempts", "21", "at most 20"),
        (
            "defaults: {retry: {attempts: '5'}}",
            1,
            "defaults.retry.attempts",
            "'5'",
            "a whole number",
        ),
        (
            "defaults: {retry: {attempts: 1.5}}",
            1,
            "defaults.retry.attempts",
            "1.5",
            "a whole number",
        ),
        (
            "defaults: {retry: {attempts: true}}",
            1,
            "defaults.retry.attempts",
            "true",
            "a whole number",
        ),
        (
            "defaults: {retry: {backoff: linear}}",
            1,
            "defaults.retry.backoff",
            "'linear'",
            "'exponential' or 'fixed'",
        ),
        ("defaults: {retry: {base: -5s}}", 1, "defaults.retry.base", "'-5s'", DURATION),
        ("defaults: {retry: {base: 7h}}", 1, "defaults.retry.cap", "6h", "at least base (7h)"),
        (
            "defaults: {retry: {base: 9s, cap: 8s}}",
            1,
            "defaults.retry.cap",
            "8s",
            "at least base (9s)",
        ),
        (
            "defaults: {tmeout: 5s}",
            1,
            "defaults.tmeout",
            "an unknown key",
            "one of retry, timeout (did you mean timeout?)",
        ),
        (
            "defaults:\n  retry:\n    bas: 5s",
            3,
            "defaults.retry.bas",
            "an unknown key",
            "one of attempts, backoff, base, cap (did you mean base?)",
        ),
        (
            "route: 5",
            1,
            "route",
            "an unknown key",
            f"{TOP_KEYS} (did you mean routes?)",
        ),
        ("<<: {a: b}", 1, "'<<'", "an unknown key", TOP_KEYS),
        ("[a]: b", 1, "(document)", "a list or a mapping as a key", "text as a key"),
    ],
)
def test_a_wrong_value_outside_of_the_routes_is_refused(
    lines: str, line: int, key: str, found: str, expected: str, tmp_path: Path
) -> None:
    text = f"{lines}\nroutes: {{one: {{provider: stripe, secrets: [env:A]}}}}\n"
    assert said(tmp_path, text) == [(line, key, found, expected)]


def test_a_key_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = """\
    routes:
      one:
        provider: stripe
        secrets: [env:A]
        provider: github
      one: {provider: stripe, secrets: [env:A]}
    routes: {}
    """
    expected = "each key once"
    assert said(tmp_path, text) == [
        (5, "routes.one.provider", "the key a second time (first on line 3)", expected),
        (6, "routes.one", "the key a second time (first on line 2)", expected),
        (7, "routes", "the key a second time (first on line 1)", expected),
    ]


@pytest.mark.parametrize(
    ("text", "line", "found", "expected"),
    [
        ("", None, "an empty file", "a mapping with `routes`"),
        ("# nothing\n", None, "an empty file", "a mapping with `routes`"),
        ("---\n...\n", None, "an empty file", "a mapping with `routes`"),
        ("- a\n", 1, "a list", "a mapping with `routes`"),
        ("\nhello\n", 2, "text", "a mapping with `routes`"),
        ("routes:\n\tone: 5\n", 2, "a tab", "spaces: YAML takes no tabs here"),
        ("routes: [1\n", 2, "a syntax error (expected ',' or ']', but got '<stream end>')", "YAML"),
        ("a: 1\nb: c: d\n", 2, "a syntax error (mapping values are not allowed here)", "YAML"),
        ("a: 1\n---\nb: 1\n", 2, "a syntax error (but found another document)", "YAML"),
        ("a: 1\nb: \x07\n", 2, "a syntax error (a control character)", "YAML"),
        ("a: &x 1\n", 1, "an anchor (&)", "plain YAML, at most 16 levels deep"),
        ("a: 1\nb: *x\n", 2, "an alias (*)", "plain YAML, at most 16 levels deep"),
        ("a: !!python/name:os.system x\n", 1, "a tag (!)", "plain YAML, at most 16 levels deep"),
        ("[" * 17, 1, "more than 16 levels", "plain YAML, at most 16 levels deep"),
        ("a" * (1024**2 + 1), None, "more than 1MiB", "at most 1MiB"),
    ],
)
def test_a_file_that_is_not_the_yaml_we_take_is_refused(
    text: str, line: int | None, found: str, expected: str, tmp_path: Path
) -> None:
    assert said(tmp_path, text) == [(line, "(document)", found, expected)]


def test_a_file_that_is_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_bytes(b"a: 1\nb: \xff" + SECRET.encode())
    with pytest.raises(ConfigInvalid) as refused:
        load_config(file)
    assert (
        str(refused.value)
        == f"{file}:2: (document): found bytes that are not UTF-8; expected UTF-8"
    )


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_bytes(b"\xef\xbb\xbfroutes:\r\n  one: {provider: stripe, secrets: [env:A]}\r\n")
    assert load_config(file).routes[0].line == 2


def test_a_missing_file_is_a_problem_that_names_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    with pytest.raises(ConfigInvalid) as missing:
        load_config(file)
    assert str(missing.value) == (
        f"{file}: (document): found no such file; expected the routes "
        "(GATEWAY_CONFIG names the file, `gateway init` makes a project)"
    )
    file.mkdir()
    with pytest.raises(ConfigInvalid) as folder:
        load_config(file)
    assert str(folder.value) == (
        f"{file}: (document): found Is a directory; expected a file that can be read"
    )


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x, x]\n" + "".join(f"{c}: &{c} [*a, *a]\n" for c in "bcdefghijk"),
        "[" * 1_000_000,
        "{a: " * 200_000,
        "- " * 500_000,
    ],
)
def test_a_bomb_is_refused_before_it_goes_off(bomb: str, tmp_path: Path) -> None:
    started = time.process_time()
    assert problems(tmp_path, bomb)
    assert time.process_time() - started < 5


def test_many_routes_side_by_side_are_not_deep(tmp_path: Path) -> None:
    routes = (f"  r{n}: {{provider: stripe, secrets: [env:A]}}\n" for n in range(50))
    assert len(load(tmp_path, f"routes:\n{''.join(routes)}").routes) == 50


def test_yaml_is_read_as_editors_read_it(tmp_path: Path) -> None:
    config = load(tmp_path, "routes: {on: {provider: stripe, secrets: [env:A], types: [no, 1:30]}}")
    assert config.routes[0].name == "on"
    assert config.routes[0].types == ("no", "1:30")


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = f"""\
    schema: a.sql
    defaults: {{timeout: 5, retry: {{attempts: 99}}}}
    routes:
      one:
        provider: stripe
        secrets: [{SECRET}, {SECRET}]
        tolerance: 0s
        retention: {{key: 1d, kay: 1d}}
        path: /webhooks/two
        path: /x
      two:
        provider: nobody
        secrets: [env:A]
        secret: {SECRET}
      three:
        provider: github
        livemode: true
        tolerance: 5m
    """
    assert [(line, key) for line, key, _, _ in said(tmp_path, text)] == [
        (1, "schema"),
        (2, "defaults.timeout"),
        (2, "defaults.retry.attempts"),
        (6, "routes.one.secrets[0]"),
        (6, "routes.one.secrets[1]"),
        (7, "routes.one.tolerance"),
        (8, "routes.one.retention.key"),
        (8, "routes.one.retention.kay"),
        (10, "routes.one.path"),
        (11, "routes.two.path"),
        (12, "routes.two.provider"),
        (14, "routes.two.secret"),
        (15, "routes.three.secrets"),
        (17, "routes.three.livemode"),
        (18, "routes.three.tolerance"),
    ]


@pytest.mark.parametrize(
    ("types", "type", "wanted"),
    [
        (None, "anything", True),
        (("invoice.*",), "invoice.paid", True),
        (("invoice.*",), "Invoice.paid", False),
        (("invoice.*",), "charge.failed", False),
        (("charge.failed", "invoice.*"), "charge.failed", True),
        (("*",), "ping", True),
        (("invoice",), "invoice.paid", False),
    ],
)
def test_a_route_wants_the_types_that_it_lists(
    types: tuple[str, ...] | None, type: str, wanted: bool
) -> None:
    assert a_route(types=types).wants(Envelope(id="1", type=type)) is wanted


@pytest.mark.parametrize(
    ("route_mode", "event_mode", "wanted"),
    [
        (None, True, True),
        (None, False, True),
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (True, None, True),
    ],
)
def test_a_route_wants_the_mode_that_it_names_and_loses_nothing_without_one(
    route_mode: bool | None, event_mode: bool | None, wanted: bool
) -> None:
    route = a_route(livemode=route_mode)
    assert route.wants(Envelope(id="1", type="a", livemode=event_mode)) is wanted
    assert not a_route(livemode=route_mode, types=("b",)).wants(
        Envelope(id="1", type="a", livemode=event_mode)
    )


TWO_ROUTES = """\
routes:
  one:
    provider: stripe
    secrets:
      - env:NEW
      - file:/nowhere/old
  two: {provider: github, secrets: [env:SAME, env:SAME]}
"""


def test_every_secret_that_cannot_be_had_is_a_problem_at_its_line(tmp_path: Path) -> None:
    config = load(tmp_path, TWO_ROUTES)
    with pytest.raises(ConfigInvalid) as refused:
        check_secrets(config, {"SAME": f"{SECRET} "}, {})
    file, expected = str(tmp_path / "routes.yaml"), "the signing secret in it, and nothing else"
    alone = "the secret without anything around it"
    assert refused.value.problems == (
        Problem(
            file=file,
            line=5,
            key="routes.one.secrets[0]",
            found="env:NEW, which is not set",
            expected=expected,
        ),
        Problem(
            file=file,
            line=6,
            key="routes.one.secrets[1]",
            found="file:/nowhere/old, but there is no /nowhere/old",
            expected=expected,
        ),
        Problem(
            file=file,
            line=7,
            key="routes.two.secrets[0]",
            found="env:SAME, which ends with a space",
            expected=alone,
        ),
        Problem(
            file=file,
            line=7,
            key="routes.two.secrets[1]",
            found="env:SAME, which ends with a space",
            expected=alone,
        ),
    )
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_secrets_come_by_route_and_two_may_be_equal(tmp_path: Path) -> None:
    config = load(tmp_path, TWO_ROUTES)
    environ = {"NEW": "new", "SAME": SECRET}
    secrets = check_secrets(config, environ, {"file:/nowhere/old": "made up"})
    assert {name: [s.reveal() for s in values] for name, values in secrets.items()} == {
        "one": [b"new", b"made up"],
        "two": [SECRET.encode(), SECRET.encode()],
    }
    assert SECRET not in repr(secrets)


def test_a_secret_may_expire(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """\
        routes:
          one:
            provider: stripe
            secrets:
              - env:NEW
              - {secret: env:OLD, expires_at: 2026-12-01T02:00:00+02:00}
              - {secret: "file:/run/older", expires_at: 2026-12-01}
              - secret: env:LASTING
          jobs:
            provider: publish
            tokens: [env:T, {secret: env:U, expires_at: 2026-12-01T00:00}]
        """,
    )
    end = datetime(2026, 12, 1, tzinfo=UTC)
    assert [[(str(ref), ref.expires_at) for ref in route.secrets] for route in config.routes] == [
        [("env:NEW", None), ("env:OLD", end), ("file:/run/older", end), ("env:LASTING", None)],
        [("env:T", None), ("env:U", end)],
    ]
    assert not config.routes[0].secrets[1].has_expired(end - timedelta(microseconds=1))
    assert config.routes[0].secrets[1].has_expired(end)


EXPIRING = """\
routes:
  one:
    provider: stripe
    secrets: [env:NEW, {{secret: env:OLD, expires_at: {end}}}]
"""


def test_an_expired_secret_may_be_gone_but_not_one_that_still_counts(tmp_path: Path) -> None:
    gone = load(tmp_path, EXPIRING.format(end="2020-01-01"))
    [new] = check_secrets(gone, {"NEW": "new"}, {})["one"]
    assert (new.reveal(), str(new.ref)) == (b"new", "env:NEW")
    kept = check_secrets(gone, {"NEW": "new", "OLD": "old"}, {})["one"]
    assert [str(secret.ref) for secret in kept] == ["env:NEW", "env:OLD"]
    needed = load(tmp_path, EXPIRING.format(end="2999-01-01"))
    with pytest.raises(ConfigInvalid) as refused:
        check_secrets(needed, {"NEW": "new"}, {})
    assert [p.key for p in refused.value.problems] == ["routes.one.secrets[1]"]


@pytest.mark.parametrize(
    ("item", "is_valid"),
    [
        ("{secret: env:A}", True),
        ("{secret: env:A, expires_at: '2026-12-01T00:00:00Z'}", True),
        ("{secret: env:A, expires_at: '2026-12-01'}", True),
        ("{secret: literal}", False),
        ("{secret: env:A, expires_at: 30d}", False),
        ("{secret: env:A, until: '2026-12-01'}", False),
        ("{expires_at: '2026-12-01'}", False),
    ],
)
def test_the_json_schema_knows_secrets_that_expire(
    item: str, is_valid: bool, tmp_path: Path
) -> None:
    text = f"routes: {{one: {{provider: stripe, secrets: [{item}]}}}}"
    assert schema_accepts(text) == is_valid
    if is_valid:
        load(tmp_path, text)
    else:
        assert problems(tmp_path, text)


def schema_accepts(text: str) -> bool:
    return Draft202012Validator(json_schema()).is_valid(yaml.load(text, Loader=yaml.SafeLoader))


def test_the_json_schema_is_one_and_accepts_the_shipped_file() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert schema_accepts(SHIPPED.read_text())
    json.dumps(schema)


@pytest.mark.parametrize(
    "line",
    [
        *("tolerence: 5m", "tolerance: 5", "max_body: -1", "path: x", "types: []", "livemode: 1"),
        *("retention: {keys: 35d}", "handlers: a", "repeats: ignore", "handlers: [a b]", "path:"),
        "spool: sometimes",
    ],
)
def test_the_json_schema_refuses_what_the_check_refuses(line: str, tmp_path: Path) -> None:
    assert schema_accepts(route_with(""))
    assert problems(tmp_path, route_with(line))
    assert not schema_accepts(route_with(line))


@pytest.mark.parametrize(
    "text",
    [
        "routes: {}",
        "{}",
        "routes: {One: {provider: stripe, secrets: [env:A]}}",
        "routes: {one: {provider: nobody, secrets: [env:A]}}",
        "routes: {one: {provider: stripe, secrets: [literal]}}",
        "routes: {one: {provider: stripe, secrets: []}}",
        "routes: {one: {provider: stripe}}",
        "{routes: {one: {provider: stripe, secrets: [env:A]}}, defaults: {retry: {attempts: 21}}}",
        "{routes: {one: {provider: stripe, secrets: [env:A]}}, defaults: {retry: {bas: 1s}}}",
        "{routes: {one: {provider: stripe, secrets: [env:A]}}, defaults: {timout: 1s}}",
        "{routes: {one: {provider: stripe, secrets: [env:A]}}, unknown: 1}",
    ],
)
def test_the_json_schema_refuses_the_wrong_shapes_too(text: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text)
    assert not schema_accepts(text)


def test_every_key_of_the_json_schema_is_described() -> None:
    schema = json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for key, value in section.get("properties", {}).items():
            target = value.get("$ref", "").rpartition("/")[2]
            assert value.get("description") or schema["$defs"][target]["description"], key


def test_the_json_schema_says_defaults_as_the_file_would() -> None:
    sections = json_schema()["$defs"]
    assert sections["DefaultsSection"]["properties"]["timeout"]["default"] == "1m"
    assert sections["RetrySection"]["properties"]["cap"]["default"] == "6h"
    assert "default" not in sections["RouteSection"]["properties"]["tolerance"]


def test_the_fields_that_nobody_is_to_see_are_read(tmp_path: Path) -> None:
    text = route_with("redact: [data.object.email, 'items.*.phone']")
    (route,) = load(tmp_path, text).routes
    assert route.redaction is not None
    assert [str(path) for path in route.redaction.paths] == ["data.object.email", "items.*.phone"]
    assert route.redaction.at is RedactAt.SHOW
    (route,) = load(tmp_path, route_with("redact: [a]\n    redact_at: store")).routes
    assert route.redaction == Redaction((FieldPath(("a",)),), RedactAt.STORE)
    assert load(tmp_path, route_with("max_body: 1MiB")).routes[0].redaction is None


FORMERLY = """
    routes:
      payments:
        provider: stripe
        secrets: [env:A]
        formerly: {payments}
      github:
        provider: github
        secrets: [env:B]
        formerly: {github}
"""


def test_former_names_of_a_route_are_read(tmp_path: Path) -> None:
    config = load(tmp_path, FORMERLY.format(payments="[stripe, old]", github="[]"))
    payments, github = config.routes
    assert (payments.formerly, github.formerly) == (("stripe", "old"), ())
    assert payments.label == payments.name == "payments"


@pytest.mark.parametrize(
    ("payments", "github", "key", "found"),
    [
        ("[github]", "[]", "routes.payments.formerly[0]", "'github', which is a route now"),
        ("[payments]", "[]", "routes.payments.formerly[0]", "'payments', which is a route now"),
        ("[old]", "[new, old]", "routes.github.formerly[1]", "'old', which payments claims, too"),
    ],
)
def test_a_former_name_that_is_not_free_is_refused(
    tmp_path: Path, payments: str, github: str, key: str, found: str
) -> None:
    [problem] = problems(tmp_path, FORMERLY.format(payments=payments, github=github))
    assert (problem.key, problem.found) == (key, found)
