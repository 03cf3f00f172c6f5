"""The settings from the environment: one per `GATEWAY_` variable."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.base import redis_urls
from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Rate
from gateway.base.networks import NetworksText, split_hosts
from gateway.base.problems import HIDDEN, Unexpected, one_of, refusals
from gateway.base.redis_urls import read_redis_url
from gateway.base.secrets import BEARER_EXPECTED, BEARER_PATTERN
from gateway.base.units import Duration, RateText, Size, holding, lasting
from gateway.config.development import SECRETS_FILE, read_up

PREFIX: Final = "GATEWAY_"
MIB: Final = 1024**2
SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

SQLALCHEMY_DRIVERS: Final = frozenset(
    {"asyncpg", "pg8000", "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi"}
)
"""From https://docs.sqlalchemy.org/en/20/dialects/postgresql.html"""


def _schemes(*schemes: str) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        _check_scheme(text, schemes)
        if not _is_readable(text):
            raise Unexpected(
                found=HIDDEN,
                expected="a URL with a port from 1 to 65535, and a percent-encoded password",
            )
        return url

    return AfterValidator(check)


def _redis() -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        _check_scheme(text, redis_urls.SCHEMES)
        try:
            read_redis_url(text)
        except ValueError:
            raise Unexpected(found=HIDDEN, expected=redis_urls.EXPECTED) from None
        return url

    return AfterValidator(check)


def _check_scheme(url: str, schemes: Sequence[str]) -> None:
    scheme, _, rest = url.partition("://")
    if scheme not in schemes or not rest:
        allowed = " or ".join(f"{scheme}://..." for scheme in schemes)
        raise Unexpected(found=HIDDEN, expected=f"a URL: {allowed}{_driver_hint(scheme, schemes)}")


def _driver_hint(scheme: str, schemes: Sequence[str]) -> str:
    """Return a hint for a URL of SQLAlchemy, or an empty text.

    An unknown driver is not shown, because it may be a part of a password.
    """
    dialect, _, driver = scheme.partition("+")
    if dialect not in schemes or driver not in SQLALCHEMY_DRIVERS:
        return ""
    return f" (without the driver that SQLAlchemy names: {dialect}://..., not {scheme}://...)"


def _is_readable(url: str) -> bool:
    """Return whether the libraries can parse the URL.

    If they cannot, their errors quote it, including the password.
    """
    return all(map(_is_readable_alone, split_hosts(url)))


