"""The OpenAPI document, generated from the table of operations."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import TypeAdapter

from gateway.api.jobs import SECURITY as QUEUE_TOKEN
from gateway.api.jobs import describe_queues
from gateway.api.operation import PREFIX, Operation

COMPONENTS: Final = "#/components/schemas/{model}"
ERROR: Final = {
    "type": "object",
    "required": ["error", "detail"],
    "properties": {
        "error": {"type": "string", "description": "A word for programs."},
        "detail": {"type": "string", "description": "A sentence for people."},
    },
}
REFUSALS: Final = {
    400: "What was sent cannot be used.",
    401: "The token is missing or wrong.",
    404: "There is no such thing.",
    405: "There is no such method.",
    408: "The body did not come in time.",
    409: "It stands in a state that forbids this.",
    413: "The body is too large.",
    429: "Too many wrong tokens came from this address.",
    503: "The ledger cannot be reached.",
}


def describe_api(
    operations: Iterable[Operation[Any, Any]], queues: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the document with the operations, and the queues that accept jobs over HTTP."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = PREFIX + operation.path.replace(":path", "")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    if queues:
        paths |= describe_queues(queues, COMPONENTS, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Webhook Gateway: Admin API",
            "version": version("webhook-gateway-server"),
            "description": "What the commands do, over HTTP; and the queues, which take jobs.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                QUEUE_TOKEN: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of the queue's own tokens.",
                },
            },
        },
    }


def _operation(operation: Operation[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    asked = operation.params.model_json_schema(ref_template=COMPONENTS)
    answered = TypeAdapter(operation.result).json_schema(
        ref_template=COMPONENTS, mode="serialization"
    )
    for schema in (asked, answered):
        schemas |= schema.pop("$defs", {})
    properties, required = asked.get("properties", {}), set(asked.get("required", ()))
    in_body = {n: p for n, p in properties.items() if n not in operation.in_path}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            _parameter(name, schema, operation, is_required=name in required)
            for name, schema in properties.items()
            if name in operation.in_path or not operation.in_body
        ],
        "responses": {
            str(operation.status): {
                "description": "Done.",
                "content": {"application/json": {"schema": answered}},
            },
            **{str(status): _refusal(text) for status, text in REFUSALS.items()},
        },
    }
    if operation.in_body and in_body:
        described["requestBody"] = {
            "required": bool(required - set(operation.in_path)),
            "content": {"application/json": {"schema": _object(in_body, required)}},
        }
    return described


def _parameter(
    name: str, schema: dict[str, Any], operation: Operation[Any, Any], *, is_required: bool
) -> dict[str, Any]:
    in_path = name in operation.in_path
    return {
        "name": name,
        "in": "path" if in_path else "query",
        "required": in_path or is_required,
        "description": schema.get("description", ""),
        "schema": {key: value for key, value in schema.items() if key != "description"},
    }


def _object(properties: dict[str, Any], required: set[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(required & properties.keys()),
        "additionalProperties": False,
    }


def _refusal(text: str) -> dict[str, Any]:
    schema = {"$ref": COMPONENTS.format(model="Error")}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
