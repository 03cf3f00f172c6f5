"""The named statements of sql/*.sql."""

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_BLOCK: Final = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def read_queries() -> Mapping[str, str]:
    """Each statement by its name, without the semicolon that ends it."""
    folder = files("gateway.ledger").joinpath("sql")
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir()]
    return MappingProxyType(
        {
            name: f"-- {name}\n{body.strip().removesuffix(';')}"
            for text in texts
            for name, body in _BLOCK.findall(text)
        }
    )


QUERIES: Final = read_queries()
