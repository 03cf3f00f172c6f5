"""Handshakes: requests that are not events (challenges, pings, URL checks), and their responses."""

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import orjson

from gateway.base.errors import BadPayload, BadSignature, RequestRejected
from gateway.base.model import is_form
from gateway.base.problems import Unexpected
from gateway.providers.provider import (
    Greet,
    Greeting,
    GreetUnverified,
    Incoming,
    Key,
    Verify,
)
from gateway.providers.schemes.places import Looked, Reader, ValuePlace, to_text
from gateway.providers.schemes.sections import HandshakeSection
from gateway.providers.schemes.template import Part, Template, parse_template

LONGEST_ECHO: Final = 2048
LARGEST_OPEN_BODY: Final = 1024
"""The largest body of a handshake that no secret of the route proves. The known ones
have less than 150 bytes.
"""
_KINDS: Final = {
    # No control characters, and no character that could start a tag: the text may be echoed.
    "text": re.compile("[^\x00-\x1f\x7f-\x9f<>\ud800-\udfff]{1,2048}"),
    "digits": re.compile("[0-9]{1,20}"),
}
HMAC: Final = "hmac."
TEXT: Final = "text/plain; charset=utf-8"
WRONG_TOKEN: Final = Greeting(403, b"")

Fill = Callable[[Looked, Key], str]


def make_greet(handshakes: Sequence[HandshakeSection]) -> Greet | None:
    """Return a function that answers handshakes in verified requests, or
    None if the scheme has none.
    """
    signed = [_handshake(one) for one in handshakes if one.method == "POST" and not one.is_open]
    if not signed:
        return None

    def greet(incoming: Incoming, *, key: Key) -> Greeting | None:
        # Most bodies do not contain the words of a handshake. Do not parse them for it.
        likely = [one for one in signed if one.may_be(incoming.body)]
        looked = Looked(incoming)
        return next((one.answer(looked, key) for one in likely if one.fits(looked)), None)

    return greet


def make_greet_by_get(handshakes: Sequence[HandshakeSection]) -> Greet | None:
    """Return a function that answers GET or HEAD, which are never signed.

    Its key is the route's `verify_token`.
    """
    unsigned = [(one, _handshake(one)) for one in handshakes if one.method != "POST"]
    if not unsigned:
        return None

    def greet(incoming: Incoming, *, key: Key) -> Greeting | None:
        looked = Looked(incoming)
        for said, one in unsigned:
            if incoming.method == said.method and one.fits(looked):
                if said.token is not None and not _is_token(said.token, looked, key):
                    return WRONG_TOKEN
                return one.answer(looked, None)
        return None

    return greet


def make_greet_unverified(
    handshakes: Sequence[HandshakeSection],
    *,
    proof_headers: Sequence[str],
    verify: Verify,
    read_key: Callable[[bytes], Key],
) -> GreetUnverified | None:
    """Return a function that answers the handshakes that no secret of the route proves.

    Each accepts only one exact set of fields. If the handshake is unsigned, `proof_headers`, in
    which the sender's events carry their proof, must be absent.
    """
    opened = [
        (
            _handshake(said),
            _Shape(said.fields),
            None if said.constant_key is None else read_key(said.constant_key.encode()),
        )
        for said in handshakes
        if said.is_open
    ]
    if not opened:
        return None

    def greet(incoming: Incoming, *, now: datetime) -> Greeting | None:
        for handshake, shape, key in opened:
            try:
                looked = Looked(incoming, is_verified=False)
                if not shape.fits(looked) or not handshake.fits(looked):
                    continue
                if key is not None:
                    verify(incoming, keys=[key], now=now, tolerance=None)
                elif any(name in incoming.headers for name in proof_headers):
                    continue
                return handshake.answer(looked, None)
            except RequestRejected:
                continue
        return None

    return greet


