"""`tests/prose.py`: the word list of docstrings and comments."""

import pytest

from tests.prose import find

MODULE = '''"""Keep {words}."""


def hold() -> None:
    """Quote `what was` as code."""
    size = 1  # {words}
    message = "{words}"
'''


@pytest.mark.parametrize(
    "words", ["whoever asks", "Nobody", "it tells of that", "what was refused"]
)
def test_a_listed_word_is_found_in_docstrings_and_comments(words: str) -> None:
    found = list(find(MODULE.format(words=words), "gateway/x.py"))
    assert [one.line for one in found] == [1, 6]
    assert str(found[0]).startswith("gateway/x.py:1: found ")


@pytest.mark.parametrize("words", ["whose lease", "the caller", "what follows", "a retold tale"])
def test_other_words_are_not_found(words: str) -> None:
    assert list(find(MODULE.format(words=words), "gateway/x.py")) == []
