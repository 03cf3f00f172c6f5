"""Add a function, and the imports that it needs, to a Python module."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.base.errors import CommandFailed

FUTURE, STANDARD, OTHERS, OWN = range(4)
"""The groups of imports, in order."""

LONGEST_LINE: Final = 88
"""The default of black and ruff."""

# Lines as the parser counts them. str.splitlines() also splits at characters
# that may be in a string.
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDING: Final = re.compile(r"\r\n|\r|\n")
_BLANK_LINES: Final = 2
"""Blank lines between two functions."""


def names_of(path: Path, source: str) -> dict[str, int]:
    """Return the top-level names of a module with their lines."""
    names: dict[str, int] = {}
    for node in _parsed(path, source).body:
        for name in _bound(node):
            names[name] = node.lineno
    return names


def add_function(
    path: Path, source: str, function: str, imports: Mapping[str, Sequence[str]]
) -> str:
    """Return the module with the function appended and its imports added."""
    for module, names in imports.items():
        source = _withimport_text(path, source, module, names)
    return source + _ended(_missing_lines(source) + function, source)


def _missing_lines(source: str) -> str:
    """Return the newlines needed between the end of the module and the next function."""
    trailing = 0
    for line in reversed(_LINE.findall(source)):
        trailing += _ENDING.search(line) is not None
        if line.strip():
            break
    return "\n" * (_BLANK_LINES + 1 - trailing)


def _ended(text: str, source: str) -> str:
    """Convert line endings to those of the module."""
    ending = _ENDING.search(source)
    return text.replace("\n", ending[0]) if ending else text


def _parsed(path: Path, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise CommandFailed(f"{path}:{error.lineno}: {error.msg}: mend it first") from None
    except ValueError as error:
        raise CommandFailed(f"{path}: {error}: mend it first") from None


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Import():
            yield from (item.asname or item.name.partition(".")[0] for item in node.names)
        case ast.ImportFrom():
            yield from (item.asname or item.name for item in node.names)
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _withimport_text(path: Path, source: str, module: str, names: Sequence[str]) -> str:
    tree = _parsed(path, source)
    found = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == module]
    there = {item.name for node in found for item in node.names if item.asname is None}
    missing = [name for name in names if name not in there]
    if not missing:
        return source
    taken = names_of(path, source)
    for name in missing:
        if name in taken:
            raise CommandFailed(
                f"{path}:{taken[name]}: {name} is not {module}.{name} here: "
                "have the handler written into another --module"
            )
    plain = [node for node in found if not any(item.asname for item in node.names)]
    if plain:
        listed = {item.name for item in plain[0].names} | set(missing)
        return _replace(source, plain[0], import_text(module, listed))
    return _insert(path, source, tree, module, import_text(module, missing))


def import_text(module: str, names: Iterable[str]) -> str:
    """Return an import statement with names sorted like isort: classes first."""
    ordered = sorted(names, key=lambda name: (not name[:1].isupper(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= LONGEST_LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])


def _replace(source: str, node: ast.stmt, text: str) -> str:
    lines = _LINE.findall(source)
    start, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[start].encode()[: node.col_offset].decode()
    after = lines[end].encode()[node.end_col_offset :].decode()
    lines[start : end + 1] = [before + _ended(text, source) + after]
    return "".join(lines)


def _insert(path: Path, source: str, tree: ast.Module, module: str, text: str) -> str:
    """Insert an import where isort would place it: by group, then by name, after plain imports."""
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    own = path.parts[0]
    place = _place(module, is_from=True, own=own)
    earlier = [node for node in imports if _place_of(node, own) < place]
    later = [node for node in imports if _place_of(node, own) > place]
    if later and _place_of(later[0], own)[0] == place[0]:
        return _insert_lines(source, later[0].lineno - 1, f"{text}\n")
    if earlier:
        last = earlier[-1]
        same_group = _place_of(last, own)[0] == place[0]
        at = last.end_lineno or last.lineno
        return _insert_lines(source, at, f"{text}\n" if same_group else f"\n{text}\n")
    if later:
        return _insert_lines(source, later[0].lineno - 1, f"{text}\n\n")
    top = _end_of_docstring(tree)
    return _insert_lines(source, top, f"\n{text}\n" if top else f"{text}\n\n")


def _insert_lines(source: str, at: int, text: str) -> str:
    lines = _LINE.findall(source)
    if at and not _ENDING.search(lines[at - 1]):
        # The file has no final newline. Keep it that way.
        text = "\n" + text.removesuffix("\n")
    lines.insert(at, _ended(text, source))
    return "".join(lines)


def _place_of(node: ast.Import | ast.ImportFrom, own: str) -> tuple[int, bool, str]:
    if isinstance(node, ast.Import):
        return _place(node.names[0].name, is_from=False, own=own)
    return _place(node.module or "", is_from=True, own=own)


def _place(module: str, *, is_from: bool, own: str) -> tuple[int, bool, str]:
    top = module.partition(".")[0]
    if top == "__future__":
        return FUTURE, is_from, module
    if top in sys.stdlib_module_names:
        return STANDARD, is_from, module
    return (OWN if top in (own, "") else OTHERS), is_from, module


def _end_of_docstring(tree: ast.Module) -> int:
    if ast.get_docstring(tree, clean=False) is None:
        return 0
    return tree.body[0].end_lineno or 0