def _is_readable_alone(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return not parts.fragment and port != 0


def _bearer() -> AfterValidator:
    def check(token: SecretStr) -> SecretStr:
        if not re.fullmatch(BEARER_PATTERN, token.get_secret_value()):
            raise Unexpected(found=HIDDEN, expected=BEARER_EXPECTED)
        return token

    return AfterValidator(check)


def _public() -> AfterValidator:
    """Validate a base URL to which paths can be appended."""

    def check(url: str) -> str:
        expected = "a URL such as https://hooks.example.com, without credentials and query"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise Unexpected(found=HIDDEN, expected=expected) from None
        known = parts.scheme in {"http", "https"} and parts.hostname and port != 0
        if not known or "@" in parts.netloc or parts.query or parts.fragment or " " in url:
            raise Unexpected(found=HIDDEN, expected=expected)
        return url.rstrip("/")

    return AfterValidator(check)


class Settings(BaseSettings):
    """The settings of every process; `load_settings` builds them from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    database_url: Annotated[SecretStr, _schemes("postgresql", "postgres")] | None = Field(
        default=None,
        description="The Postgres database that holds the ledger and your own tables.",
    )
    redis_url: Annotated[SecretStr, _redis()] | None = Field(
        default=None,
        description="The Redis through which workers are woken.",
    )
    config: Path = Field(
        default=Path("config/routes.yaml"),
        description="The file with the routes.",
    )
    data_dir: Path = Field(
        default=Path(".gateway"),
        description="Where `gateway up` and the spool keep their files.",
    )
    host: str = Field(
        default="127.0.0.1",
        pattern=r"^[^\s/@]+$",
        description="The address on which processes listen.",
    )
    port: int = Field(
        default=8000,
        ge=0,
        le=65_535,
        description="The port on which `gateway serve` listens; 0 takes any free one.",
    )
    worker_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="The port on which a worker shows /healthz, /readyz and /metrics.",
    )
    lease: Annotated[Duration, lasting(SECOND, HOUR)] = Field(
        default=15 * SECOND,
        description="How long a delivery stays with a worker that is not heard of any more.",
    )
    sweep: Annotated[Duration, lasting(SECOND / 10, HOUR)] = Field(
        default=5 * SECOND,
        description="How often workers look into Postgres for due deliveries and lost leases.",
    )
    grace: Annotated[Duration, lasting(timedelta(0), HOUR)] = Field(
        default=30 * SECOND,
        description="How long a process that is told to stop may finish what it has begun.",
    )
    linger: Annotated[Duration, lasting(timedelta(0), 300 * SECOND)] = Field(
        default=timedelta(0),
        description="How long `gateway serve` goes on answering, not ready, when told to stop.",
    )
    traces: Literal["on", "off"] = Field(
        default="off",
        description="Whether to send OpenTelemetry spans; where to, the `OTEL_...` variables say.",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="How log lines look; `auto` is `console` on a terminal and `json` elsewhere.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The least important log lines that are written.",
    )
    concurrency: int = Field(
        default=16,
        ge=1,
        le=1000,
        description="How many deliveries one worker runs at once.",
    )
    handler_connections: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="How many Postgres connections the handlers of one worker share.",
    )
    max_leased: Annotated[Size, holding(MIB, 1024**2 * MIB)] = Field(
        default=32 * MIB,
        description="How many body bytes one worker holds before it leases no further large body.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=16,
        le=1_000_000,
        description="How many connections one `gateway serve` process keeps open.",
    )
    max_in_flight: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="How many webhook requests one `gateway serve` process takes at once.",
    )
    max_buffered: Annotated[Size, holding(MIB, 1024**2 * MIB)] = Field(
        default=256 * MIB,
        description="How many body bytes one `gateway serve` process holds at once.",
    )
    trusted_proxies: NetworksText | None = Field(
        default=None,
        description="Proxies whose X-Forwarded-For is believed: addresses and networks, by commas.",
    )
    refused_rate: RateText = Field(
        default=Rate(count=20, period=SECOND),
        description="How many refused requests of one address are looked at.",
    )
    spool_size: Annotated[Size, holding(0, 1024**2 * MIB)] = Field(
        default=1024 * MIB,
        description="How many bytes one `gateway serve` keeps on disk while Postgres is away.",
    )
    queue_depth: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="How many arq jobs wait in Redis before the backlog stays in Postgres.",
    )
    audit_retention: Annotated[Duration, lasting(30 * DAY, 36_500 * DAY)] = Field(
        default=400 * DAY,
        description="How long the audit log and bulk operations are kept.",
    )
    rejected_rows: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="How many refused requests are kept of each route; 0 keeps none.",
    )
    rejected_size: Annotated[Size, holding(0, 1024 * MIB)] = Field(
        default=16 * MIB,
        description="How many bytes of refused requests are kept of each route.",
    )
    rejected_body: Annotated[Size, holding(0, 25 * MIB)] = Field(
        default=MIB // 4,
        description="The largest body of a refused request that is kept.",
    )
    rejected_retention: Annotated[Duration, lasting(HOUR, 90 * DAY)] = Field(
        default=7 * DAY,
        description="How long refused requests are kept.",
    )
    engines: Literal["auto", "system", "wheels"] = Field(
        default="auto",
        description="Where `gateway up` takes Postgres and Redis from when no URL is set.",
    )
    dev_secrets: Path | None = Field(
        default=None,
        description="The file with made-up secrets; `gateway up` sets it for its children.",
    )
    admin_token: Annotated[SecretStr, _bearer()] | None = Field(
        default=None,
        description="The token of the Admin API; without it there is none.",
    )
    metrics_token: Annotated[SecretStr, _bearer()] | None = Field(
        default=None,
        description="A token that may read /metrics, and nothing else.",
    )
    read_token: Annotated[SecretStr, _bearer()] | None = Field(
        default=None,
        description="A token with which the console and the Admin API can be looked at only.",
    )
    public_url: Annotated[str, _public()] | None = Field(
        default=None,
        description="Where senders find `gateway serve`: https://hooks.example.com.",
    )
    test_database_url: Annotated[SecretStr, _schemes("postgresql", "postgres")] | None = Field(
        default=None,
        description="The server on which tests and rehearsals make their databases.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read only the given values, so that the settings of a test ignore its environment."""
        return (init_settings,)


VARIABLES: Final[Mapping[str, str]] = {
    PREFIX + name.upper(): name for name in Settings.model_fields
}


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment. An empty variable counts as not set."""
    given = {name: text for name, text in environ.items() if name.startswith(PREFIX) and text}
    problems = [_unknown(name) for name in sorted(given.keys() - VARIABLES.keys())]
    values: dict[str, Any] = {VARIABLES[name]: given[name] for name in VARIABLES if name in given}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += _refused(error)
    if problems:
        # Raised outside of `except`: pydantic's error, as the context of this one, would quote its
        # input.
        raise ConfigInvalid(problems)
    return settings


def discover(settings: Settings, *, with_kept_secrets: bool = False) -> Settings:
    """Fill in settings that are not set from the `gateway up` that runs on the same data directory.

    If none runs, the development secrets that are stored there can still be used.
    """
    up = read_up(settings.data_dir)
    if up is None:
        kept = settings.data_dir / SECRETS_FILE
        usable = with_kept_secrets and settings.dev_secrets is None and kept.exists()
        return settings.model_copy(update={"dev_secrets": kept}) if usable else settings
    known = {
        "database_url": SecretStr(up.database_url),
        "redis_url": SecretStr(up.redis_url),
        "dev_secrets": Path(up.dev_secrets) if up.dev_secrets else None,
    }
    missing = {name: value for name, value in known.items() if getattr(settings, name) is None}
    return settings.model_copy(update=missing)


def _unknown(name: str) -> Problem:
    expected = one_of(VARIABLES, like=name)
    return Problem(file="environment", key=name, found="an unknown variable", expected=expected)


def _refused(error: ValidationError) -> list[Problem]:
    return [
        Problem(
            file="environment",
            key=PREFIX + str(refusal.location[0]).upper(),
            found=refusal.found,
            expected=refusal.expected,
        )
        for refusal in refusals(error)
    ]
