"""Settings: every variable is read, every bad one is reported, and no URL is ever shown."""

import re
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Rate
from gateway.base.networks import make_networks, split_hosts
from gateway.config.development import RunningUp, write_up
from gateway.config.settings import VARIABLES, Settings, discover, load_settings

PASSWORD = "hunter2"
DATABASE_URL = f"postgresql://gateway:{PASSWORD}@db.example/gateway"
REDIS_URL = f"rediss://:{PASSWORD}@redis.example:6380/1"
TOKEN = "0123456789abcdef-token"
ANY_TEXT = {
    "GATEWAY_CONFIG",
    "GATEWAY_DATA_DIR",
    "GATEWAY_DEV_SECRETS",
    "GATEWAY_ADMIN_TOKEN",
    "GATEWAY_METRICS_TOKEN",
    "GATEWAY_READ_TOKEN",
}


def problems(environ: dict[str, str]) -> dict[str, Problem]:
    with pytest.raises(ConfigInvalid) as refused:
        load_settings(environ)
    shown = "".join(traceback.format_exception(refused.value))
    assert PASSWORD not in shown
    assert refused.value.__context__ is None
    return {problem.key: problem for problem in refused.value.problems}


def test_without_variables_the_defaults_hold() -> None:
    settings = load_settings({})
    assert settings == Settings(
        database_url=None,
        redis_url=None,
        config=Path("config/routes.yaml"),
        data_dir=Path(".gateway"),
        host="127.0.0.1",
        port=8000,
        worker_port=None,
        lease=timedelta(seconds=15),
        sweep=timedelta(seconds=5),
        grace=timedelta(seconds=30),
        linger=timedelta(0),
        log_format="auto",
        log_level="info",
        concurrency=16,
        handler_connections=None,
        max_leased=32 * 1024**2,
        max_connections=10_000,
        max_in_flight=512,
        max_buffered=256 * 1024**2,
        spool_size=1024**3,
        queue_depth=1000,
        engines="auto",
        dev_secrets=None,
    )


def test_every_variable_is_read() -> None:
    environ = {
        "GATEWAY_DATABASE_URL": DATABASE_URL,
        "GATEWAY_REDIS_URL": REDIS_URL,
        "GATEWAY_CONFIG": "other.yaml",
        "GATEWAY_DATA_DIR": "/var/lib/gateway",
        "GATEWAY_HOST": "::",
        "GATEWAY_PORT": "0",
        "GATEWAY_WORKER_PORT": "8001",
        "GATEWAY_LEASE": "1m30s",
        "GATEWAY_SWEEP": "100ms",
        "GATEWAY_GRACE": "0s",
        "GATEWAY_LINGER": "5s",
        "GATEWAY_LOG_FORMAT": "json",
        "GATEWAY_LOG_LEVEL": "debug",
        "GATEWAY_CONCURRENCY": "1000",
        "GATEWAY_HANDLER_CONNECTIONS": "4",
        "GATEWAY_MAX_LEASED": "1MiB",
        "GATEWAY_MAX_CONNECTIONS": "16",
        "GATEWAY_MAX_IN_FLIGHT": "1",
        "GATEWAY_MAX_BUFFERED": "1GiB",
        "GATEWAY_TRUSTED_PROXIES": "10.0.0.0/8,::1",
        "GATEWAY_REFUSED_RATE": "3/10s",
        "GATEWAY_SPOOL_SIZE": "0B",
        "GATEWAY_QUEUE_DEPTH": "7",
        "GATEWAY_AUDIT_RETENTION": "30d",
        "GATEWAY_REJECTED_ROWS": "0",
        "GATEWAY_REJECTED_SIZE": "1MiB",
        "GATEWAY_REJECTED_BODY": "0B",
        "GATEWAY_REJECTED_RETENTION": "1h",
        "GATEWAY_TRACES": "on",
        "GATEWAY_ENGINES": "wheels",
        "GATEWAY_DEV_SECRETS": "secrets.json",
        "GATEWAY_ADMIN_TOKEN": TOKEN,
        "GATEWAY_METRICS_TOKEN": TOKEN[::-1],
        "GATEWAY_READ_TOKEN": TOKEN * 2,
        "GATEWAY_PUBLIC_URL": "https://hooks.example.com/in/",
        "GATEWAY_TEST_DATABASE_URL": DATABASE_URL,
    }
    assert environ.keys() == VARIABLES.keys()
    settings = load_settings(environ | {"HOME": "/root", "gateway_port": "1"})
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == DATABASE_URL
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == REDIS_URL
    assert settings.config == Path("other.yaml")
    assert settings.data_dir == Path("/var/lib/gateway")
    assert (settings.host, settings.port) == ("::", 0)
    assert settings.worker_port == 8001
    assert settings.lease == timedelta(seconds=90)
    assert settings.sweep == timedelta(milliseconds=100)
    assert (settings.grace, settings.linger) == (timedelta(0), timedelta(seconds=5))
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    assert (settings.concurrency, settings.max_in_flight, settings.queue_depth) == (1000, 1, 7)
    assert (settings.max_connections, settings.max_buffered) == (16, 1024**3)
    assert settings.max_leased == 1024**2
    assert settings.spool_size == 0
    assert settings.trusted_proxies == make_networks(["10.0.0.0/8", "::1"])
    assert settings.refused_rate == Rate(count=3, period=timedelta(seconds=10))
    assert (settings.rejected_rows, settings.rejected_size) == (0, 1024**2)
    assert (settings.rejected_body, settings.rejected_retention) == (0, timedelta(hours=1))
    assert settings.engines == "wheels"
    assert settings.public_url == "https://hooks.example.com/in"
    assert settings.dev_secrets == Path("secrets.json")
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == TOKEN
    assert settings.metrics_token is not None
    assert settings.metrics_token.get_secret_value() == TOKEN[::-1]
    assert settings.test_database_url is not None
    assert settings.test_database_url.get_secret_value() == DATABASE_URL


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings(dict.fromkeys(VARIABLES, "")) == load_settings({})


