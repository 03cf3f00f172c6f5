"""Authorization headers: no token, no entry, and no error."""

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

from gateway.base.secrets import Secret, is_borne
from tests.fuzz.target import Check, Finding, Stage, Target


@contextmanager
def _open(_: Stage) -> Iterator[Check]:
    token = token_hex(16)
    tokens = [Secret(token.encode()), Secret(token_hex(16).encode())]

    def check(data: bytes) -> None:
        text = data.decode("latin-1")
        for given in (text, f"Bearer {text}", f"{text} {token}", f"Bearer {token}{text}"):
            is_known = given.strip().lower() == f"bearer {token}" or _bears(given, token)
            if is_borne(given, tokens) and not is_known:
                raise Finding(f"let in by {given!r}")

    yield check


def _bears(given: str, token: str) -> bool:
    scheme, _, rest = given.partition(" ")
    return scheme.lower() == "bearer" and rest.strip() == token


def _seeds() -> list[bytes]:
    return [b"", b"Bearer", b"Bearer x", b"bearer  x", b"Basic eDp5", b"Bearer \xff", b"Bearer\tx"]


TARGET = Target("tokens", _seeds, _open)
