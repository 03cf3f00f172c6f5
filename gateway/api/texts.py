"""Text from outside, as Postgres can hold it."""

from typing import Annotated

from pydantic import StringConstraints

Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""One line."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
"""An id as a provider made it."""
