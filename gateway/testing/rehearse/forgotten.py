"""Find coroutines that a handler forgot to await. Python only warns about them."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from gateway.testing.places import is_users
from gateway.testing.rehearse.trace import Forgotten, current_run

_NEVER_AWAITED: Final = re.compile(r"coroutine '(.+)' was never awaited")
_OURS: Final = re.compile(r"(?:Watched)?(?P<owner>Context|Database)\.(?P<method>\w+)")
_OWNERS: Final = {"Context": "ctx", "Database": "ctx.db"}


@contextmanager
def noting_forgotten(root: Path) -> Iterator[None]:
    """Add the coroutines that were never awaited to their run while the block runs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", _NEVER_AWAITED.pattern, RuntimeWarning)
        show = warnings.showwarning

        def note(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            found, run = _NEVER_AWAITED.match(str(message)), current_run()
            if found is None or run is None:
                show(message, category, filename, lineno, file, line)
                return
            path = Path(filename)
            place = f"{path.relative_to(root)}:{lineno}" if is_users(path, root) else None
            run.forgotten.append(Forgotten(name=_as_written(found[1]), place=place))

        warnings.showwarning = note
        yield


def _as_written(name: str) -> str:
    """Return the name with which the handler calls it."""
    ours = _OURS.fullmatch(name)
    return f"{_OWNERS[ours['owner']]}.{ours['method']}" if ours else name