def test_the_process_environment_is_read_when_no_other_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_PORT", "4711")
    assert load_settings().port == 4711
    assert load_settings({}).port == 8000


def test_a_dotenv_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("GATEWAY_PORT=4711\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings({}).port == 8000


@pytest.mark.parametrize(
    ("variable", "value", "found", "expected"),
    [
        ("GATEWAY_PORT", "http", "'http'", "a whole number"),
        ("GATEWAY_PORT", "80.5", "'80.5'", "a whole number"),
        ("GATEWAY_PORT", "-1", "'-1'", "at least 0"),
        ("GATEWAY_PORT", "65536", "'65536'", "at most 65535"),
        ("GATEWAY_HOST", "a b", "'a b'", r"text that matches ^[^\s/@]+$"),
        ("GATEWAY_LEASE", "15", "'15'", "a duration such as 250ms, 15s, 5m, 1h30m or 35d"),
        ("GATEWAY_LEASE", "999ms", "999ms", "1s to 1h"),
        ("GATEWAY_SWEEP", "99ms", "99ms", "100ms to 1h"),
        ("GATEWAY_GRACE", "2h", "2h", "0s to 1h"),
        ("GATEWAY_LOG_FORMAT", "xml", "'xml'", "'auto', 'console' or 'json'"),
        ("GATEWAY_LOG_LEVEL", "INFO", "'INFO'", "'debug', 'info', 'warning' or 'error'"),
        ("GATEWAY_CONCURRENCY", "0", "'0'", "at least 1"),
        ("GATEWAY_CONCURRENCY", "1001", "'1001'", "at most 1000"),
        ("GATEWAY_MAX_IN_FLIGHT", "0", "'0'", "at least 1"),
        ("GATEWAY_MAX_BUFFERED", "1 GiB", "'1 GiB'", "a size such as 64KiB, 1MiB or 1000000"),
        ("GATEWAY_MAX_BUFFERED", "1023KiB", "1023KiB", "1MiB to 1024GiB"),
        ("GATEWAY_QUEUE_DEPTH", "0", "'0'", "at least 1"),
        ("GATEWAY_ENGINES", "docker", "'docker'", "'auto', 'system' or 'wheels'"),
    ],
)
def test_a_bad_variable_is_a_problem(variable: str, value: str, found: str, expected: str) -> None:
    (problem,) = problems({variable: value}).values()
    assert problem == Problem(file="environment", key=variable, found=found, expected=expected)


@pytest.mark.parametrize(
    ("scheme", "written"),
    [
        ("postgresql+asyncpg", "postgresql"),
        ("postgresql+psycopg2", "postgresql"),
        ("postgres+psycopg", "postgres"),
        ("postgis", None),
        (f"postgresql+{PASSWORD}", None),
        ("mysql+asyncmy", None),
    ],
)
@pytest.mark.parametrize("variable", ["GATEWAY_DATABASE_URL", "GATEWAY_TEST_DATABASE_URL"])
def test_a_url_of_sqlalchemy_gets_a_hint(variable: str, scheme: str, written: str | None) -> None:
    found = problems({variable: f"{scheme}://u:{PASSWORD}@h/d"})[variable]
    plain = "a URL: postgresql://... or postgres://..."
    hint = f" (without the driver that SQLAlchemy names: {written}://..., not {scheme}://...)"
    assert found.found == "a value (not shown)"
    assert found.expected == plain + (hint if written else "")


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{PASSWORD}@h/d",
        PASSWORD,
        "postgresql://",
        f"POSTGRES://u:{PASSWORD}@h",
        "h:5432",
    ],
)
def test_a_url_of_another_kind_is_refused_and_not_shown(url: str) -> None:
    found = problems({"GATEWAY_DATABASE_URL": url, "GATEWAY_REDIS_URL": url})
    assert found["GATEWAY_DATABASE_URL"].found == "a value (not shown)"
    assert found["GATEWAY_DATABASE_URL"].expected == "a URL: postgresql://... or postgres://..."
    assert found["GATEWAY_REDIS_URL"].found == "a value (not shown)"
    assert found["GATEWAY_REDIS_URL"].expected == (
        "a URL: redis://... or rediss://... or unix://..."
        " or redis+sentinel://... or rediss+sentinel://..."
    )


