"""Compose the signed bytes from a request."""

from collections.abc import Callable, Sequence
from urllib.parse import quote, urlsplit

from gateway.base.errors import BadSignature
from gateway.providers.provider import Incoming
from gateway.providers.schemes.batch import time_reader
from gateway.providers.schemes.places import Looked, Reader
from gateway.providers.schemes.sections import SignedSection
from gateway.providers.schemes.template import Part

Compose = Callable[[Looked], bytes]


def composer(section: SignedSection) -> Compose:
    """Return a function that composes the signed bytes from a parsed request."""
    pieces = [
        piece.encode() if isinstance(piece, str) else _filler(piece, section)
        for piece in section.signed.pieces
    ]
    if len(pieces) == 1 and not isinstance(pieces[0], bytes):
        return pieces[0]

    def compose(looked: Looked) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(looked) for piece in pieces])

    return compose


def make_proof(section: SignedSection) -> Callable[[Incoming], bytes]:
    """Return a function that composes the signed bytes from a raw request, parsed as
    strictly as for verification.
    """
    compose = composer(section)
    return lambda incoming: compose(Looked(incoming, is_verified=False))


def _filler(part: Part, section: SignedSection) -> Compose:
    match part.word:
        case "body":
            return lambda looked: looked.body
        case "method":
            return lambda looked: looked.incoming.method.encode("ascii", "replace")
        case "url":
            return _url(section.url_decodes or "")
        case "path":
            return lambda looked: urlsplit(looked.incoming.url).path.encode("utf-8", "replace")
        case "params":
            return _params
        case "timestamp":
            return _required(time_reader(section), "timestamp")
        case "id":
            readers = [choice.reader() for choice in section.id]
            return _required(lambda looked: _first(readers, looked), "id")
    reader = None if part.place is None else part.place.reader()
    encoding = "latin-1" if part.place is not None and part.place.source == "header" else "utf-8"
    if part.around is not None and reader is not None:
        return _segment(reader, part.around, encoding)
    if part.is_optional and reader is not None:
        return lambda looked: (reader(looked) or "").encode("utf-8", "replace")
    return _required(reader, part.word, encoding)


def _first(readers: Sequence[Reader], looked: Looked) -> str | None:
    return next((text for read in readers if (text := read(looked))), None)


def _required(reader: Reader | None, name: str, encoding: str = "latin-1") -> Compose:
    def fill(looked: Looked) -> bytes:
        text = None if reader is None else reader(looked)
        if text is None:
            raise BadSignature(f"no {name}, which is part of what is signed")
        return text.encode(encoding, "replace")

    return fill


def _segment(reader: Reader, around: tuple[str, str], encoding: str) -> Compose:
    """Fill a segment, which is left out as a whole if its place holds nothing."""
    before, after = around

    def fill(looked: Looked) -> bytes:
        text = reader(looked)
        return f"{before}{text}{after}".encode(encoding, "replace") if text else b""

    return fill


def _url(decoded: str) -> Compose:
    if not decoded:
        return lambda looked: looked.incoming.url.encode("utf-8", "replace")
    codes = {quote(char, safe=""): char for char in decoded}

    def fill(looked: Looked) -> bytes:
        url = looked.incoming.url
        for code, char in codes.items():
            url = url.replace(code, char).replace(code.lower(), char)
        return url.encode("utf-8", "replace")

    return fill


def _params(looked: Looked) -> bytes:
    """Return names and values of a form, sorted and joined, each pair once.

    https://www.twilio.com/docs/usage/security#validating-requests
    """
    pairs = sorted(set(looked.form_fields))
    return "".join(name + value for name, value in pairs).encode("utf-8", "replace")
