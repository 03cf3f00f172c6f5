"""The schema of `routes.yaml`: pydantic models that validate it and generate its JSON Schema."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StrictBool
from pydantic.json_schema import GenerateJsonSchema

from gateway.base.model import Backoff, RetryPolicy, Spooling
from gateway.base.problems import Location
from gateway.base.units import Duration
from gateway.config.routes.alerts import AlertsSection, AlertWebhookSection
from gateway.config.routes.checks import (
    NAME_PATTERN,
    ApiKey,
    Attempts,
    BodySize,
    DeadRetention,
    DedupWindow,
    FormerNames,
    Globs,
    HandlerTimeout,
    KeyRetention,
    Livemode,
    Modules,
    PayloadRetention,
    ProviderName,
    QueueName,
    RedactedAt,
    RedactedFields,
    Reference,
    RetryCap,
    RouteName,
    RoutePath,
    RouteRepeats,
    SqlFile,
    Tolerance,
    VerifyToken,
    Wait,
)
from gateway.config.routes.fields import (
    Allow,
    FileSchema,
    Limit,
    RouteSecret,
    SecretSection,
    Section,
)
from gateway.config.routes.forward import ForwardRetrySection, Forwards, ForwardSection
from gateway.config.routes.reconcile import ReconcileSection, check_reconcile
from gateway.config.routes.scheme import AnyScheme, find_provider, scheme_keys
from gateway.privacy.redaction import RedactAt
from gateway.providers.publish import PUBLISH

RETRY: Final = RetryPolicy()


class RetrySection(Section):
    """The retry policy of failed deliveries."""

    attempts: Attempts = Field(
        default=RETRY.attempts, description="How often a delivery is tried before it is dead."
    )
    backoff: Backoff = Field(
        default=RETRY.backoff, description="Whether the wait grows with each attempt or stays."
    )
    base: Duration = Field(default=RETRY.base, description="The wait after the first attempt.")
    cap: RetryCap = Field(
        default=RETRY.cap, validate_default=True, description="The longest wait; at least base."
    )


class DefaultsSection(Section):
    """Defaults for all handlers. A handler can override them."""

    timeout: HandlerTimeout = Field(
        default=timedelta(seconds=60), description="How long a handler may run."
    )
    retry: RetrySection = Field(
        default_factory=RetrySection, description="When a failed delivery runs again."
    )


class RetentionSection(Section):
    """How long a route keeps event ids, payloads and dead letters."""

    key: KeyRetention | None = Field(
        default=None,
        description="How long an event id is remembered, so that a second delivery is a duplicate:"
        " at least as long as the provider can deliver again, plus a day. Default 35d.",
    )
    payload: PayloadRetention | None = Field(
        default=None,
        description="How long headers and body are kept; at most as long as the key. Default 14d.",
    )
    dead: DeadRetention = Field(
        default=timedelta(days=90), description="How long a dead delivery waits for a replay."
    )


class HandlingSection(Section):
    """The keys that routes and queues have in common: how their events are handled and stored."""

    formerly: FormerNames = Field(
        default_factory=list,
        description="Former names of the route, newest first: keys, effects and all else that the"
        " ledger has under them go on under the new name.",
    )
    handlers: Modules = Field(
        default_factory=list,
        description="Modules whose @handler functions take this route's events.",
    )
    forward: Forwards = Field(
        default_factory=list,
        description="HTTP services to which this route's events are pushed.",
    )
    max_body: BodySize | None = Field(
        default=None, description="The largest body that is taken. Default by provider."
    )
    api_key: ApiKey | None = Field(
        default=None,
        description="Where the Stripe API key for ctx.stripe is: env:NAME or file:/path.",
    )
    ack_within: Wait = Field(
        default=timedelta(seconds=3),
        description="The time from the last byte of the body to the answer.",
    )
    receive_within: Wait = Field(
        default=timedelta(seconds=10), description="The time that a body may take to arrive."
    )
    retention: RetentionSection = Field(
        default_factory=RetentionSection, description="How long the route keeps what it has."
    )
    redact: RedactedFields | None = Field(
        default=None,
        description="Fields of the payload that people do not see (`*` is any one step):"
        " data.object.billing_details, items.*.phone.",
    )
    redact_at: RedactedAt = Field(
        default=RedactAt.SHOW,
        description="Whether they are taken out of what is shown, or of what is stored too: then"
        " handlers do not get them either.",
    )
    encrypt: Annotated[bool, Strict()] = Field(
        default=False,
        description="Whether headers, bodies, results and the text of errors are stored encrypted,"
        " under the first of `keys`.",
    )


class QueueSection(HandlingSection):
    """A queue. Handlers publish jobs to it (ctx.publish), and so do HTTP clients with a token."""

    provider: QueueName = Field(description="publish: the events are jobs.")
    tokens: list[RouteSecret] | None = Field(
        default=None,
        min_length=1,
        description="Where the tokens are with which jobs come in over HTTP: env:NAME or"
        " file:/path, or a mapping with an expiry. Any one may match. Without them, only handlers"
        " publish.",
    )
    allow: Allow = None
    limit: Limit = None


class RouteSection(HandlingSection):
    """One inbound URL with its provider, secrets and policy."""

    provider: ProviderName = Field(description="Who sends: how a request is verified and read.")
    scheme: AnyScheme = Field(
        default=None,
        validate_default=True,
        description="How the sender signs, and where id and type are: for the providers hmac,"
        " ed25519, ecdsa, bearer and basic, and only for them.",
    )
    path: RoutePath | None = Field(
        default=None, description="The path of the URL. Default /webhooks/<name>."
    )
    secrets: list[RouteSecret] = Field(
        min_length=1,
        description="Where the signing secrets are: env:NAME or file:/path, or a mapping with an"
        " expiry. Any one may match.",
    )
    verify_token: VerifyToken | None = Field(
        default=None,
        description="Where the token is that a handshake must show (Meta): env:NAME or file:/path.",
    )
    tolerance: Tolerance | None = Field(
        default=None,
        description="How far a signed time may be from ours, in both directions. Only where the"
        " provider signs a time; default by provider.",
    )
    types: Globs | None = Field(
        default=None,
        description="Event types that are wanted, as globs; others are answered 200 and not kept.",
    )
    livemode: Livemode | None = Field(
        default=None, description="Stripe: take only live events, or only test events."
    )
    repeats: RouteRepeats | None = Field(
        default=None,
        description="What becomes of the same signed bytes under a fresh delivery id: refuse them,"
        " or flag and take them. Only where the provider signs no time; default refuse.",
    )
    dedup_window: DedupWindow | None = Field(
        default=None,
        description="If the digest of the body is an event's id: how long an identical body is a"
        " duplicate; a later one is a new event. At least as long as the provider can deliver"
        " again, plus a day. Default by provider.",
    )
    spool: Spooling | None = Field(
        default=None,
        description="While Postgres is away: always acknowledge from the local disk, or never and"
        " answer 503. Default: always where the provider does not retry by itself.",
    )
    enforce: StrictBool = Field(
        default=True,
        description="false: events with a wrong signature are reported, and accepted, in"
        " development only (`gateway up`); elsewhere they are refused as ever.",
    )
    reconcile: Annotated[ReconcileSection | None, AfterValidator(check_reconcile)] = Field(
        default=None,
        description="How to find out what the provider sent and the gateway never got.",
    )
    allow: Allow = None
    limit: Limit = None


def _knowing_its_provider(raw: Any) -> RouteSection | QueueSection:
    """Validate a route. Its provider is found first, because other checks depend on it."""
    name = raw.get("provider") if isinstance(raw, dict) else None
    context = {"provider": find_provider(raw), "kind": name}
    return _section(raw).model_validate(raw, context=context)


def _section(raw: Any) -> type[RouteSection] | type[QueueSection]:
    is_queue = isinstance(raw, dict) and raw.get("provider") == PUBLISH.name
    return QueueSection if is_queue else RouteSection


AnySection = Annotated[RouteSection | QueueSection, BeforeValidator(_knowing_its_provider)]


class RoutesFile(Section):
    """The routes of a webhook gateway."""

    schema_files: list[SqlFile] = Field(
        default_factory=list,
        alias="schema",
        description="Your own tables: idempotent SQL files, applied by `gateway migrate`.",
    )
    defaults: DefaultsSection = Field(
        default_factory=DefaultsSection,
        description="What holds for every handler that does not say otherwise.",
    )
    alerts: AlertsSection | None = Field(
        default=None, description="When people are told of trouble, and where."
    )
    keys: list[Reference] | None = Field(
        default=None,
        min_length=1,
        description="Where the keys are under which routes with `encrypt` are stored: env:NAME or"
        " file:/path. The first one encrypts, all of them decrypt.",
    )
    digest_key: Reference | None = Field(
        default=None,
        description="Where the key is for the digests that stand in the place of encrypted values;"
        " never changed.",
    )
    routes: dict[RouteName, AnySection] = Field(
        min_length=1,
        description="The inbound URLs and the queues, by name.",
        json_schema_extra={"propertyNames": {"pattern": f"^{NAME_PATTERN}$"}},
    )


ANY: Final = "*"
SECTIONS: Final[Mapping[Location, type[Section]]] = {
    ("defaults",): DefaultsSection,
    ("defaults", "retry"): RetrySection,
    ("alerts",): AlertsSection,
    ("alerts", "webhook"): AlertWebhookSection,
    ("routes", ANY, "secrets", ANY): SecretSection,
    ("routes", ANY, "tokens", ANY): SecretSection,
    ("routes", ANY, "retention"): RetentionSection,
    ("routes", ANY, "forward", ANY): ForwardSection,
    ("routes", ANY, "forward", ANY, "retry"): ForwardRetrySection,
    ("routes", ANY, "reconcile"): ReconcileSection,
}
"""The section of each mapping in the file, by location. ANY matches a name or an index."""


def known_keys(location: Location, document: Mapping[str, Any]) -> list[str]:
    """Return the keys that are allowed in the mapping at a location."""
    if location[:1] == ("routes",) and location[2:3] == ("scheme",):
        return scheme_keys(document["routes"][location[1]].get("provider"), location[3:])
    section: type[Section] = RoutesFile
    if len(location) == 2 and location[0] == "routes":
        section = _section(document["routes"][location[1]])
    for place, known in SECTIONS.items():
        if len(place) == len(location) and all(
            part in (ANY, given) for part, given in zip(place, location, strict=True)
        ):
            section = known
    return [field.alias or name for name, field in section.model_fields.items()]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, which editors use for completion and validation."""
    schema = RoutesFile.model_json_schema(schema_generator=FileSchema)
    return {"$schema": GenerateJsonSchema.schema_dialect} | schema
