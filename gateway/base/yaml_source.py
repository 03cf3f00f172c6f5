"""Read a YAML file into plain values with line numbers, and limit its size and features."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.problems import CREDENTIAL, Location, describe


class Section(BaseModel):
    """A mapping in the file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


LARGEST_FILE_BYTES: Final = 1024**2
DEEPEST: Final = 16
WHOLE_FILE: Final = "(document)"
SHOWN_BELOW_SECRETS: Final = frozenset({"secret", "expires_at"})
"""The keys in the mapping of a secret. Any other key there may be the secret itself."""
PLAIN_KEY: Final = re.compile(r"[\w.-]{1,60}")

# The core schema of YAML 1.2, as editors validate it: `no`, `on` and `1:30` are text.
NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS: Final = {"true": True, "True": True, "false": False, "False": False}
INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The line numbers of the keys in a file."""

    file: str
    numbers: Mapping[Location, int] = field(repr=False)

    def of(self, location: Location) -> int | None:
        """Return the line of a key, or of its nearest enclosing key."""
        while location and location not in self.numbers:
            location = location[:-1]
        return self.numbers.get(location)

    def problem(self, location: Location, *, found: str, expected: str) -> Problem:
        """Return a problem with the value of a key."""
        return Problem(
            file=self.file,
            line=self.of(location),
            key=key_path(location),
            found=found,
            expected=expected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file, with the problems of its YAML that did not prevent parsing."""

    value: Mapping[str, Any] = field(repr=False)
    lines: Lines
    problems: tuple[Problem, ...]


def key_path(location: Location) -> str:
    """Format a location as `routes.stripe.secrets[0]`.

    Below a key for secrets, another key may be the secret itself, so it is not shown.
    """
    path, secret = "", False
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        plain = PLAIN_KEY.fullmatch(part) and not CREDENTIAL.search(part)
        hidden = secret and part not in SHOWN_BELOW_SECRETS
        shown = "(not shown)" if hidden else part if plain else describe(part)
        path += f".{shown}" if path else shown
        secret = secret or "secret" in part or "token" in part
    return path or WHOLE_FILE


def read_document(path: Path) -> Document:
    """Read a file whose top level is a mapping. Raises ConfigInvalid."""
    text = _read_text(path)
    try:
        _refuse_expansion(path, text)
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ConfigInvalid([_syntax_problem(path, text, error)]) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and _scalar(root) is None):
        raise _invalid(path, None, "an empty file", "a mapping with `routes`")
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else "text"
        raise _invalid(path, _line(root), found, "a mapping with `routes`")
    reader = _Reader(str(path))
    value = reader.mapping(root, ())
    return Document(value=value, lines=reader.lines, problems=tuple(reader.problems))


class _Reader:
    """Walk the nodes of one document, and collect the line of each key and the problems."""

    def __init__(self, file: str) -> None:
        self.numbers: dict[Location, int] = {}
        self.lines = Lines(file=file, numbers=self.numbers)
        self.problems: list[Problem] = []

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(at, key, "a list or a mapping as a key", "text as a key")
                continue
            location = (*at, str(key.value))
            if location in self.numbers:
                found = f"the key a second time (first on line {self.numbers[location]})"
                self._refuse(location, key, found, "each key once")
                continue
            self.numbers[location] = _line(key)
            value = self._value(child, location)
            if value is not None:
                values[key.value] = value
        return values

    def _value(self, node: yaml.Node, at: Location) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*at, index)) for index, child in enumerate(node.value)]
        value = _scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if value is None:
            self._refuse(at, node, "nothing", "a value, or the key left out")
        return value

    def _item(self, node: yaml.Node, at: Location) -> Any:
        self.numbers[at] = _line(node)
        return self._value(node, at)

    def _refuse(self, at: Location, node: yaml.Node, found: str, expected: str) -> None:
        problem = self.lines.problem(at, found=found, expected=expected)
        self.problems.append(replace(problem, line=_line(node)))


def _line(marked: yaml.Node | yaml.Event) -> int:
    return 1 + (marked.start_mark.line if marked.start_mark else 0)


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style is not None:
        return text
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        expected = "the routes (GATEWAY_CONFIG names the file, `gateway init` makes a project)"
        raise _invalid(path, None, "no such file", expected) from None
    except OSError as error:
        raise _invalid(path, None, str(error.strerror), "a file that can be read") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise _invalid(path, None, "more than 1MiB", "at most 1MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _invalid(path, line, "bytes that are not UTF-8", "UTF-8") from None


def _refuse_expansion(path: Path, text: str) -> None:
    """Reject aliases, tags and deep nesting.

    Aliases can make a small file huge, tags can create objects, and deep nesting can exhaust the
    stack.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        found = _expansion(event) if depth <= DEEPEST else f"more than {DEEPEST} levels"
        if found:
            raise _invalid(path, _line(event), found, f"plain YAML, at most {DEEPEST} levels deep")


def _expansion(event: yaml.Event) -> str | None:
    if isinstance(event, yaml.AliasEvent):
        return "an alias (*)"
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        return "an anchor (&)"
    if getattr(event, "tag", None) is not None:
        return "a tag (!)"
    return None


def _syntax_problem(path: Path, text: str, error: yaml.YAMLError) -> Problem:
    """Return the parser's message without quoted text, which may be part of a secret."""
    line, reason = None, "unreadable YAML"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # Of all quoted text, only the handle of a tag is longer than one character.
        line, reason = error.problem_mark.line + 1, str(error.problem).partition(" '!")[0]
    elif isinstance(error, yaml.reader.ReaderError):
        line, reason = text.count("\n", 0, error.position) + 1, "a control character"
    if "'\\t'" in reason:
        return _problem(path, line, "a tab", "spaces: YAML takes no tabs here")
    return _problem(path, line, f"a syntax error ({reason})", "YAML")


def _problem(path: Path, line: int | None, found: str, expected: str) -> Problem:
    return Problem(file=str(path), line=line, key=WHOLE_FILE, found=found, expected=expected)


def _invalid(path: Path, line: int | None, found: str, expected: str) -> ConfigInvalid:
    return ConfigInvalid([_problem(path, line, found, expected)])
