"""Reads and validates routes.yaml, and resolves the secrets that it refers to."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.model import Envelope, Rate, RepeatPolicy, Retention, RetryPolicy, Spooling
from gateway.base.names import Declared, NameKind, Names
from gateway.base.networks import Networks
from gateway.base.problems import (
    SHAPES,
    Location,
    Refusal,
    Unexpected,
    as_list,
    describe,
    one_of,
    refusals,
)
from gateway.base.secrets import (
    API_KEY,
    HANDSHAKE,
    HOOK_KEY,
    LITERAL,
    REFERENCE_EXPECTED,
    REFERENCE_PATTERN,
    Secret,
    SecretRef,
    SecretUnusable,
    resolve,
    resolve_token,
)
from gateway.base.yaml_source import Document, Lines, key_path, read_document
from gateway.config.routes.alerts import AlertDestinations, Alerts, find_destinations, make_alerts
from gateway.config.routes.checks import default_key_retention, shortest_key_retention
from gateway.config.routes.fields import make_ref
from gateway.config.routes.file import (
    QueueSection,
    RetentionSection,
    RouteSection,
    RoutesFile,
    known_keys,
)
from gateway.config.routes.forward import Forward, make_forward
from gateway.config.routes.reconcile import Reconcile, read_reconcile
from gateway.config.routes.scheme import make_route_provider
from gateway.privacy.redaction import RedactAt, Redaction
from gateway.providers import Provider
from gateway.providers.publish import PUBLISH

PAYLOAD_RETENTION: Final = timedelta(days=14)
SECRET_KEYS: Final = frozenset(
    {"secrets", "tokens", "api_key", "token", "private_key", "keys", "digest_key", "verify_token"}
)
SECRET_LISTS: Final = frozenset({"secrets", "tokens", "keys"})
OUTBOUND_KEYS: Final = frozenset({"url", "headers", "sign"})
"""Keys whose values may be secrets, even if they are invalid."""
ALERT_KEYS: Final = frozenset({"alerts", "webhook", "slack", "url", "sign"})
"""Keys of `alerts` whose values may be secrets: a URL may be given in place of a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route: one inbound URL, or a queue."""

    name: str
    """The name in routes.yaml, or after `identified` the identity in the ledger."""
    provider: Provider
    path: str
    secrets: tuple[SecretRef, ...]
    """The secrets that authenticate senders: signing secrets, or the bearer tokens of a queue."""
    api_key: SecretRef | None
    tolerance: timedelta | None
    handlers: tuple[str, ...]
    max_body: int
    ack_within: timedelta
    receive_within: timedelta
    types: tuple[str, ...] | None
    livemode: bool | None
    repeats: RepeatPolicy
    spools: bool
    """Whether events are spooled to the local disk while the ledger is unreachable."""
    retention: Retention
    line: int
    dedup_window: timedelta | None = None
    """If the event id is the digest of the body: how long an identical body is a duplicate."""
    forwards: tuple[Forward, ...] = ()
    reconcile: Reconcile | None = None
    """How to ask the provider for the events that it sent. None if not configured."""
    redaction: Redaction | None = None
    """The redacted fields of its payloads."""
    allow: Networks | None = None
    """The allow list of networks. None allows all."""
    limit: Rate | None = None
    """The rate limit of verified events per process. None for no limit."""
    encrypt: bool = False
    """Whether headers, bodies, results and error messages are stored encrypted."""
    verify_token: SecretRef | None = None
    """The token that a GET handshake must contain."""
    enforce: bool = True
    """Whether unverified requests are rejected. False has an effect only in development."""
    formerly: tuple[str, ...] = ()
    """Former names."""
    label: str = ""
    """The displayed name: the name in routes.yaml, whatever the identity is."""
    unstored: frozenset[str] = field(init=False)
    """Fields of an envelope that are not stored, because they are read from redacted fields."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unstored", _unstored(self.provider, self.redaction))
        object.__setattr__(self, "label", self.label or self.name)

    def identified(self, names: Names) -> "Route":
        """Return the route with its identity in place of its name."""
        return replace(self, name=names.routes.identity(self.label))

    def redacted(self, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the body as the route may store it."""
        return body if self.redaction is None else self.redaction.store(headers, body)

    def stored(self, envelope: Envelope) -> Envelope:
        """Return the envelope without the fields that the route may not store."""
        if not self.unstored:
            return envelope
        nothing: dict[str, Any] = dict.fromkeys(self.unstored)
        return replace(envelope, **nothing)

    def wants(self, envelope: Envelope) -> bool:
        """Return whether to keep the event. An event without a mode passes the livemode filter."""
        if self.livemode is not None and envelope.livemode not in (self.livemode, None):
            return False
        return self.wants_type(envelope.type)

    def refuses_repeat(self, type: str, first_type: str) -> bool:
        """Return whether to reject a repeated body.

        It first came in an event of `first_type`, and now comes with another event id and `type`.
        """
        policy = self.provider.repeat_policy(first_type, self.repeats, type=type)
        return policy is RepeatPolicy.REFUSE

    @property
    def refused_types(self) -> tuple[str, ...]:
        """The types whose repeated bodies are rejected, if the provider lists them individually."""
        repeats = self.provider.repeats
        if repeats is None or self.repeats is RepeatPolicy.FLAG:
            return ()
        return tuple(repeats.unique or ())

    def wants_type(self, type: str) -> bool:
        """Return whether events of this type are kept."""
        return self.types is None or any(fnmatchcase(type, glob) for glob in self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The validated content of `routes.yaml`."""

    file: Path
    schema: tuple[Path, ...]
    timeout: timedelta
    retry: RetryPolicy
    routes: tuple[Route, ...]
    alerts: Alerts = field(default_factory=Alerts)
    keys: tuple[SecretRef, ...] = ()
    """The encryption keys. The first one encrypts, and all of them decrypt."""
    digest_key: SecretRef | None = None
    lines: Mapping[Location, int] = field(default_factory=dict, repr=False, compare=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The raw content of the file, for comparison with an edited one."""

    @property
    def doors(self) -> tuple[Route, ...]:
        """The routes that receive webhooks: all except queues."""
        return tuple(route for route in self.routes if not route.provider.is_queue)

    @property
    def open_queues(self) -> tuple[Route, ...]:
        """The queues that accept jobs over HTTP: those with a token."""
        return tuple(r for r in self.routes if r.provider.is_queue and r.secrets)

    @property
    def retention(self) -> dict[str, Retention]:
        """The retention of each route, by name."""
        return {route.name: route.retention for route in self.routes}

    def redaction(self, route: str) -> Redaction | None:
        """Return the redacted fields of a route's payloads."""
        return next((known.redaction for known in self.routes if known.name == route), None)

    def identified(self, names: Names) -> "Config":
        """Return the configuration with the routes' identities in place of their names."""
        return replace(self, routes=tuple(route.identified(names) for route in self.routes))

    def declared_names(self) -> list[Declared]:
        """Return the names of the routes, and their former ones."""
        return [
            Declared(
                kind=NameKind.ROUTE,
                name=route.label,
                formerly=route.formerly,
                problem=partial(self._former_problem, route.label),
            )
            for route in self.routes
        ]

    def _former_problem(self, route: str, found: str, expected: str) -> Problem:
        return self.problem("routes", route, "formerly", found=found, expected=expected)

    def problem(self, *location: str | int, found: str, expected: str) -> Problem:
        """Return a problem with the value of a key, for checks after the file was validated."""
        if location[:1] == ("routes",) and len(location) > 1:
            labels = {route.name: route.label for route in self.routes}
            location = (location[0], labels.get(str(location[1]), location[1]), *location[2:])
        lines = Lines(file=str(self.file), numbers=self.lines)
        return lines.problem(location, found=found, expected=expected)


def load_config(path: Path) -> Config:
    """Read and validate the file. Raises ConfigInvalid with all problems."""
    document = read_document(path)
    problems = [
        *document.problems,
        *_shared_paths(document),
        *_keyless(document),
        *_taken_names(document),
    ]
    try:
        content = RoutesFile.model_validate(document.value)
    except ValidationError as error:
        problems += [_problem(document, refusal) for refusal in refusals(error)]
    if problems:
        # Raised outside of the except block, because pydantic's error quotes its input and would
        # otherwise become the context of this one.
        raise ConfigInvalid(_once_per_key(problems))
    return replace(_config(path, content, document.lines), document=document.value)


def check_secrets(
    config: Config, environ: Mapping[str, str], development: Mapping[str, str]
) -> dict[str, tuple[Secret, ...]]:
    """Return the secrets or tokens of every route.

    Raises ConfigInvalid with every reference that cannot be resolved. An expired secret may have
    been removed already, so it is omitted if it cannot be resolved.
    """
    problems: list[Problem] = []
    secrets: dict[str, tuple[Secret, ...]] = {}
    now = datetime.now(UTC)
    for route in config.routes:
        found: list[Secret] = []
        key, read = ("tokens", resolve_token) if route.provider.is_queue else ("secrets", resolve)
        for index, ref in enumerate(route.secrets):
            noted = [] if ref.has_expired(now) else problems
            with _noting(config, ("routes", route.name, key, index), noted):
                secret = read(ref, environ, development)
                route.provider.read_key(secret)
                found.append(Secret(secret, ref))
        secrets[route.name] = tuple(found)
    if problems:
        raise ConfigInvalid(problems)
    return secrets


def valid_references(routes: Iterable[Route], now: datetime) -> list[str]:
    """Return the references of the secrets and tokens that have not expired."""
    return [str(ref) for route in routes for ref in route.secrets if not ref.has_expired(now)]


def check_api_keys(config: Config, environ: Mapping[str, str]) -> dict[str, Secret]:
    """Return the API key of each route that has one. Raises ConfigInvalid like `check_secrets`."""
    problems: list[Problem] = []
    keys: dict[str, Secret] = {}
    for route in config.routes:
        if route.api_key is not None:
            with _noting(config, ("routes", route.name, "api_key"), problems):
                key = resolve(route.api_key, environ, {}, expected=API_KEY)
                keys[route.name] = Secret(key)
    if problems:
        raise ConfigInvalid(problems)
    return keys


def check_verify_tokens(
    config: Config, environ: Mapping[str, str], development: Mapping[str, str]
) -> dict[str, Secret]:
    """Return the handshake token of each route. Raises ConfigInvalid like `check_secrets`."""
    problems: list[Problem] = []
    tokens: dict[str, Secret] = {}
    for route in config.routes:
        if route.verify_token is not None:
            with _noting(config, ("routes", route.name, "verify_token"), problems):
                token = resolve(route.verify_token, environ, development, expected=HANDSHAKE)
                tokens[route.name] = Secret(token)
    if problems:
        raise ConfigInvalid(problems)
    return tokens


def check_alerts(config: Config, environ: Mapping[str, str]) -> AlertDestinations:
    """Return the destinations of alerts. Raises ConfigInvalid with every unresolved reference."""
    return find_destinations(config.alerts, environ, config.problem)


def check_hook_keys(config: Config, environ: Mapping[str, str]) -> dict[str, Secret]:
    """Return the GitHub credential of `reconcile` per route: a token or an App's private key."""
    problems: list[Problem] = []
    keys: dict[str, Secret] = {}
    for route in config.routes:
        asked = route.reconcile
        for name in ("token", "private_key"):
            ref: SecretRef | None = None if asked is None else getattr(asked, name)
            if ref is not None:
                with _noting(config, ("routes", route.name, "reconcile", name), problems):
                    keys[route.name] = Secret(resolve(ref, environ, {}, expected=HOOK_KEY))
    if problems:
        raise ConfigInvalid(problems)
    return keys


@contextmanager
def _noting(config: Config, at: Location, problems: list[Problem]) -> Iterator[None]:
    """Add a problem if a secret cannot be resolved."""
    try:
        yield
    except (SecretUnusable, Unexpected) as error:
        problems.append(config.problem(*at, found=error.found, expected=error.expected))


def _problem(document: Document, refusal: Refusal) -> Problem:
    location, found, expected = refusal.location, refusal.found, refusal.expected
    if refusal.unknown:
        keys = known_keys(location[:-1], document.value)
        expected = one_of(keys, like=str(location[-1]))
    elif refusal.unlisted is not None and re.fullmatch(REFERENCE_PATTERN, refusal.unlisted):
        found, expected = refusal.unlisted, f"{expected}: write {as_list(refusal.unlisted)}"
    elif _may_hold_a_secret(refusal) and found not in SHAPES:
        found = LITERAL
        if refusal.quotes and SECRET_LISTS.intersection(location[-1:]):
            expected = f"a list with {REFERENCE_EXPECTED}"
    elif refusal.unlisted is not None and found == repr(refusal.unlisted):  # shown in full
        expected = f"{expected}: write {as_list(refusal.unlisted)}"
    return document.lines.problem(location, found=found, expected=expected)


def _may_hold_a_secret(refusal: Refusal) -> bool:
    keys = set(refusal.location)
    if SECRET_KEYS & keys:
        return True
    if "alerts" in keys:
        return refusal.quotes and refusal.location[-1] in ALERT_KEYS
    return refusal.quotes and bool(OUTBOUND_KEYS & keys)


def _once_per_key(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first problem of each key.

    A value that is invalid YAML is not reported again as missing.
    """
    first: dict[tuple[str, int | None], Problem] = {}
    for problem in problems:
        first.setdefault((problem.key, problem.line), problem)
    return sorted(first.values(), key=lambda problem: problem.line or 0)


def _shared_paths(document: Document) -> Iterator[Problem]:
    """Report paths that several routes share.

    The check reads the raw file, so that the problem is reported together with all others.
    """
    routes = document.value.get("routes")
    seen: dict[str, str] = {}
    for name, route in routes.items() if isinstance(routes, dict) else ():
        path = route.get("path", _default_path(name)) if isinstance(route, dict) else None
        if not isinstance(path, str) or route.get("provider") == PUBLISH.name:
            continue
        other = seen.setdefault(path, name)
        if other != name:
            at: Location = ("routes", other, "path")
            taken = f"{key_path(at[:2])} has on line {document.lines.of(at)}"
            yield document.lines.problem(
                ("routes", name, "path"),
                found=f"{describe(path)}, which {taken}",
                expected="a path of its own",
            )


def _keyless(document: Document) -> Iterator[Problem]:
    """Report encrypted routes if there is no key. Reads the raw file, like `_shared_paths`."""
    routes = document.value.get("routes")
    if document.value.get("keys") is not None or not isinstance(routes, dict):
        return
    for name, route in routes.items():
        if isinstance(route, dict) and route.get("encrypt") is True:
            yield document.lines.problem(
                ("routes", name, "encrypt"),
                found="true, but the file has no `keys`",
                expected="keys: [env:PAYLOAD_KEY] at the top of the file",
            )


def _taken_names(document: Document) -> Iterator[Problem]:
    """Report former names that are in use. Reads the raw file, like `_shared_paths`."""
    routes = document.value.get("routes")
    if not isinstance(routes, dict):
        return
    claimed: dict[str, str] = {}
    for name, route in routes.items():
        formerly = route.get("formerly") if isinstance(route, dict) else None
        for index, former in enumerate(formerly if isinstance(formerly, list) else ()):
            if not isinstance(former, str):
                continue
            taken = None
            if former in routes:
                taken = "which is a route now"
            elif claimed.setdefault(former, name) != name:
                taken = f"which {claimed[former]} claims, too"
            if taken is not None:
                yield document.lines.problem(
                    ("routes", name, "formerly", index),
                    found=f"{describe(former)}, {taken}",
                    expected="the former name of this route, which no other route has",
                )


def _default_path(name: str) -> str:
    return f"/webhooks/{name}"


def queue_path(name: str) -> str:
    """Return the path to which jobs of a queue are posted over HTTP."""
    return f"/v1/queues/{name}/jobs"


def _config(path: Path, content: RoutesFile, lines: Lines) -> Config:
    said, timeout = content.defaults.retry, content.defaults.timeout
    retry = RetryPolicy(attempts=said.attempts, backoff=said.backoff, base=said.base, cap=said.cap)
    return Config(
        file=path,
        schema=tuple(map(Path, content.schema_files)),
        timeout=timeout,
        retry=retry,
        routes=tuple(
            _route(name, item, lines, [make_forward(f, timeout, retry) for f in item.forward])
            for name, item in content.routes.items()
        ),
        alerts=make_alerts(content.alerts),
        keys=tuple(content.keys or ()),
        digest_key=content.digest_key,
        lines=lines.numbers,
    )


def _route(
    name: str,
    section: RouteSection | QueueSection,
    lines: Lines,
    forwards: Iterable[Forward],
) -> Route:
    provider = make_route_provider(section.provider, getattr(section, "scheme", None))
    path = _default_path(name)
    if isinstance(section, QueueSection):
        path = queue_path(name)
        given = dict(section)
        section = RouteSection.model_construct(secrets=given.pop("tokens") or [], **given)
    return Route(
        name=name,
        provider=provider,
        path=section.path or path,
        secrets=tuple(map(make_ref, section.secrets)),
        api_key=section.api_key,
        verify_token=getattr(section, "verify_token", None),
        tolerance=section.tolerance or provider.tolerance,
        handlers=tuple(section.handlers),
        max_body=section.max_body or provider.max_body,
        ack_within=section.ack_within,
        receive_within=section.receive_within,
        types=None if section.types is None else tuple(section.types),
        livemode=section.livemode,
        repeats=section.repeats or RepeatPolicy.REFUSE,
        dedup_window=_dedup_window(section, provider),
        spools=not provider.retries if section.spool is None else section.spool is Spooling.ALWAYS,
        retention=_retention(section.retention, provider),
        line=lines.of(("routes", name)) or 0,
        forwards=tuple(forwards),
        reconcile=read_reconcile(section.reconcile, provider.name),
        redaction=Redaction(tuple(section.redact), section.redact_at) if section.redact else None,
        allow=None if section.allow is None else Networks(tuple(section.allow)),
        limit=section.limit,
        encrypt=section.encrypt,
        enforce=section.enforce,
        formerly=tuple(section.formerly),
    )


def _unstored(provider: Provider, redaction: Redaction | None) -> frozenset[str]:
    if redaction is None:
        return frozenset()
    # Handlers do not get the object id: it is a column for display, where the field is redacted in
    # any case. The others belong to the event that handlers get with `redact_at: show`.
    optional = {"object_id"}
    if redaction.at is RedactAt.STORE:
        optional |= {"account", "livemode", "occurred_at"}
    return frozenset(
        column
        for column, places in provider.columns.items()
        if column in optional and any(map(redaction.covers, places))
    )


def _dedup_window(section: RouteSection, provider: Provider) -> timedelta | None:
    if not provider.keyed_by_digest:
        return None
    if section.dedup_window is not None:
        return section.dedup_window
    if provider.bodies_repeat:
        return shortest_key_retention(provider)
    return _retention(section.retention, provider).key


def _retention(section: RetentionSection, provider: Provider) -> Retention:
    key = section.key or default_key_retention(provider)
    payload = min(PAYLOAD_RETENTION, key) if section.payload is None else section.payload
    return Retention(key=key, payload=payload, dead=section.dead)
