"""Requests that are no events, and their answers: challenges, pings, checks of the URL."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from gateway.errors import BadPayload, BadSignature
from gateway.notation.problems import Unexpected
from gateway.providers.provider import Greet, Greeting, Incoming, Key
from gateway.providers.schemes.places import Looked, Place, Reader
from gateway.providers.schemes.sections import HandshakeSection
from gateway.providers.schemes.template import Part, Template, parse_template

LONGEST_ECHO: Final = 2048
HMAC: Final = "hmac."
TEXT: Final = "text/plain; charset=utf-8"
WRONG_TOKEN: Final = Greeting(403, b"")

Fill = Callable[[Looked, Key], str]


def make_greet(handshakes: Sequence[HandshakeSection]) -> Greet | None:
    """Looks for a handshake in a verified request; None where the sender has none."""
    signed = [_handshake(one) for one in handshakes if one.method == "POST"]
    if not signed:
        return None

    def greet(incoming: Incoming, *, key: Key) -> Greeting | None:
        # Most bodies do not even hold the word, and are not parsed for it.
        likely = [one for one in signed if one.may_be(incoming.body)]
        looked = Looked(incoming)
        return next((one.answer(looked, key) for one in likely if one.fits(looked)), None)

    return greet


def make_greet_by_get(handshakes: Sequence[HandshakeSection]) -> Greet | None:
    """Answers GET or HEAD, which nobody signs: the key is the route's verify_token."""
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


def _is_token(place: Place, looked: Looked, key: Key) -> bool:
    sent = (place.reader()(looked) or "").encode("utf-8", "replace")
    return bool(key) and hmac.compare_digest(sent, key)


class _Handshake:
    """One kind of handshake, compiled."""

    def __init__(self, said: HandshakeSection) -> None:
        self._status = said.status
        self._when = [
            (Place.parse(place).reader(), _said(value)) for place, value in said.when.items()
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
    """An answer may also hold `{hmac.json.x}`: the HMAC in hex of what is there."""
    plain = parse_template(text.replace("{" + HMAC, "{"))
    signed = {part for part in plain.parts if "{" + HMAC + part.word + "}" in text}
    return Template(
        tuple(
            Part(HMAC + piece.word, piece.place) if piece in signed else piece
            for piece in plain.pieces
        )
    )


def signed_places(said: HandshakeSection) -> list[Place]:
    """Where the challenges are that the answer signs."""
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
    """Never for a stranger: what he has signed may be an event of his own."""
    if not isinstance(key, bytes):
        raise BadSignature("a challenge to be signed, and no sender with a shared secret")
    return hmac.digest(key, challenge.encode(), "sha256").hex()


def _echo(reader: Reader, looked: Looked) -> str:
    text = reader(looked)
    if text is None:
        raise BadPayload("a handshake without its challenge")
    return text.encode("utf-8", "replace").decode()
