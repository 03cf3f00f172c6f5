"""Replace personal data in an event before it is saved."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from gateway.base.errors import CommandFailed
from gateway.operations.fakes import EMAIL, Fakes
from gateway.privacy.redaction import fits, in_any_form

PII: Final = "pii"

Path = tuple[str | int, ...]

_KEPT: Final = frozenset({"id", "node_id", "object", "type", "action", "country", "currency"})
_PERSONAL: Final = frozenset(
    {
        *("phone", "customer_phone", "support_phone"),
        *("customer_name", "individual_name", "business_name", "first_name", "last_name"),
        *("maiden_name", "account_holder_name", "cardholder_name"),
        *("line1", "line2", "city", "town", "postal_code", "billing_address", "shipping_address"),
        *("address_line1", "address_line2", "address_city", "address_zip"),
        *("ip", "ip_address", "client_ip", "customer_purchase_ip"),
        *("last4", "dynamic_last4", "iban_last4", "ssn_last_4", "fingerprint"),
        *("routing_number", "account_number", "dob", "tax_id", "tax_ids", "customer_tax_ids"),
        *("client_secret", "receipt_url", "hosted_invoice_url", "invoice_pdf"),
    }
)
"""Keys whose values, with everything below them, are personal data, or link to a page with it."""
_CONTACT: Final = frozenset({"email", "phone", "address", "line1", "last4"})
"""Beside one of these keys, a `name` is that of a person, not of a product or repository."""
_OF_A_PERSON: Final = frozenset(
    {"previous_attributes", "shipping", "billing_details", "customer_details"}
)
"""Below these keys a `name` is always the name of a person."""
_PLACE: Final = frozenset({"line1", "postal_code"})
_MACHINE: Final = ("noreply@", "git@")
_EMAIL: Final = re.compile(rf"(?<![\w.+%-])(?!{'|'.join(_MACHINE)}){EMAIL}")
_HOSTED: Final = re.compile(r"https://(?:checkout|billing|invoice|pay)\.stripe\.com/.*")
_LOGINS: Final = frozenset({"login", "username"})
_URL: Final = re.compile(r"(?:\b[a-z][a-z0-9+.-]{0,15}://|\bgit@)\S+")
_SEGMENTED: Final = frozenset({"full_name", "label"})
"""Keys whose values begin with a login at GitHub: the names of repositories and branches."""
_FIELD: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
# A shorter text is too likely to occur elsewhere by chance.
_SPREAD_CHARS: Final = 5
_SPREAD_DIGITS: Final = 7


def redact(document: Any, paths: Sequence[str]) -> tuple[Any, int]:
    """Return the document with fakes at these paths, and the number of replaced values.

    A text that is replaced at one path is replaced everywhere else too. Raises CommandFailed for a
    path without a match, because a typo must not leak the data it was meant to redact.
    """
    places: set[Path] = set()
    for path in paths:
        found = set(_personal(document, ()) if path == PII else _select(document, path.split(".")))
        if not found and path != PII:
            raise CommandFailed(f"--redact {path}: the event has no such field; nothing was saved")
        places |= found
    fakes, logins = Fakes(), set[str]()
    # In document order, so that the same event always gives the same file.
    for at, value in _scalars(document, ()):
        if at in places:
            fakes.replace(_name(at), value)
            if _name(at) in _LOGINS and isinstance(value, str):
                logins.add(value)
    if PII in paths:
        _collect_emails(document, fakes)
    return _Rewrite(places, fakes, logins).apply(document, ()), len(fakes)


def _select(node: Any, segments: Sequence[str], at: Path = ()) -> Iterator[Path]:
    """Find the values that a path with wildcards selects, with everything below them except ids."""
    if not segments:
        yield from _below(node, at)
        return
    for key, value in _children(node):
        if fits(segments[0], key):
            yield from _select(value, segments[1:], (*at, key))


def _below(node: Any, at: Path) -> Iterator[Path]:
    if not isinstance(node, dict | list):
        yield at
        return
    for key, value in _children(node):
        if key not in _KEPT:
            yield from _below(value, (*at, key))


def _personal(node: Any, at: Path) -> Iterator[Path]:
    for key, value in _children(node):
        if _is_personal(key, value, node, at):
            yield from _below(value, (*at, key))
        else:
            yield from _personal(value, (*at, key))


def _is_personal(key: str | int, value: Any, node: Any, at: Path) -> bool:
    if key in _PERSONAL:
        return True
    if not isinstance(value, str) or not isinstance(node, dict):
        return isinstance(value, str) and _EMAIL.fullmatch(value) is not None
    if key == "name" and not _OF_A_PERSON.isdisjoint(at):
        return True
    match key:
        case "name" | "username":
            is_machine = str(node.get("email")).startswith(_MACHINE)
            return not is_machine and not _CONTACT.isdisjoint(node)
        case "state":
            return not _PLACE.isdisjoint(node)
        case "login":
            return bool(node.get("type") == "User")
    return bool(_EMAIL.fullmatch(value) or _HOSTED.fullmatch(value))


def _children(node: Any) -> list[tuple[str | int, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    return list(enumerate(node)) if isinstance(node, list) else []


def _scalars(node: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, dict | list):
        for key, value in _children(node):
            yield from _scalars(value, (*at, key))
    else:
        yield at, node


def _name(at: Path) -> str:
    return next((key for key in reversed(at) if isinstance(key, str)), "")


def _texts(node: Any) -> Iterator[str]:
    """Iterate over all strings, including keys."""
    for key, value in _children(node):
        yield from (text for text in (key, value) if isinstance(text, str))
        yield from _texts(value)


def _collect_emails(document: Any, fakes: Fakes) -> None:
    """Replace e-mail addresses inside longer texts: co-authors of a commit, comments, links."""
    for text in _texts([document]):
        for address in (*_EMAIL.findall(text), *_EMAIL.findall(unquote(text))):
            fakes.replace("email", address)


class _Rewrite:
    """Puts the fakes into a copy of the document."""

    def __init__(self, places: set[Path], fakes: Fakes, logins: set[str]) -> None:
        self._places, self._fakes, self._texts = places, fakes, fakes.texts
        self._spread = sorted(filter(_is_telling, self._texts), key=len, reverse=True)
        # One group for each text, to know which one matched in whatever encoding.
        words = "|".join(f"({in_any_form(text)})" for text in self._spread) or "(?!)"
        start = "(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"
        self._pattern = re.compile(rf"{start}(?:{words})(?![A-Za-z0-9])")
        short = "|".join(re.escape(text) for text in logins if not _is_telling(text)) or "(?!)"
        self._segment = re.compile(rf"(?<=[/:])(?<!//)(?:{short})(?![\w-]|\.(?!git\b)\w)")

    def apply(self, node: Any, at: Path) -> Any:
        if isinstance(node, dict):
            return self._object(node, at)
        if isinstance(node, list):
            return [self.apply(value, (*at, index)) for index, value in enumerate(node)]
        name = _name(at)
        if at in self._places:
            return self._fakes.replace(name, node)
        if not isinstance(node, str) or name in _KEPT:
            return node
        text = self._text(node)
        if name in _SEGMENTED:
            return self._segments(f"/{text}")[1:]
        return _URL.sub(lambda url: self._segments(url[0]), text)

    def _object(self, node: dict[str, Any], at: Path) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, value in node.items():
            # A field name may also be a login. Field names must stay.
            is_field = _FIELD.fullmatch(key) and _name(at) != "metadata"
            new = key if is_field else self._text(key)
            while new in copy:
                new += "_"
            copy[new] = self.apply(value, (*at, key))
        return copy

    def _text(self, text: str) -> str:
        return self._pattern.sub(self._stand_in, text)

    def _stand_in(self, match: re.Match[str]) -> str:
        original = self._spread[(match.lastindex or 0) - 1]
        fake = self._texts[original]
        return fake if match[0] == original else quote(fake, safe="")

    def _segments(self, text: str) -> str:
        return self._segment.sub(lambda match: self._texts[match[0]], text)


def _is_telling(text: str) -> bool:
    """Whether the text is too long to occur elsewhere by chance."""
    return len(text) >= (_SPREAD_DIGITS if text.isdecimal() else _SPREAD_CHARS)
