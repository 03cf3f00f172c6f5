"""Sign requests like the sender, for `gateway send` and for tests."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson

from gateway.base.errors import BadPayload
from gateway.providers.provider import Incoming, Key, Sign, Signed
from gateway.providers.schemes.drafts import uses_form, wrap
from gateway.providers.schemes.keys import PublicKey
from gateway.providers.schemes.message import composer
from gateway.providers.schemes.moments import format_moment
from gateway.providers.schemes.places import Looked, ValuePlace, dig
from gateway.providers.schemes.planting import choose, plant
from gateway.providers.schemes.reader import make_split
from gateway.providers.schemes.sections import (
    DIGEST,
    BearerSection,
    HmacSection,
    ItemSection,
    SenderSection,
    SignedSection,
)
from gateway.providers.schemes.tokens import AUTHORIZATION
from gateway.providers.schemes.verifier import encode

ReadKey = Callable[[bytes], Key]
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Draft:
    """A request under construction."""

    def __init__(self, body: bytes, url: str, *, is_form: bool) -> None:
        self.headers = {"content-type": FORM if is_form else JSON}
        self.body = body
        self.url = url

    def put(self, place: ValuePlace, value: str, *, is_number: bool = False) -> None:
        """Set a value at its place. A field that the form already has is kept."""
        if place.source == "header":
            self.headers[place.name] = value
        elif place.source == "query":
            mark = "&" if urlsplit(self.url).query else "?"
            self.url += mark + urlencode({place.name: value})
        elif place.source == "json":
            self._plant(place.keys, int(value) if is_number else value)
        elif f"{place.name}=".encode() not in self.body:
            more = urlencode({place.name: value}).encode()
            self.body = b"&".join(filter(None, [self.body, more]))

    def _plant(self, keys: tuple[str, ...], value: Any) -> None:
        document = orjson.loads(self.body)
        if isinstance(document, dict):
            plant(document, keys, value)
            self.body = orjson.dumps(document)

    def incoming(self) -> Incoming:
        return Incoming(self.headers, self.body, "POST", self.url)


def make_sign(section: SenderSection, read_key: ReadKey) -> Sign:
    """Return the sign function of a scheme."""

    def sign(
        body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = ""
    ) -> Signed:
        body = _in_batch(section, body)
        draft = Draft(body, url, is_form=_is_form(section, body))
        _name(draft, section, id, type)
        if isinstance(section, SignedSection):
            _fill(draft, section, id)
            _sign(draft, section, read_key(secret), now)
        elif isinstance(section, BearerSection):
            token = (section.token.prefix or "") + secret.decode("utf-8", "replace")
            if section.each:
                _prove_each(draft, section, section.token.at[0], lambda _: token)
            else:
                draft.put(section.token.at[0], token)
        else:
            draft.headers[AUTHORIZATION] = f"Basic {base64.b64encode(secret).decode()}"
        return Signed(draft.headers, draft.body, draft.url)

    return sign


def _in_batch(section: SenderSection, body: bytes) -> bytes:
    """Wrap a single item in a batch. A body that is a batch already is returned unchanged."""
    split = make_split(section)
    if split is None:
        return body
    is_form = isinstance(section.batch, ValuePlace) and section.batch.source == "form"
    try:
        split(Incoming({"content-type": FORM if is_form else JSON}, body))
    except BadPayload:
        return wrap(orjson.loads(body), section.batch)
    return body


def _is_form(section: SenderSection, body: bytes) -> bool:
    """Whether the body is a form. A sender of forms may send JSON too, so
    the first byte decides.
    """
    return uses_form(section) and body[:1] not in (b"{", b"[")


def _name(draft: Draft, section: SenderSection, id: str, type: str) -> None:
    """Set id and type at their places outside the body."""
    for choices, value in ((section.id[:1], id), (section.type, type)):
        choice = choose(choices, value)
        if choice is None or str(choice) == DIGEST:
            continue
        for place, text in choice.match(value).items():
            if place.source != "json":
                draft.put(place, text)


def _fill(draft: Draft, section: SignedSection, id: str) -> None:
    """Set the other signed values, such as a token or a request id, if they are missing.

    Their text is arbitrary.
    """
    if section.each:
        return
    timestamps = [] if section.timestamp is None else section.timestamp.at
    for part in section.signed.parts:
        place = part.place
        if place is None or part.is_optional or place in timestamps:
            continue
        if place.reader()(Looked(draft.incoming())) is None:
            draft.put(place, id)


def _sign(draft: Draft, section: SignedSection, key: Key, now: datetime) -> None:
    moment = ""
    if section.timestamp is not None:
        moment = format_moment(now, section.timestamp.unit)
        _put_item(draft, section.timestamp, moment)
    if section.body_hash is not None:
        _put_body_hash(draft, section.body_hash)
    if section.each:
        place = section.signature.at[0]
        _prove_each(draft, section, place, lambda item: _signature(section, item, key))
        return
    signature = _signature(section, draft.incoming(), key)
    _put_item(draft, section.signature, signature)


def _put_body_hash(draft: Draft, place: ValuePlace) -> None:
    if draft.headers["content-type"] == JSON:
        draft.put(place, hashlib.sha256(draft.body).hexdigest())


def _put_item(draft: Draft, section: ItemSection, value: str) -> None:
    place = section.at[0]
    if section.field is not None and section.separator is not None:
        before = draft.headers.get(place.name)
        value = f"{section.field}={value}"
        value = value if before is None else f"{before}{section.separator}{value}"
    is_number = place.source == "json" and value.isdigit() and _held_number(draft, place)
    draft.put(place, value, is_number=is_number)


def _held_number(draft: Draft, place: ValuePlace) -> bool:
    try:
        return isinstance(dig(orjson.loads(draft.body), place.keys), int)
    except orjson.JSONDecodeError:
        return False


def _signature(section: SignedSection, incoming: Incoming, key: Key) -> str:
    message = composer(section)(Looked(incoming))
    encoding = section.signature.encoding
    if isinstance(key, PublicKey):
        variant = section.public if isinstance(section, HmacSection) else None
        prefix = section.signature.prefix if variant is None else variant.prefix
        return (prefix or "") + encode(key.sign(message), encoding).decode()
    algorithm = section.algorithm if isinstance(section, HmacSection) else "sha256"
    digest = hmac.digest(key, message, algorithm)
    return (section.signature.prefix or "") + encode(digest, encoding).decode()


def _prove_each(
    draft: Draft, section: SenderSection, place: ValuePlace, prove: Callable[[Incoming], str]
) -> None:
    """Put a signature or a token into every item of a batch."""
    split = make_split(section)
    items = [] if split is None else split(draft.incoming())
    signed = []
    for item in items:
        document = orjson.loads(item.body)
        plant(document, place.keys, prove(item))
        signed.append(document)
    if isinstance(section.batch, ValuePlace) and section.batch.source == "json":
        whole = orjson.loads(draft.body)
        plant(whole, section.batch.keys, signed)
        draft.body = orjson.dumps(whole)
    else:
        draft.body = orjson.dumps(signed)
