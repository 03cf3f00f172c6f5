"""What is told of an error whose text is sealed."""

import re
from typing import Final

CONCEALED: Final = "its text is encrypted"
_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}(?=:|$)")


def outline_of(text: str) -> str:
    """Of an error that was kept as text: its first word, if that is the name of a class."""
    name = _CLASS.match(text)
    return f"{name[0] if name else 'an error'}, {CONCEALED}"
