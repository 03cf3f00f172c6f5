"""What proxies write of those before them: X-Forwarded-For and Forwarded (RFC 7239).

Whoever sends can write anything here. The proxy nearest to us adds its word at the end, so that
both are read from there, and no further than the first word that is not to be believed.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.notation.networks import LONGEST_ADDRESS, Address, read_address

MOST_HOPS: Final = 32
LONGEST_FORWARDED: Final = 4096

_PORT: Final = r"(?::[0-9]{1,5})?"
_BRACKETED: Final = re.compile(rf"\[([^\[\]]*:[^\[\]]*)\]{_PORT}")
_WITH_PORT: Final = re.compile(r"([0-9.]+):[0-9]{1,5}")
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_PAIR: Final = re.compile(rf"[ \t]*({_WORD})=({_WORD}|{_QUOTED})[ \t]*([,;]|\Z)")


def read_hop(text: str) -> Address | None:
    """An address as proxies write it: with a port, in brackets, with a zone; None for all else."""
    if len(text) > LONGEST_ADDRESS:
        return None
    match = _BRACKETED.fullmatch(text) or _WITH_PORT.fullmatch(text)
    return read_address(match[1] if match else text)


def hops_of_list(lines: Sequence[bytes]) -> Iterator[str]:
    """X-Forwarded-For, the nearest first. What is past the bound comes in one piece."""
    for line in reversed(lines):
        for hop in reversed(line.decode("latin-1").rsplit(",", MOST_HOPS)):
            yield hop.strip(" \t")


def hops_of_pairs(lines: Sequence[bytes]) -> Iterator[str]:
    """Forwarded, the nearest first. A line that cannot be read to its end is no address."""
    for line in reversed(lines):
        yield from reversed(_for_values(line.decode("latin-1")))


def _for_values(line: str) -> list[str]:
    """The `for` of each element. A quote that a stranger left open must not swallow what a proxy
    added, so that anything odd spoils the whole line."""
    if len(line) > LONGEST_FORWARDED:
        return [""]
    values: list[str] = []
    found: str | None = None
    at, end = 0, ";"
    while end:
        match = _PAIR.match(line, at)
        if match is None:
            return [""]
        name, value, end = match.groups()
        at = match.end()
        if name.lower() == "for":
            if found is not None:
                return [""]
            found = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else value
        if end != ";":
            values.append(found or "")
            found = None
    return values
