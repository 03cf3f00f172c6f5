"""The OpenAPI description of the queues, which are served beside the Admin API."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from gateway.ledger.jobs import JobRow
from gateway.providers.publish import KEY_PATTERN, LONGEST_DELAY, LONGEST_NAME

SECURITY: Final = "queueToken"
PATH: Final = "/v1/queues/{queue}/jobs"

Name = Annotated[str | None, Field(min_length=1, max_length=LONGEST_NAME)]


class Publish(BaseModel):
    """A job to publish."""

    model_config = ConfigDict(extra="forbid")

    payload: Annotated[Any, Field(description="Any JSON; no object has a key twice.")]
    idempotencyKey: Annotated[  # noqa: N815 (the name in JSON)
        Name, Field(description="The same key is the same job; it is its id.")
    ] = None
    delaySeconds: Annotated[  # noqa: N815 (the name in JSON)
        float | None,
        Field(ge=0, le=LONGEST_DELAY.total_seconds(), description="Not to be run sooner."),
    ] = None
    type: Annotated[Name, Field(description="The event type; default: the queue's name.")] = None


class PublishedJob(TypedDict):
    """A job that is durable."""

    id: str
    status: Literal["accepted", "duplicate"]


class JobRefusal(TypedDict):
    """An error."""

    error: str
    detail: NotRequired[str]


REFUSALS: Final = {
    400: "What was sent cannot be published.",
    401: "The token is missing or wrong.",
    403: "The queue takes nothing from this address.",
    404: "There is no such queue or job.",
    405: "There is no such method.",
    408: "The body did not arrive in time.",
    409: "The key is that of a job with another payload or type.",
    413: "The body is too large.",
    429: "More than the queue's limit, or too many wrong tokens from this address.",
    503: "It could not be made durable, or not be looked up: come again.",
}
ID: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id of a job.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME},
}
KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Instead of idempotencyKey.",
    "schema": {"type": "string", "pattern": f"^(?:{KEY_PATTERN})$"},
}


def describe_queues(
    queues: Sequence[str], ref_template: str, schemas: dict[str, Any]
) -> dict[str, Any]:
    """Return the paths of the queues, and add the schemas that they refer to."""

    def of(shape: Any) -> dict[str, Any]:
        schema = TypeAdapter(shape).json_schema(ref_template=ref_template, mode="serialization")
        schemas.update(schema.pop("$defs", {}))
        return {"content": {"application/json": {"schema": schema}}}

    def refusals(*statuses: int) -> dict[str, Any]:
        return {
            str(status): {"description": REFUSALS[status], **of(JobRefusal)} for status in statuses
        }

    queue = {
        "name": "queue",
        "in": "path",
        "required": True,
        "description": "The name of a queue.",
        "schema": {"type": "string", "enum": list(queues)},
    }
    publish = {
        "operationId": "publish",
        "summary": "Publish a job; the same key again is the same job.",
        "security": [{SECURITY: []}],
        "parameters": [queue, KEY],
        "requestBody": {"required": True, **of(Publish)},
        "responses": {
            "201": {"description": "Durable, and new.", **of(PublishedJob)},
            "200": {"description": "Durable since before.", **of(PublishedJob)},
            **refusals(400, 401, 403, 404, 405, 408, 409, 413, 429, 503),
        },
    }
    job = {
        "operationId": "job",
        "summary": "How a job stands.",
        "security": [{SECURITY: []}],
        "parameters": [queue, ID],
        "responses": {
            "200": {"description": "Done.", **of(JobRow)},
            **refusals(401, 403, 404, 405, 429, 503),
        },
    }
    return {PATH: {"post": publish}, PATH + "/{id}": {"get": job}}
