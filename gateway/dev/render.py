"""Render templates into the files of a project."""

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.dev.modules import LONGEST_LINE, import_text
from gateway.dev.sample_row import NewTable, SampleSubject, SubjectColumn

GAP: Final = re.compile(r"\{\{([a-z_]+)\}\}")


def read_template(name: str, **gaps: str) -> str:
    """Return the file `templates/<name>.tmpl` with its placeholders replaced."""
    text = files(__package__).joinpath("templates", f"{name}.tmpl").read_text(encoding="utf-8")
    return GAP.sub(lambda gap: gaps[gap[1]], text)


def read_if_there(path: Path) -> str | None:
    """Return the text of a file, or None if it does not exist."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path}: cannot be read: {_reason(error)}") from error


@contextlib.contextmanager
def written(files: Mapping[Path, str]) -> Iterator[None]:
    """Write the files. Undo all changes if that fails or if the block raises."""
    with contextlib.ExitStack() as undo:
        for path, text in files.items():
            try:
                _write(path.resolve(), text, undo)
            except OSError as error:
                raise CommandFailed(f"{path}: cannot be written: {_reason(error)}") from error
        yield
        undo.pop_all()


def _write(path: Path, text: str, undo: contextlib.ExitStack) -> None:
    _make_folder(path.parent, undo)
    before = path.read_bytes() if path.exists() else None
    _put(path, text.encode())
    if before is None:
        undo.callback(path.unlink, missing_ok=True)
    else:
        undo.callback(_put, path, before)


def _make_folder(folder: Path, undo: contextlib.ExitStack) -> None:
    if not folder.exists():
        _make_folder(folder.parent, undo)
        folder.mkdir()
        undo.callback(_remove_folder, folder)


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another process has put a file into it
        folder.rmdir()


def _put(path: Path, content: bytes) -> None:
    """Replace the file atomically: a concurrent reader, such as a watching
    `up`, never sees half of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"


GATEWAY_NAMES: Final = ("Context", "Event", "handler")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDraft:
    """A handler to be written."""

    route: str
    type: str
    module: str
    function: str
    subject: SampleSubject
    table: NewTable
    event: Path | None
    """The recorded event that the handler is based on, if any."""

    @property
    def imports(self) -> Mapping[str, Sequence[str]]:
        """Imported names that the function needs, by module."""
        needed: dict[str, Sequence[str]] = {}
        if self.subject.version.startswith("datetime."):
            needed["datetime"] = ["datetime"]
        return needed | {"gateway": GATEWAY_NAMES}

    def function_text(self) -> str:
        """Render the handler function."""
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
        """Render the test."""
        subject = self.subject
        arguments = f"{_text(self.route)}, {_text(self.type)}"
        if self.event is not None:
            arguments += f", file={_text(self.event.as_posix())}"
        lines = [_fitted("event = make_event(", arguments, ")", indent=1)]
        lines.append(f"    deliver_twice({self.function}, event)")
        # The table name contains only letters, digits and _.
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


def _mapping(name: str, columns: Iterable[SubjectColumn]) -> list[str]:
    listed = list(columns)
    if name == "key" and len(listed) == 1:
        return [f"        key={{{_text(listed[0].name)}: {listed[0].source}}},"]
    items = [f"            {_text(column.name)}: {column.source}," for column in listed]
    return [f"        {name}={{", *items, "        },"]


def _fitted(start: str, middle: str, end: str, *, indent: int = 0) -> str:
    """Return one line if it is short enough, else three, like the formatters."""
    margin = "    " * indent
    line = f"{margin}{start}{middle}{end}"
    if len(line) <= LONGEST_LINE:
        return line
    return f"{margin}{start}\n{margin}    {middle}\n{margin}{end}"


def _assert(condition: str) -> str:
    line = f"    assert {condition}"
    return line if len(line) <= LONGEST_LINE else _fitted("assert (", condition, ")", indent=1)


def _text(value: str) -> str:
    """Return a string literal with double quotes."""
    return json.dumps(value, ensure_ascii=False)
