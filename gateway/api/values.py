"""Texts and numbers from outside, as Postgres can hold them."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, StringConstraints

from gateway.notation.problems import Unexpected, describe

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""One line."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
"""An id as a provider made it."""


def _plain(value: object) -> object:
    """In a path a number is text; pydantic would take 1_0, +10 and 10.0 for it, too."""
    if isinstance(value, str) and not re.fullmatch("[1-9][0-9]{0,18}", value):
        raise Unexpected(found=describe(value), expected="the id of a row, in digits")
    return value


def _integer(value: object) -> object:
    """Take 10.0 as the integer that it is in JSON Schema, by which the API describes itself.
    https://json-schema.org/draft/2020-12/json-schema-core#section-4.2.2
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


INTEGER: Final = BeforeValidator(_integer)
"""For numbers in a JSON body."""

RowId = Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(_plain)]
"""An id as the ledger made it."""
