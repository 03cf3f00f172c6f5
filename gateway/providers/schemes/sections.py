"""Models of a `scheme:`. The same models validate routes.yaml and the catalogue."""

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    WithJsonSchema,
)

from gateway.base.problems import Unexpected
from gateway.base.units import LONGEST, Duration, lasting
from gateway.base.yaml_source import Section
from gateway.providers.schemes.places import PLACE_PATTERN, ValuePlace
from gateway.providers.schemes.template import WORDS, Template, parse_choice, parse_template

DIGEST: Final = "digest"
UUID: Final = "uuid"
"""A new id for every request, for senders whose events have neither an id nor unique bytes."""
DAY: Final = timedelta(days=1)
TOLERANCE: Final = timedelta(minutes=5)
LONGEST_TOLERANCE: Final = timedelta(days=4)
"""Enough for TikTok, which retries for three days and may keep the time of the first attempt."""
REDELIVERY: Final = timedelta(days=7)
"""Default if the sender does not document how long it redelivers: longer
than all documented ones.
"""
MOST_HANDSHAKES: Final = 8
MOST_OPEN_FIELDS: Final = 8
Unit = Literal["s", "ms", "s_or_ms", "iso"]
UNIT: Final = (
    "Unix seconds, milliseconds, either of the two (milliseconds have 13 digits), or ISO 8601 with"
    " its offset."
)