@pytest.mark.parametrize("variable", sorted(VARIABLES))
def test_a_url_in_the_wrong_variable_is_not_shown_either(variable: str) -> None:
    try:
        settings = load_settings({variable: f"http://user:{PASSWORD}@host"})
    except ConfigInvalid as refused:
        shown = str(refused)
    else:
        assert variable in ANY_TEXT
        shown = str(settings.port)
    assert PASSWORD not in shown


def test_an_unknown_variable_is_a_problem_that_names_the_closest() -> None:
    found = problems({"GATEWAY_DATABSE_URL": DATABASE_URL, "GATEWAY_FOO": PASSWORD})
    assert found.keys() == {"GATEWAY_DATABSE_URL", "GATEWAY_FOO"}
    typo, foo = found["GATEWAY_DATABSE_URL"], found["GATEWAY_FOO"]
    assert (typo.file, typo.found) == ("environment", "an unknown variable")
    assert typo.expected.endswith("(did you mean GATEWAY_DATABASE_URL?)")
    assert foo.expected.startswith("one of GATEWAY_ADMIN_TOKEN, GATEWAY_AUDIT_RETENTION, ")
    assert all(name in foo.expected for name in VARIABLES)


def test_every_bad_variable_is_reported_at_once() -> None:
    environ = {
        "GATEWAY_PROT": "8000",
        "GATEWAY_PORT": "x",
        "GATEWAY_LEASE": "x",
        "GATEWAY_ENGINES": "x",
        "GATEWAY_REDIS_URL": "x",
        "GATEWAY_HOST": "127.0.0.1",
    }
    assert problems(environ).keys() == environ.keys() - {"GATEWAY_HOST"}


@pytest.mark.parametrize("token", ["short", "x" * 513, "a token with spaces in", "t\u00f6k" * 10])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused_and_not_shown(token: str) -> None:
    problem = problems({"GATEWAY_ADMIN_TOKEN": token})["GATEWAY_ADMIN_TOKEN"]
    assert token not in str(problem)
    assert "visible ASCII" in problem.expected
    assert TOKEN not in repr(load_settings({"GATEWAY_ADMIN_TOKEN": TOKEN}))


@pytest.mark.parametrize(
    "url",
    [
        "hooks.example.com",
        "ftp://hooks.example.com",
        "https://",
        "https://hooks.example.com?a=b",
        "https://hooks.example.com/#top",
        "https://hooks.example.com:0",
        "https://hooks.example.com:99999",
        "https://[::1",
        "https://hooks.example.com/a b",
        f"https://ann:{PASSWORD}@hooks.example.com",
    ],
)
def test_a_public_url_is_one_to_which_paths_can_be_added(url: str) -> None:
    problem = problems({"GATEWAY_PUBLIC_URL": url})["GATEWAY_PUBLIC_URL"]
    assert "https://hooks.example.com" in problem.expected
    assert PASSWORD not in str(problem)


