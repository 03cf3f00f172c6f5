"""Makes the tables of docs/routes.md from the JSON Schema of the file: `make docs`.

Which keys there are, what each takes and what it is by default is the schema's. What a key means is
the schema's description, until the page says more: what stands there is kept.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.config.routes import json_schema

PAGE: Final = Path(__file__).parents[1] / "docs" / "routes.md"
TABLE: Final = re.compile(r"(?<=^<!-- keys of )(.*?)( -->\n)((?:\|.*\n)*)", flags=re.MULTILINE)
HEAD: Final = "| key | takes | default | meaning |\n|---|---|---|---|\n"
FEW: Final = 6
KINDS: Final = {
    "duration": "1h30m",
    "size": "64KiB",
    "rate": "100/m",
    "reference": "env:NAME",
    "URL": "https://a.example/b",
    "place": "header.x-a",
    "time": "2026-12-01T00:00:00Z",
    "network": "192.30.252.0/22",
}
"""What a text is called whose pattern allows this one and no other of them."""

Node = Mapping[str, Any]


class Key(NamedTuple):
    """One key of the file, as the schema has it."""

    takes: str
    default: str | None
    meaning: str


def routes_keys() -> dict[str, Key]:
    """Every key of the file, by its place in it."""
    schema = json_schema()
    return dict(_keys(schema, schema, ""))


def _keys(schema: Node, node: Node, path: str) -> Iterator[tuple[str, Key]]:
    node = _resolved(schema, node)
    for branch in reversed(node.get("anyOf", ())):  # a route, or a queue, which has less
        yield from _keys(schema, branch, path)
    for name, child in node.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        known = _resolved(schema, child)
        takes = _takes(schema, known)
        default = _default(known, is_required=name in node.get("required", ()))
        yield at, Key(takes, default, known.get("description", ""))
        yield from _keys(schema, child, at)
    for child in node.get("patternProperties", {}).values():
        yield from _keys(schema, child, f"{path}.<name>")
    if "items" in node:
        yield from _keys(schema, node["items"], f"{path}[]")


def _resolved(schema: Node, node: Node) -> Node:
    if "$ref" not in node:
        return node
    found: Node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return {**found, **node}


def _default(node: Node, *, is_required: bool) -> str | None:
    if "default" not in node:
        return "required" if is_required else None
    default = node["default"]
    return f"`{json.dumps(default) if isinstance(default, bool) else default}`"


def _takes(schema: Node, node: Node) -> str:
    node = _resolved(schema, node)
    if "anyOf" in node:
        return _one_of(list(dict.fromkeys(_takes(schema, branch) for branch in node["anyOf"])))
    match node:
        case {"enum": values}:
            return _one_of([f"`{value}`" for value in values]) if len(values) <= FEW else "name"
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": items}:
            return f"list of {re.sub(r'(?<=[a-z])(?= or |$)', 's', _takes(schema, items))}"
        case {"type": "object"}:
            return "mapping"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"{low} to {high:,}"
    return _kind(node.get("pattern"))


def _one_of(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _kind(pattern: str | None) -> str:
    allowed = (
        [] if pattern is None else [k for k, text in KINDS.items() if re.search(pattern, text)]
    )
    match allowed:
        case [kind]:
            return kind
        case ["reference", "URL"]:
            return "URL or reference"
    return "text"


def rewrite(page: str) -> str:
    """The page with its tables as the schema has them now."""
    keys = routes_keys()
    tables = [found[1] for found in TABLE.finditer(page)]
    return TABLE.sub(
        lambda found: found[1] + found[2] + _table(found[1], found[3], tables, keys), page
    )


def _table(place: str, rows: str, tables: Iterable[str], keys: Mapping[str, Key]) -> str:
    written = dict(_read(rows))
    own = [key for key in keys if _belongs(key, place, tables)]
    in_order = [key for key in written if key in own] + [key for key in own if key not in written]
    return HEAD + "".join(_row(key, keys[key], written.get(key)) for key in in_order)


def _belongs(key: str, place: str, tables: Iterable[str]) -> bool:
    """Whether this is the table that says most exactly where the key stands."""
    around = [table for table in tables if table == "the file" or key.startswith(f"{table}.")]
    return max(around, key=lambda table: 0 if table == "the file" else len(table)) == place


def _read(rows: str) -> Iterator[tuple[str, list[str]]]:
    for line in rows.splitlines()[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        yield cells[0].strip("`"), cells[-2:]


def _row(name: str, key: Key, written: list[str] | None) -> str:
    default, meaning = written or ("none", key.meaning)
    return f"| `{name}` | {key.takes} | {key.default or default} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