TEXT_SCHEMA: Final = {"type": "string"}
PlaceText = Annotated[
    ValuePlace,
    PlainValidator(lambda text: text if isinstance(text, ValuePlace) else ValuePlace.parse(text)),
    WithJsonSchema({"type": "string", "pattern": f"^{PLACE_PATTERN}$"}),
]
SignedText = Annotated[
    Template,
    PlainValidator(
        lambda text: text if isinstance(text, Template) else parse_template(text, words=WORDS)
    ),
    WithJsonSchema(TEXT_SCHEMA),
]
ChoiceText = Annotated[
    Template,
    PlainValidator(lambda text: text if isinstance(text, Template) else parse_choice(text)),
    WithJsonSchema(TEXT_SCHEMA),
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Places = Annotated[
    list[PlaceText],
    Field(min_length=1, max_length=16),
    BeforeValidator(_listed, json_schema_input_type=PlaceText | list[PlaceText]),
]
Choices = Annotated[
    list[ChoiceText],
    Field(min_length=1, max_length=8),
    BeforeValidator(_listed, json_schema_input_type=ChoiceText | list[ChoiceText]),
]
Status = Annotated[int, Field(ge=200, le=299)]
Refusal = Annotated[int, Field(ge=400, le=499)]
ShortText = Annotated[str, Field(max_length=64)]
SomeText = Annotated[str, Field(min_length=1, max_length=64)]
Prefixes = Annotated[
    list[SomeText],
    Field(max_length=4),
    BeforeValidator(_listed, json_schema_input_type=SomeText | list[SomeText]),
]


class ItemSection(Section):
    """A place, and how to pick a value if it holds several."""

    at: Places = Field(description="Where: a place, or several of which the first that is there.")
    separator: SomeText | None = Field(
        default=None, description="What stands between several values in one place."
    )
    field: SomeText | None = Field(
        default=None, description="Which of name=value pairs, such as v1 in t=1,v1=ab."
    )


class SignatureSection(ItemSection):
    """Where the signatures are. Every signature that is present is tried."""

    prefix: SomeText | None = Field(
        default=None, description="What stands before each; others are ignored in a list."
    )
    encoding: Literal["hex", "base64", "base64url"] = Field(
        default="hex", description="How it is written; compared as it is written."
    )


class TokenSection(Section):
    """Where a shared token is sent."""

    at: Places = Field(description="Where: a place, or several of which the first that is there.")
    prefix: SomeText | None = Field(
        default=None, description="What stands before it, such as `Bearer `."
    )


class TimestampSection(ItemSection):
    """Where the time of signing is. It must be signed."""

    unit: Unit = Field(default="s", description=UNIT)


class MomentSection(Section):
    """When the event happened, by the sender's clock. It is information, not protection."""

    at: PlaceText = Field(description="Where it is.")
    unit: Unit = Field(default="s", description=UNIT)


class PublicVariant(Section):
    """A public-key signature that the same sender may use instead.

    The prefix of the key selects it.
    """

    algorithm: Literal["ed25519", "ecdsa"] = Field(description="How it signs.")
    prefix: SomeText = Field(description="What stands before such a signature.")


class AckSection(Section):
    """The response that the sender expects for an accepted event."""

    status: Status = Field(default=200, description="The status; 204 has no body.")
    body: ShortText | None = Field(
        default=None, description="The body as text, or '' for none; else our own JSON."
    )


class HandshakeSection(Section):
    """A request that is not an event, and its response."""

    method: Literal["POST", "GET", "HEAD"] = Field(
        default="POST",
        description="POST is verified like an event, unless `unsigned` or `constant_key` say"
        " otherwise; the others are not signed.",
    )
    unsigned: StrictBool = Field(
        default=False, description="POST: whether the sender does not sign this one request."
    )
    constant_key: SomeText | None = Field(
        default=None,
        description="POST: the published key with which the sender signs this one request, in"
        " place of the route's secret.",
    )
    fields: dict[str, Literal["text", "digits"]] = Field(
        default_factory=dict,
        max_length=MOST_OPEN_FIELDS,
        description="With `unsigned` or `constant_key`: every field that the request has, in query"
        " and body, and whether it holds text or digits. Any other field, and it is refused.",
    )
    when: dict[str, str | int | bool] = Field(
        default_factory=dict, description="What must be where, such as json.type: ping."
    )
    token: PlaceText | None = Field(
        default=None,
        description="GET: where the token is that must equal the route's verify_token.",
    )
    status: Status = Field(default=200, description="The status of the answer.")
    text: SomeText | None = Field(default=None, description="The answer as text, with places.")
    json_answer: dict[str, SomeText] | None = Field(
        default=None, alias="json", description="The answer as JSON, with places in its values."
    )

    @property
    def is_open(self) -> bool:
        """Whether the request is answered although no secret of the route verifies it."""
        return self.unsigned or self.constant_key is not None


def _check_when(handshakes: list[HandshakeSection]) -> list[HandshakeSection]:
    for handshake in handshakes:
        for place in handshake.when:
            ValuePlace.parse(place)
        if handshake.method == "POST" and not handshake.when and not handshake.is_open:
            raise Unexpected(found="a handshake by POST without `when`", expected="what tells it")
        if handshake.method != "POST" and _uses_key(handshake):
            raise Unexpected(
                found="{hmac...} in an answer to a request that nobody signs",
                expected="none: strangers could have anything signed",
            )
        _check_open(handshake)
    return handshakes


def _check_open(handshake: HandshakeSection) -> None:
    """Check that a handshake that no secret of the route proves accepts one exact shape only."""
    if not handshake.is_open:
        if handshake.fields:
            raise Unexpected(
                found="`fields` of a handshake that is verified",
                expected="`fields` with `unsigned` or `constant_key` only",
            )
        return
    if handshake.method != "POST" or handshake.token is not None:
        raise Unexpected(
            found="`unsigned` or `constant_key` with another method than POST, or with `token`",
            expected="one of them, by POST",
        )
    if handshake.unsigned and handshake.constant_key is not None:
        raise Unexpected(found="`unsigned` and `constant_key`", expected="one of the two")
    if _uses_key(handshake):
        raise Unexpected(
            found="{hmac...} in the answer to a request that no secret of the route proves",
            expected="none: strangers could have anything signed",
        )
    fields = [ValuePlace.parse(field) for field in handshake.fields]
    in_body = {field.source for field in fields} - {"query"}
    if not fields or "header" in in_body or len(in_body) > 1:
        raise Unexpected(
            found="`unsigned` or `constant_key` without the exact `fields` of the request",
            expected="fields of the query, and of one of json and form",
        )
    if any(field.source == "json" and len(field.keys) > 1 for field in fields):
        raise Unexpected(found="`fields` with a nested field", expected="top-level fields")
    answers = [handshake.text or "", *(handshake.json_answer or {}).values()]
    read = {*handshake.when, *(str(p) for text in filter(None, answers) for p in _places(text))}
    if missing := sorted(read - set(handshake.fields)):
        raise Unexpected(
            found=f"{missing[0]} in `when` or in the answer, and not in `fields`",
            expected="every place of the handshake in `fields`",
        )


def _places(text: str) -> list[ValuePlace]:
    return parse_template(text).places


def _uses_key(handshake: HandshakeSection) -> bool:
    answers = [handshake.text or "", *(handshake.json_answer or {}).values()]
    return any("{hmac." in answer for answer in answers)


Handshakes = Annotated[
    list[HandshakeSection],
    Field(max_length=MOST_HANDSHAKES),
    AfterValidator(_check_when),
]


class SenderSection(Section):
    """Keys of every kind of scheme: where id and type are, and how the sender behaves."""

    id: Choices = Field(
        default=[parse_choice(DIGEST)],
        description="Where the event's id is: a place, text with places in braces, or several of"
        " which the first that is there; `digest` is the SHA-256 of the body, `uuid` a new id for"
        " every request.",
    )
    type: Choices = Field(
        description="Where the event's type is, in the same notation; other text is the type."
    )
    account: PlaceText | None = Field(default=None, description="Where it says whose event it is.")
    livemode: PlaceText | None = Field(
        default=None, description="Where it says true for live events and false for tests."
    )
    occurred_at: MomentSection | None = Field(
        default=None, description="When it happened: information, which protects nothing."
    )
    batch: Literal["json"] | PlaceText | None = Field(
        default=None,
        description="Where the list is if a request brings several events: json for the body"
        " itself, or json.events, or form.name. Other places are then those of each item.",
    )
    each: StrictBool = Field(
        default=False,
        description="Whether each item of the batch has a signature or a token of its own.",
    )
    ack: AckSection = Field(
        default_factory=AckSection, description="What the sender wants to see for its event."
    )
    refusal: Refusal = Field(
        default=403, description="The status for a wrong signature, where 401 is demanded."
    )
    retries: StrictBool = Field(
        default=True, description="Whether the sender comes back by itself after a 503."
    )
    redelivery: Annotated[Duration, lasting(timedelta(0), LONGEST)] = Field(
        default=REDELIVERY, description="How long it can deliver the same event again."
    )
    honest_repeats: list[SomeText] = Field(
        default_factory=list,
        max_length=64,
        description="Types whose bodies can honestly repeat under another event id, as globs:"
        " they are accepted and flagged.",
    )
    bodies_repeat: StrictBool = Field(
        default=False,
        description="Whether two events can have identical bodies, where the digest of the body is"
        " the id: then an identical body is a duplicate only for the route's `dedup_window`.",
    )
    repeat_guard: StrictBool | None = Field(
        default=None,
        description="Whether what is signed is a replay under another id. Default: where the body"
        " is signed and not the id, or the id and not the body.",
    )
    handshake: Handshakes = Field(
        default_factory=list, description="Requests that are no events, and their answers."
    )


class SignedSection(SenderSection):
    """Keys of all signing senders."""

    signature: SignatureSection = Field(description="Where the signature is.")
    signed: SignedText = Field(
        default=parse_template("{body}", words=WORDS),
        description="What is signed: text with {body}, {timestamp}, {id}, {url}, {method}, {path},"
        " {params} and places in it. A part in square brackets, such as [id:{query.id};], is left"
        " out as a whole if its place holds nothing.",
    )
    timestamp: TimestampSection | None = Field(
        default=None, description="Where the time of signing is; it must be signed."
    )
    tolerance: Annotated[Duration, lasting(timedelta(seconds=1), LONGEST_TOLERANCE)] | None = Field(
        default=None, description="How far the signed time may be from ours. Default 5m."
    )
    body_hash: PlaceText | None = Field(
        default=None,
        description="Where the SHA-256 of the body is in hex, for bodies that are no form, if only"
        " that is signed.",
    )
    url_decodes: SomeText | None = Field(
        default=None, description="Characters that the sender decodes in the URL before it signs."
    )


class HmacSection(SignedSection):
    """A sender that signs with a shared secret."""

    algorithm: Literal["sha1", "sha256", "sha512"] = Field(
        default="sha256", description="The hash of the HMAC."
    )
    key: Literal["text", "base64", "hex"] = Field(
        default="text", description="How the secret is written: as it is, or encoded."
    )
    key_prefix: Prefixes = Field(
        default_factory=list,
        description="What stands before an encoded key, such as whsec_.",
    )
    public: PublicVariant | None = Field(
        default=None,
        description="A public-key signature that the sender may use instead (whpk_ keys).",
    )


class PublicKeySection(SignedSection):
    """A sender that signs with a private key. The secret of the route is the public key."""


class BearerSection(SenderSection):
    """A sender that sends a shared token and signs nothing."""

    token: TokenSection = Field(description="Where the token is.")


class BasicSection(SenderSection):
    """A sender that sends a user name and a password, and signs nothing."""


KINDS: Final[dict[str, type[SenderSection]]] = {
    "hmac": HmacSection,
    "ed25519": PublicKeySection,
    "ecdsa": PublicKeySection,
    "bearer": BearerSection,
    "basic": BasicSection,
}
