"""GitHub's payloads as pydantic models, with errors that quote nothing of the payload."""

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)

SHOWN: Final = 5


def read_github_payload(model: type[Model], payload: Any) -> Model:
    """The payload as this model. Raises ValueError with what does not fit, and where."""
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        # Its own text quotes the values, and would be kept with the attempt.
        raise ValueError(f"the payload is no {model.__name__}: {_misfits(error)}") from None


def _misfits(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:SHOWN]]
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(shown) + more
