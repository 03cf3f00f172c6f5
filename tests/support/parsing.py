"""Works around a defect of CPython 3.11.

ast.parse() raises SystemError ("AST constructor recursion depth mismatch") if a garbage collection
in the middle of it runs a finalizer that calls ast.parse(), too. The formatting of a traceback does
so, for example when a task is collected whose exception was not retrieved; and pytest parses every
test file, and the source of every frame that it shows (python/cpython#106905).
"""

import ast
import gc
import sys
from functools import wraps
from typing import Any

_parse = ast.parse


@wraps(_parse)
def _parse_without_collection(*args: Any, **options: Any) -> Any:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _parse(*args, **options)
    finally:
        if was_enabled:
            gc.enable()


def install() -> None:
    """Let no collection begin while ast.parse() works, on a Python that needs it."""
    if sys.version_info < (3, 12):
        ast.parse = _parse_without_collection