def test_urls_do_not_show_in_settings() -> None:
    settings = load_settings({"GATEWAY_DATABASE_URL": DATABASE_URL, "GATEWAY_REDIS_URL": REDIS_URL})
    for shown in (
        repr(settings),
        str(settings),
        f"{settings.database_url!r}",
        settings.model_dump_json(),
    ):
        assert PASSWORD not in shown


def test_urls_do_not_show_when_settings_are_built_by_hand() -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"database_url": f"mysql://u:{PASSWORD}@h", "prot": PASSWORD})
    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in repr(refused.value)


def test_settings_are_not_changed_after_they_are_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings({}).port = 1


def test_every_setting_is_described_in_one_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert re.fullmatch(r"[A-Z].+[^.]\.", field.description or ""), name


def up(tmp_path: Path) -> RunningUp:
    running = RunningUp(
        pid=1,
        url="http://127.0.0.1:8000",
        database_url="postgresql://dev@127.0.0.1/gateway",
        redis_url="redis://127.0.0.1:7777",
        dev_secrets=str(tmp_path / "secrets.json"),
    )
    write_up(tmp_path, running)
    return running


def test_loading_does_not_look_for_a_running_up(tmp_path: Path) -> None:
    up(tmp_path)
    settings = load_settings({"GATEWAY_DATA_DIR": str(tmp_path)})
    assert (settings.database_url, settings.redis_url, settings.dev_secrets) == (None, None, None)


def test_discovery_fills_in_all_that_is_missing(tmp_path: Path) -> None:
    running = up(tmp_path)
    settings = discover(load_settings({"GATEWAY_DATA_DIR": str(tmp_path)}))
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == running.database_url
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == running.redis_url
    assert settings.dev_secrets == tmp_path / "secrets.json"


def test_discovery_leaves_what_is_set(tmp_path: Path) -> None:
    running = up(tmp_path)
    environ = {
        "GATEWAY_DATA_DIR": str(tmp_path),
        "GATEWAY_DATABASE_URL": DATABASE_URL,
        "GATEWAY_DEV_SECRETS": "mine.json",
    }
    settings = discover(load_settings(environ))
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == DATABASE_URL
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == running.redis_url
    assert settings.dev_secrets == Path("mine.json")


def test_discovery_ignores_an_absent_or_broken_file(tmp_path: Path) -> None:
    settings = load_settings({"GATEWAY_DATA_DIR": str(tmp_path)})
    assert discover(settings) == settings
    (tmp_path / "up.json").write_text('{"database_url": 5')
    assert discover(settings) == settings


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://gw:hunter2/x@localhost/db",
        "postgresql://gw:hunter2#x@localhost/db",
        "postgresql://gw:hunter2@localhost:99999/db",
        "postgresql://gw:hunter2@localhost:0/db",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="percent-encoded password") as error:
        load_settings({"GATEWAY_DATABASE_URL": url})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("url", ["redis://:hunter2/x@localhost", "redis://localhost/hunter2"])
def test_a_redis_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="percent-encoded password") as error:
        load_settings({"GATEWAY_REDIS_URL": url})
    assert "hunter2" not in str(error.value)


def test_a_database_url_may_name_several_servers() -> None:
    url = f"postgresql://gateway:{PASSWORD}@one:5432,two:5433/gateway?sslmode=require"
    settings = load_settings({"GATEWAY_DATABASE_URL": url})
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == url
    for ports in ("5432,two:0", "5432,two:x", "5432,two:99999"):
        broken = f"postgresql://gateway:{PASSWORD}@one:{ports}/gateway"
        assert "port" in problems({"GATEWAY_DATABASE_URL": broken})["GATEWAY_DATABASE_URL"].expected


@pytest.mark.parametrize(
    ("url", "alone"),
    [
        ("postgresql://h/name", ["postgresql://h/name"]),
        ("postgresql://u:a,b@h:1/name", ["postgresql://u:a,b@h:1/name"]),
        (
            "postgresql://u:p@a:1,b/n?sslmode=require&x=1,2",
            [
                "postgresql://u:p@a:1/n?sslmode=require&x=1,2",
                "postgresql://u:p@b/n?sslmode=require&x=1,2",
            ],
        ),
        ("postgresql://a,b?x=@", ["postgresql://a?x=@", "postgresql://b?x=@"]),
        ("postgresql:///n?host=/a,/b", ["postgresql:///n?host=/a,/b"]),
    ],
)
def test_a_url_of_several_hosts_is_one_of_each(url: str, alone: list[str]) -> None:
    assert split_hosts(url) == alone