class _Shape:
    """The exact fields of a request, in its query and its body."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._kinds = {ValuePlace.parse(field): _KINDS[kind] for field, kind in fields.items()}
        self._body = next((one.source for one in self._kinds if one.source != "query"), None)

    def fits(self, looked: Looked) -> bool:
        """Whether the request has each field once, with a value of its kind, and nothing else."""
        if len(looked.body) > LARGEST_OPEN_BODY:
            return False
        found = [(ValuePlace("query", name), value) for name, value in looked.query_fields]
        if self._body is None and looked.body:
            return False
        if self._body == "form":
            found += [(ValuePlace("form", name), value) for name, value in looked.form_fields]
        elif self._body == "json":
            document = None if is_form(looked.headers, looked.body) else looked.json
            if not isinstance(document, dict):
                return False
            found += [
                (ValuePlace("json", name), to_text(value) or "") for name, value in document.items()
            ]
        return sorted(place for place, _ in found) == sorted(self._kinds) and all(
            self._kinds[place].fullmatch(value) for place, value in found
        )


def _is_token(place: ValuePlace, looked: Looked, key: Key) -> bool:
    sent = (place.reader()(looked) or "").encode("utf-8", "replace")
    return bool(key) and hmac.compare_digest(sent, key)


class _Handshake:
    """A compiled handshake."""

    def __init__(self, said: HandshakeSection) -> None:
        self._status = said.status
        self._when = [
            (ValuePlace.parse(place).reader(), _said(value)) for place, value in said.when.items()
        ]
        self._words = [
            _said(value).encode() for place, value in said.when.items() if place.startswith("json.")
        ]
        self._text = None if said.text is None else _filler(said.text)
        self._json: Mapping[str, Fill] | None = (
            None
            if said.json_answer is None
            else {name: _filler(text) for name, text in said.json_answer.items()}
        )

    def may_be(self, body: bytes) -> bool:
        return all(word in body for word in self._words)

    def fits(self, looked: Looked) -> bool:
        return all(read(looked) == value for read, value in self._when)

    def answer(self, looked: Looked, key: Key) -> Greeting:
        if self._json is not None:
            told = {name: fill(looked, key) for name, fill in self._json.items()}
            return Greeting(self._status, orjson.dumps(told))
        if self._text is not None:
            return Greeting(self._status, self._text(looked, key).encode(), TEXT)
        return Greeting(self._status)


def _handshake(said: HandshakeSection) -> _Handshake:
    return _Handshake(said)


def _said(value: str | int | bool) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _filler(text: str) -> Fill:
    pieces = [_piece(piece) for piece in parse_answer(text).pieces]

    def fill(looked: Looked, key: Key) -> str:
        told = "".join(piece if isinstance(piece, str) else piece(looked, key) for piece in pieces)
        if len(told) > LONGEST_ECHO:
            raise BadPayload(f"a challenge of {len(told)} characters; expected {LONGEST_ECHO}")
        return told

    return fill


def parse_answer(text: str) -> Template:
    """Parse a response.

    It may also contain `{hmac.json.x}`, the hex HMAC of the value at that place.
    """
    plain = parse_template(text.replace("{" + HMAC, "{"))
    signed = {part for part in plain.parts if "{" + HMAC + part.word + "}" in text}
    return Template(
        tuple(
            Part(HMAC + piece.word, piece.place) if piece in signed else piece
            for piece in plain.pieces
        )
    )


def signed_places(said: HandshakeSection) -> list[ValuePlace]:
    """Return the places of the challenges that the response signs."""
    texts = [said.text or "", *(said.json_answer or {}).values()]
    parts = [part for text in texts if HMAC in text for part in parse_answer(text).parts]
    return [part.place for part in parts if part.place is not None and part.word.startswith(HMAC)]


def _piece(piece: str | Part) -> str | Fill:
    if isinstance(piece, str):
        return piece
    if piece.place is None:
        raise Unexpected(found=str(piece), expected="a place")
    reader = piece.place.reader()
    if piece.word.startswith(HMAC):
        return lambda looked, key: _signed(_echo(reader, looked), key)
    return lambda looked, _: _echo(reader, looked)


def _signed(challenge: str, key: Key) -> str:
    """Sign a challenge, never for an unverified sender: the challenge may be an
    event of the sender's choice.
    """
    if not isinstance(key, bytes):
        raise BadSignature("a challenge to be signed, and no sender with a shared secret")
    return hmac.digest(key, challenge.encode(), "sha256").hex()


def _echo(reader: Reader, looked: Looked) -> str:
    text = reader(looked)
    if text is None:
        raise BadPayload("a handshake without its challenge")
    return text.encode("utf-8", "replace").decode()
