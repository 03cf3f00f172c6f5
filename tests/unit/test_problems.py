"""What a refused value is said to be, and what was expected instead."""

from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from gateway.base.problems import refusals


def _refuse(value: str) -> str:
    raise ValueError(f"no {{such}} thing as {value}")


class Asked(BaseModel):
    text: Annotated[str, Field(min_length=1, max_length=5)] = "text"
    thing: Annotated[str, AfterValidator(_refuse)] = ""


@pytest.mark.parametrize(
    ("given", "found", "expected"),
    [
        ({"text": ""}, "''", "at least 1 character(s)"),
        ({"text": "too long"}, "'too long'", "at most 5 character(s)"),
        ({"thing": "{brace}"}, "'{brace}'", "Value error, no {such} thing as {brace}"),
    ],
)
def test_a_refusal_says_what_was_found_and_expected(
    given: dict[str, str], found: str, expected: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Asked(**given)
    [refusal] = refusals(caught.value)
    assert (refusal.found, refusal.expected) == (found, expected)
