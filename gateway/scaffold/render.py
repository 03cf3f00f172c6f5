"""The Python of a new handler and of its test."""

import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.scaffold.modules import LONGEST_LINE, import_text
from gateway.scaffold.subject import Column, Subject
from gateway.scaffold.tables import Table
from gateway.scaffold.template import read_template

GATEWAY_NAMES: Final = ("Context", "Event", "handler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A handler that is about to be written."""

    route: str
    type: str
    module: str
    function: str
    subject: Subject
    table: Table
    event: Path | None
    """The recorded event that it was made from, if there is one."""

    @property
    def imports(self) -> Mapping[str, Sequence[str]]:
        """What the function needs, by module."""
        needed: dict[str, Sequence[str]] = {}
        if self.subject.version.startswith("datetime."):
            needed["datetime"] = ["datetime"]
        return needed | {"gateway": GATEWAY_NAMES}

    def function_text(self) -> str:
        """The handler itself."""
        subject = self.subject
        return "\n".join(
            [
                f"@handler({_text(glob.escape(self.type))})",
                _fitted(f"async def {self.function}(", "event: Event, ctx: Context", ") -> None:"),
                f'    """{subject.summary}"""',
                *([f"    {subject.variable} = {subject.place}"] if self._uses_the_object else []),
                "    await ctx.upsert(",
                f"        {_text(self.table.name)},",
                *_mapping("key", subject.key),
                *_mapping("values", self.table.values),
                f"        version={subject.version},",
                "    )",
                "",
            ]
        )

    @property
    def _uses_the_object(self) -> bool:
        sources = [c.source for c in (*self.subject.key, *self.table.values)]
        return any(f"{self.subject.variable}[" in s for s in (*sources, self.subject.version))

    def test_text(self) -> str:
        """Its test."""
        subject = self.subject
        arguments = f"{_text(self.route)}, {_text(self.type)}"
        if self.event is not None:
            arguments += f", file={_text(self.event.as_posix())}"
        lines = [_fitted("event = make_event(", arguments, ")", indent=1)]
        lines.append(f"    deliver_twice({self.function}, event)")
        # A name that only letters, digits and _ are in.
        lines.append(f'    [row] = db.fetch("select * from {self.table.name}")')  # noqa: S608
        if self._uses_the_object:
            lines.append(f"    {subject.variable} = {subject.place}")
        for column in (*subject.key, *self.table.values):
            lines.append(_assert(f"row[{_text(column.name)}] == {column.source}"))
        return read_template(
            "new_test.py",
            handler=import_text(self.module, [self.function]),
            function=self.function,
            body="\n".join(lines),
        )


def _mapping(name: str, columns: Iterable[Column]) -> list[str]:
    listed = list(columns)
    if name == "key" and len(listed) == 1:
        return [f"        key={{{_text(listed[0].name)}: {listed[0].source}}},"]
    items = [f"            {_text(column.name)}: {column.source}," for column in listed]
    return [f"        {name}={{", *items, "        },"]


def _fitted(start: str, middle: str, end: str, *, indent: int = 0) -> str:
    """On one line if that is short enough, else on three, as the formatters do it."""
    margin = "    " * indent
    line = f"{margin}{start}{middle}{end}"
    if len(line) <= LONGEST_LINE:
        return line
    return f"{margin}{start}\n{margin}    {middle}\n{margin}{end}"


def _assert(condition: str) -> str:
    line = f"    assert {condition}"
    return line if len(line) <= LONGEST_LINE else _fitted("assert (", condition, ")", indent=1)


def _text(value: str) -> str:
    """A literal with double quotes."""
    return json.dumps(value, ensure_ascii=False)
