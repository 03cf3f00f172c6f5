"""Check which parts of a request a scheme signs, and whether its keys are consistent."""

from gateway.base.problems import Unexpected, describe
from gateway.base.units import format_duration
from gateway.providers.schemes.handshake import signed_places
from gateway.providers.schemes.places import ValuePlace
from gateway.providers.schemes.sections import (
    DAY,
    DIGEST,
    UUID,
    BasicSection,
    HmacSection,
    SenderSection,
    SignedSection,
)
from gateway.providers.schemes.template import Template


def check_scheme(section: SenderSection) -> None:
    """Check the keys of a scheme against each other. Raises Unexpected."""
    if section.batch is not None and not any(is_of_item(choice) for choice in section.id):
        raise Unexpected(found="a batch whose items share one id", expected="an id in each item")
    if section.each and (section.batch is None or isinstance(section, BasicSection)):
        raise Unexpected(
            found="`each` without `batch`, or of a sender whose items hold no proof",
            expected="where the items are, and a signature or a token in each",
        )
    if isinstance(section, SignedSection):
        _check_signed(section)
    if any(said.constant_key for said in section.handshake) and not isinstance(
        section, HmacSection
    ):
        raise Unexpected(
            found="`constant_key` of a sender that does not sign with a shared secret",
            expected="provider: hmac",
        )
    for place in (place for said in section.handshake for place in signed_places(said)):
        if not isinstance(section, HmacSection) or not covers(section, place):
            raise Unexpected(
                found=f"{{hmac.{place}}} in an answer, of a challenge that nobody signs",
                expected="a signed one: whoever can change it could have anything signed",
            )


def is_of_item(choice: Template) -> bool:
    """Whether an id differs between the items of a batch."""
    return str(choice) in (DIGEST, UUID) or any(place.source == "json" for place in choice.places)


def _check_signed(section: SignedSection) -> None:
    timestamp = section.timestamp
    if section.signed.has("timestamp") and timestamp is None:
        raise Unexpected(found="{timestamp} in `signed`", expected="`timestamp`: where it is")
    if timestamp is None and section.tolerance is not None:
        raise Unexpected(found="a tolerance without `timestamp`", expected="a signed time, or none")
    if section.tolerance is not None and section.tolerance > section.redelivery + DAY:
        raise Unexpected(
            found=f"a tolerance of {format_duration(section.tolerance)}, and `redelivery:"
            f" {format_duration(section.redelivery)}`",
            expected="a day more than `redelivery` at most: event ids need not be kept for longer,"
            " and a captured request would be a new event",
        )
    if section.signed.has("id") and any(str(choice) in (DIGEST, UUID) for choice in section.id):
        raise Unexpected(found="{id} in `signed`", expected="`id`: where it is, and no digest")
    if timestamp is not None and not all(covers(section, place) for place in timestamp.at):
        raise Unexpected(
            found=f"a timestamp in {describe(str(timestamp.at[0]))}, which is not signed",
            expected="a signed one: freshness of an unsigned time is no protection (as information,"
            " it goes under occurred_at)",
        )


def covers(section: SignedSection, place: ValuePlace) -> bool:
    """Whether a change of the value at this place changes the signed bytes."""
    signed = section.signed
    if place in signed.places or _is_signature(section, place):
        return True
    if section.timestamp is not None and signed.has("timestamp") and place in section.timestamp.at:
        return True
    if signed.has("id") and any(place in choice.places for choice in section.id):
        return True
    match place.source:
        case "json":
            return signed.has("body")
        case "form":
            return signed.has("body") or signed.has("params")
        case "query":
            return signed.has("url")
    return False


def _is_signature(section: SignedSection, place: ValuePlace) -> bool:
    """Whether the place holds the only HMAC. Signed bytes have exactly one valid HMAC per key."""
    is_alone = section.signature.separator is None and section.signature.field is None
    return isinstance(section, HmacSection) and is_alone and place in section.signature.at


def covers_choice(section: SignedSection, choice: Template) -> bool:
    """Whether all of a value is signed. A digest is signed if the body is signed."""
    if str(choice) == DIGEST:
        return section.signed.has("body")
    if str(choice) == UUID:
        return False  # a captured request would be a new event each time
    return all(covers(section, place) for place in choice.places)
