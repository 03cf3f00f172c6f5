"""Build a provider from the sections of a scheme."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from secrets import token_hex
from typing import Final

from gateway.base.problems import Unexpected
from gateway.providers.provider import (
    CREDENTIALS,
    SECRET_BYTES,
    Acknowledgement,
    Columns,
    Facts,
    Incoming,
    Integrity,
    Key,
    Provider,
    Repeats,
    Verify,
    make_secret,
)
from gateway.providers.schemes.coverage import check_scheme, covers_choice
from gateway.providers.schemes.drafts import make_drafts
from gateway.providers.schemes.handshake import make_greet, make_greet_by_get, make_greet_unverified
from gateway.providers.schemes.keys import (
    PRIVATE_PREFIX,
    PUBLIC_PREFIX,
    make_hmac_key,
    make_private_key,
    read_hmac_key,
    read_public_key,
)
from gateway.providers.schemes.message import make_proof
from gateway.providers.schemes.places import ValuePlace
from gateway.providers.schemes.reader import make_read, make_split
from gateway.providers.schemes.sections import (
    DIGEST,
    TOLERANCE,
    BearerSection,
    HmacSection,
    SenderSection,
    SignedSection,
)
from gateway.providers.schemes.signer import make_sign
from gateway.providers.schemes.tokens import (
    AUTHORIZATION,
    make_basic,
    make_bearer,
    read_basic_key,
    read_bearer_key,
)
from gateway.providers.schemes.verifier import Split, make_verify
from gateway.providers.schemes.words import describe_scheme

MAX_BODY: Final = 1024**2
NO_CONTENT: Final = 204


def make_provider(
    name: str,
    kind: str,
    section: SenderSection,
    *,
    max_body: int = MAX_BODY,
    facts: Facts | None = None,
) -> Provider:
    """Build a provider. Raises Unexpected if two keys of the scheme contradict each other."""
    check_scheme(section)
    if section.bodies_repeat and not is_keyed_by_digest(section):
        raise Unexpected(
            found="bodies_repeat: true, while another id tells events apart",
            expected="it beside `id: digest`; with an id that is not signed, `honest_repeats`",
        )
    split = make_split(section)
    read_any_key, make = _keys(kind, section)
    read_key = _without_constants(read_any_key, section)
    verify = _verify(section, split)
    return Provider(
        name=name,
        verify=verify,
        read=make_read(section),
        sign=make_sign(section, read_key),
        redelivery=section.redelivery,
        retries=section.retries,
        max_body=max_body,
        tolerance=_tolerance(section),
        repeats=_repeats(section),
        keyed_by_digest=is_keyed_by_digest(section),
        bodies_repeat=section.bodies_repeat,
        proof=_proof(section),
        read_key=read_key,
        make_secret=make,
        uses_url=_uses(section, "query") or signs_url(section),
        signs_url=signs_url(section),
        parses_first=parses_first(section),
        split=split,
        greet=make_greet(section.handshake),
        greet_unverified=make_greet_unverified(
            section.handshake,
            proof_headers=_proof_headers(section),
            verify=verify,
            read_key=read_any_key,
        ),
        greet_by_get=make_greet_by_get(section.handshake),
        acknowledgement=_acknowledgement(section),
        refusal_status=section.refusal,
        credentials=CREDENTIALS | _credentials(section),
        headers=_headers(section),
        tells_livemode=section.livemode is not None,
        wants_token=any(one.token is not None for one in section.handshake),
        columns=_columns(section),
        drafts=make_drafts(section),
        facts=facts or Facts(title=name, scheme=describe_scheme(kind, section)),
        integrity=integrity(section),
    )


def _verify(section: SenderSection, split: Split | None) -> Verify:
    if isinstance(section, SignedSection):
        return make_verify(section, split)
    return make_bearer(section, split) if isinstance(section, BearerSection) else make_basic()


def _without_constants(
    read: Callable[[bytes], Key], section: SenderSection
) -> Callable[[bytes], Key]:
    """Reject the published key of a handshake as a secret: with it, anyone could sign events."""
    constants = {said.constant_key for said in section.handshake if said.constant_key is not None}
    if not constants:
        return read

    def read_key(secret: bytes) -> Key:
        if secret.strip().decode("utf-8", "replace") in constants:
            raise Unexpected(
                found="the published key with which the sender signs its test request",
                expected="the signing secret of the webhook: anybody can sign with the other one",
            )
        return read(secret)

    return read_key


def _proof_headers(section: SenderSection) -> list[str]:
    if isinstance(section, SignedSection):
        places = section.signature.at
    elif isinstance(section, BearerSection):
        places = section.token.at
    else:
        places = [ValuePlace("header", AUTHORIZATION)]
    return [place.name for place in places if place.source == "header"]


def _keys(kind: str, section: SenderSection) -> tuple[Callable[[bytes], Key], Callable[[], str]]:
    if isinstance(section, HmacSection):
        prefixes = tuple(section.key_prefix)
        read = read_hmac_key(section.key, prefixes)
        make = make_secret
        if section.key != "text":
            make = partial(make_hmac_key, section.key, prefixes)
        if section.public is not None:
            read = _either(read, section.public.algorithm)
        return read, make
    if isinstance(section, SignedSection):
        return partial(read_public_key, kind=kind), partial(make_private_key, kind)
    if isinstance(section, BearerSection):
        return read_bearer_key, lambda: token_hex(SECRET_BYTES)
    return read_basic_key, lambda: f"gateway:{token_hex(SECRET_BYTES)}"


def _either(read: Callable[[bytes], Key], algorithm: str) -> Callable[[bytes], Key]:
    """Accept either a shared secret, or a public or private key. The prefix decides."""
    prefixes = (PUBLIC_PREFIX.encode(), PRIVATE_PREFIX.encode())

    def read_either(secret: bytes) -> Key:
        if secret.startswith(prefixes):
            return read_public_key(secret, algorithm)
        return read(secret)

    return read_either


def _tolerance(section: SenderSection) -> timedelta | None:
    if not isinstance(section, SignedSection) or section.timestamp is None:
        return None
    return section.tolerance or TOLERANCE


def is_guarded(section: SenderSection) -> bool:
    """Return whether the same signed bytes under another id are a replay.

    If the id is not signed, anyone who has captured a request can give it another id. If the id is
    one of several signed fields that are joined, their boundaries can be shifted, which gives
    another id under the same signature. By default, senders without a signature are not guarded.
    """
    if section.repeat_guard is not None:
        return section.repeat_guard
    if not isinstance(section, SignedSection):
        return False
    is_covered = all(covers_choice(section, choice) for choice in section.id)
    if section.signed.has("body"):
        return not is_covered
    return is_covered or section.signed.has("params")


def _repeats(section: SenderSection) -> Repeats | None:
    return Repeats(honest=frozenset(section.honest_repeats)) if is_guarded(section) else None


def is_keyed_by_digest(section: SenderSection) -> bool:
    """Whether the digest of the body, or of an item, can be an event id, and the guard against
    repeated bodies is off.
    """
    has_digest = any(str(choice) == DIGEST for choice in section.id)
    return has_digest and not is_guarded(section)


def _proof(section: SenderSection) -> Callable[[Incoming], bytes] | None:
    if not isinstance(section, SignedSection) or section.signed.has("body"):
        return None
    is_of_each_event = section.batch is None or section.each
    return make_proof(section) if is_guarded(section) and is_of_each_event else None


def integrity(section: SenderSection) -> Integrity:
    """Return how much of a request is proven to come from its sender."""
    if not isinstance(section, SignedSection):
        return Integrity.NONE
    return Integrity.WHOLE if section.signed.has("body") else Integrity.PART


def signs_url(section: SenderSection) -> bool:
    """Whether verification needs the public URL."""
    return isinstance(section, SignedSection) and any(
        section.signed.has(word) for word in ("url", "path")
    )


def parses_first(section: SenderSection) -> bool:
    """Whether an unverified body is parsed, because the proof is in it or its fields are signed."""
    signs_fields = isinstance(section, SignedSection) and section.signed.has("params")
    return signs_fields or any(place.source in ("json", "form") for place in _proofs(section))


def _uses(section: SenderSection, source: str) -> bool:
    """Whether the scheme reads any value from this source."""
    places = [place for choice in (*section.id, *section.type) for place in choice.places]
    return any(place.source == source for place in (*places, *_proofs(section)))


def _places(section: SenderSection) -> dict[str, list[ValuePlace]]:
    """Return the places from which each field of an `Envelope` is read."""
    return {
        "id": [place for choice in section.id for place in choice.places],
        "type": [place for choice in section.type for place in choice.places],
        "account": [] if section.account is None else [section.account],
        "livemode": [] if section.livemode is None else [section.livemode],
        "occurred_at": [] if section.occurred_at is None else [section.occurred_at.at],
    }


def _columns(section: SenderSection) -> Columns:
    return {
        column: tuple(place.steps for place in found if place.source in ("json", "form"))
        for column, found in _places(section).items()
    }


def _headers(section: SenderSection) -> frozenset[str]:
    places = [*_proofs(section), *chain.from_iterable(_places(section).values())]
    names = {place.name for place in places if place.source == "header"}
    return frozenset(names - CREDENTIALS - _credentials(section))


def _proofs(section: SenderSection) -> list[ValuePlace]:
    """Return the places that are read before the sender is verified."""
    if isinstance(section, BearerSection):
        return [*section.token.at]
    if not isinstance(section, SignedSection):
        return []
    places = [*section.signature.at, *section.signed.places]
    places += [] if section.timestamp is None else section.timestamp.at
    return places if section.body_hash is None else [*places, section.body_hash]


def _credentials(section: SenderSection) -> frozenset[str]:
    at: list[ValuePlace] = section.token.at if isinstance(section, BearerSection) else []
    return frozenset(place.name for place in at if place.source == "header")


def _acknowledgement(section: SenderSection) -> Acknowledgement:
    body = "" if section.ack.status == NO_CONTENT else section.ack.body
    return Acknowledgement(section.ack.status, None if body is None else body.encode())
