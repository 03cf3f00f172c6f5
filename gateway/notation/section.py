"""What every mapping of a YAML file has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping in the file, whose unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
