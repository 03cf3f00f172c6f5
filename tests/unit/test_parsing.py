"""A finalizer that parses does not disturb who parses meanwhile."""

import ast
import gc
from collections.abc import Iterator

import pytest

MODULE = "\n".join(f"def f{n}(a):\n    return g(a)(b)[{n}].x" for n in range(300))


class Parses:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("f(a)(b)[1]")


@pytest.fixture
def _frequent_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_frequent_collections")
def test_a_finalizer_may_parse_while_something_is_parsed() -> None:
    for _ in range(20):
        for _ in range(20):
            Parses()
        assert len(ast.parse(MODULE).body) == 300
