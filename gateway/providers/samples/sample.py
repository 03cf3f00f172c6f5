"""Sample events of any type, from a template if there is one, or else with a plausible body."""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gateway.base.errors import BadPayload
from gateway.providers import PROVIDERS, Incoming, Provider
from gateway.providers.payload import is_text
from gateway.providers.provider import Drafts
from gateway.providers.samples.template import Blanks, draw_alnum, list_templates, load_template
from gateway.providers.schemes.sections import KINDS

_MAX_TYPE_CHARS: Final = 255
# `v2.core.account[requirements].updated` has brackets: https://docs.stripe.com/api/v2/core/events
_STRIPE_WORD: Final = r"[a-z][a-z0-9_]*(?:\[[a-z0-9_.]+\])?"
_STRIPE_TYPE: Final = re.compile(rf"{_STRIPE_WORD}(?:\.{_STRIPE_WORD})+")
# The action of repository_dispatch is free text.
_GITHUB_TYPE: Final = re.compile(
    r"[a-z0-9_]{1,100}(?:\.[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100})?"
)
THIN: Final = ("v1.", "v2.")
"""Prefixes of the types of thin events."""
# Types such as `charge.dispute.created` name the parent first. The object is a plain `dispute`.
_PARENTS: Final = ("account", "charge", "customer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A body to send, with the id and the type of its event."""

    id: str
    type: str
    body: bytes


def sample_types(provider: str) -> tuple[str, ...]:
    """Return the types that have a template. Samples of any other type can be made too."""
    if provider in _KITS:
        return list_templates(provider)
    if provider not in PROVIDERS and provider not in KINDS:
        raise _unknown(provider)
    return ()


def shared_object(provider: str, type: str) -> str | None:
    """Return the kind of the object that a sample of this type has in common with other types.

    None if the type has a template of its own, or if there is no template of its object either.
    """
    if provider != "stripe" or not _STRIPE_TYPE.fullmatch(type) or type in sample_types(provider):
        return None
    return _stripe_kind(type) if _stripe_family(type) in list_templates("stripe/objects") else None


def make_sample(
    provider: str | Provider, type: str, *, now: datetime, livemode: bool = False
) -> Sample:
    """Make a new event with new ids, as the provider would send it at `now`.

    `provider` is a name, or a provider that a route describes.
    """
    check_type(provider, type)
    drafts = _drafts(provider)
    if drafts is not None:
        id, body = drafts.make(type, now)
        return Sample(id=id, type=type, body=body)
    return _kit(_name(provider)).make(type, now, livemode)


def check_type(provider: str | Provider, type: str) -> None:
    """Check that this is a possible type of the provider. Raises ValueError if not."""
    drafts = _drafts(provider)
    if drafts is not None:
        fits, expected = drafts.fits(type) and is_text(type), drafts.expected
    else:
        kit = _kit(_name(provider))
        fits, expected = kit.notation.fullmatch(type) is not None, kit.expected
    if len(type) > _MAX_TYPE_CHARS or not fits:
        raise ValueError(f"type: found {type[:60]!r}; expected {expected}")


def _name(provider: str | Provider) -> str:
    return provider if isinstance(provider, str) else provider.name


def _drafts(provider: str | Provider) -> Drafts | None:
    known = PROVIDERS.get(provider) if isinstance(provider, str) else provider
    return None if known is None else known.drafts


def find_template(provider: str, type: str) -> Any:
    """Return the template of samples of this type. It is cached, so do not change it."""
    return _kit(provider).template(type)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kit:
    """The sample functions of one provider."""

    notation: re.Pattern[str]
    expected: str
    template: Callable[[str], Any]
    make: Callable[[str, datetime, bool], Sample]


def _kit(provider: str) -> _Kit:
    kit = _KITS.get(provider)
    if kit is None:
        raise _unknown(provider)
    return kit


def _unknown(provider: str) -> ValueError:
    return ValueError(f"provider: found {provider!r}; expected one of {', '.join(PROVIDERS)}")


def _make_stripe(type: str, now: datetime, livemode: bool) -> Sample:
    given = stripe_words(type, livemode=livemode)
    body = Blanks(given, now=now).fill(_stripe_template(type))
    return Sample(id=str(given["event_id"]), type=type, body=lay_out("stripe", body))


def stripe_words(type: str, *, livemode: bool) -> dict[str, object]:
    """Return the values of the placeholders that only Stripe's templates have, for a new event."""
    return {
        "event_id": f"evt_1{draw_alnum(23)}",
        "type": type,
        "kind": _stripe_kind(type),
        "livemode": livemode,
        "mode": "live" if livemode else "test",
    }


def _stripe_template(type: str) -> Any:
    if type in list_templates("stripe"):
        return load_template(f"stripe/{type}")
    if type.startswith(THIN):
        return load_template("stripe/parts/thin")
    event = load_template("stripe/parts/event")
    family = _stripe_family(type)
    if family in list_templates("stripe/objects"):
        return {**event, "data": {"object": load_template(f"stripe/objects/{family}")}}
    return event


def _stripe_kind(type: str) -> str:
    family = _stripe_family(type)
    parent, _, child = family.partition(".")
    return child if child and parent in _PARENTS else family


def _stripe_family(type: str) -> str:
    return type.rpartition(".")[0]


def _make_github(type: str, now: datetime, livemode: bool) -> Sample:
    body = Blanks({}, now=now).fill(_github_template(type))
    return Sample(id=str(uuid.uuid4()), type=type, body=lay_out("github", body))


def _github_template(type: str) -> Any:
    if type in list_templates("github"):
        return load_template(f"github/{type}")
    action = type.partition(".")[2]
    own = {"action": action} if action else {}
    return {**own, **load_template("github/parts/event")}


def lay_out(provider: str, document: Any, *, is_form: bool = False) -> bytes:
    """Serialize a body as the provider does: Stripe indents its JSON,
    GitHub sends no whitespace.
    """
    if is_form and isinstance(document, dict):
        return urlencode(document).encode()
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 if provider == "stripe" else None)


_KITS: Final[Mapping[str, _Kit]] = {
    "stripe": _Kit(
        notation=_STRIPE_TYPE,
        expected="words joined by dots, as in invoice.paid",
        template=_stripe_template,
        make=_make_stripe,
    ),
    "github": _Kit(
        notation=_GITHUB_TYPE,
        expected="an event and its action, as in issues.opened",
        template=_github_template,
        make=_make_github,
    ),
}


def receive_alone(
    provider: Provider, sample: Sample, *, now: datetime, headers: Mapping[str, str] | None = None
) -> Incoming:
    """Sign the sample with a random secret and return it as a received request.

    The route's own secret is not used. `headers` override those of the signer.
    """
    secret = provider.make_secret().encode()
    signed = provider.sign(sample.body, secret=secret, id=sample.id, type=sample.type, now=now)
    incoming = Incoming({**signed.headers, **(headers or {})}, signed.body)
    if provider.split is None:
        return incoming
    items = provider.split(incoming)
    if len(items) != 1:
        raise BadPayload(f"found {len(items)} events; expected one")
    return items[0]
