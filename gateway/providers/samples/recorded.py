"""Recorded events: the file that `gateway show ID --save FILE` writes, and its reader."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.base.errors import BadPayload, CommandFailed
from gateway.base.model import Envelope
from gateway.providers import PROVIDERS
from gateway.providers.payload import describe
from gateway.providers.publish import DEEPEST
from gateway.providers.samples.sample import Sample, lay_out, receive_alone
from gateway.providers.schemes.sections import KINDS

_STRIPE_OBJECTS: Final = frozenset({"event", "v2.core.event"})
_FIELDS: Final = ("provider", "type", "id", "headers", "body")
_HOW: Final = "expected a file of `gateway show ID --save FILE`, or the JSON body of an event"
_ANY_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A real event, stored as a file."""

    provider: str
    type: str
    id: str
    headers: Mapping[str, str]
    """Names in lower case, without signatures and credentials."""
    body: bytes
    """JSON in the layout of the provider."""

    @property
    def sample(self) -> Sample:
        """The event as a Sample."""
        return Sample(id=self.id, type=self.type, body=self.body)


def dump_recorded(recorded: Recorded) -> bytes:
    """Serialize a recorded event: one JSON object that contains the body as JSON."""
    document = {
        "provider": recorded.provider,
        "type": recorded.type,
        "id": recorded.id,
        "headers": dict(recorded.headers),
        "body": orjson.loads(recorded.body),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def load_recorded(path: Path, *, provider: str | None = None, type: str | None = None) -> Recorded:
    """Read a recorded event, or a bare body as `gateway show ID --body` prints it.

    A bare Stripe body contains its type. A bare GitHub body does not, so `provider` and `type` must
    be given. The event name suffices as the type, because the action is in the body. If they are
    given for a file that contains them too, they must agree.
    """
    document = _read(path)
    if _is_recorded(document):
        recorded = _from_file(path, document)
    else:
        recorded = _from_body(path, document, provider, type)
    _check_given(path, "provider", provider, recorded.provider)
    if recorded.provider != "github" or type != recorded.type.partition(".")[0]:
        _check_given(path, "type", type, recorded.type)
    return recorded


def says_its_type(path: Path) -> bool:
    """Return whether the file needs no `provider` and `type`: a recorded event, or one of Stripe.

    Raises CommandFailed for a file that cannot be read.
    """
    document = _read(path)
    return _is_recorded(document) or _is_stripe(document)


def check_recorded(recorded: Recorded) -> None:
    """Check that id and type match the body. Raises ValueError if not."""
    told = Envelope(id=recorded.id, type=recorded.type)
    envelope = _envelope(recorded.provider, told, recorded.body)
    # An id that is the digest of the body changes with the layout of the body.
    digest = hashlib.sha256(recorded.body).hexdigest()
    for name in ("id", "type"):
        found, expected = getattr(told, name), getattr(envelope, name)
        if found != expected and expected != digest:
            raise ValueError(f"`{name}`: found {found!r}; the body says {expected!r}")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
        orjson.dumps(document)
    except OSError as error:
        raise CommandFailed(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CommandFailed(
            f"{path}:{error.lineno}: not JSON: {error.msg} in column {error.colno}; {_HOW}"
        ) from None
    except TypeError:  # orjson reads more levels than it writes
        raise CommandFailed(f"{path}: found more than {DEEPEST} levels; {_HOW}") from None
    if not isinstance(document, dict):
        raise CommandFailed(f"{path}: found {describe(document)}; {_HOW}")
    return document


def _is_recorded(document: dict[str, Any]) -> bool:
    return "body" in document and "provider" in document


def _is_stripe(document: dict[str, Any]) -> bool:
    return any(document.get("object") == kind for kind in _STRIPE_OBJECTS)


def _from_file(path: Path, document: dict[str, Any]) -> Recorded:
    provider, type, id = (_text(path, document, name) for name in ("provider", "type", "id"))
    headers = document.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise CommandFailed(f"{path}: `headers`: expected names with text")
    unknown = sorted(document.keys() - set(_FIELDS))
    if unknown:
        raise CommandFailed(f"{path}: found `{unknown[0]}`; expected only {', '.join(_FIELDS)}")
    recorded = Recorded(
        provider=provider,
        type=type,
        id=id,
        headers={name.lower(): value for name, value in headers.items()},
        body=lay_out(provider, document["body"]),
    )
    try:
        check_recorded(recorded)
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from error
    return recorded


def _text(path: Path, document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise CommandFailed(f"{path}: `{name}`: found {describe(value)}; expected text")
    return value


def _from_body(
    path: Path, document: dict[str, Any], provider: str | None, type: str | None
) -> Recorded:
    name = provider or ("stripe" if _is_stripe(document) else None)
    if name is None or (name != "stripe" and type is None):
        missing = "type" if name else "provider and its type"
        raise CommandFailed(
            f"{path}: the body does not tell its {missing}: give them too, "
            "or record the event with `gateway show ID --save FILE`"
        )
    body = lay_out(name, document)
    # Derive the id from the body, so that the same file is always the same event.
    id = str(uuid.uuid5(uuid.NAMESPACE_OID, body.decode()))
    try:
        envelope = _envelope(name, Envelope(id=id, type=type or ""), body)
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}") from error
    headers = {"content-type": "application/json"}
    return Recorded(provider=name, type=envelope.type, id=envelope.id, headers=headers, body=body)


def _envelope(provider: str, told: Envelope, body: bytes) -> Envelope:
    """Return the envelope that the provider reads from the body, or
    `told` if it cannot read one.
    """
    scheme = PROVIDERS.get(provider)
    if scheme is None and provider not in KINDS:
        raise ValueError(f"provider: found {provider!r}; expected one of {', '.join(PROVIDERS)}")
    if scheme is None or scheme.is_queue:  # only the route knows where a described sender puts them
        return told
    sample = Sample(id=told.id, type=told.type, body=body)
    try:
        return scheme.read(receive_alone(scheme, sample, now=_ANY_MOMENT))
    except BadPayload as error:
        raise ValueError(f"not an event of {provider}: {error}") from error


def _check_given(path: Path, name: str, given: str | None, found: str) -> None:
    if given is not None and given != found:
        raise CommandFailed(f"{path}: {name}: found {found!r} in the file; asked for {given!r}")
