"""The `scheme` of a route: the signature scheme of a sender without a named provider."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, PlainValidator, ValidationError, ValidationInfo, WithJsonSchema

from gateway.base.problems import Unexpected, describe
from gateway.config.routes.fields import FileSchema
from gateway.providers import PROVIDERS, Provider
from gateway.providers.schemes.build import make_provider
from gateway.providers.schemes.coverage import check_scheme
from gateway.providers.schemes.sections import KINDS, SenderSection
from gateway.providers.schemes.words import describe_facts

SAID: Final = ", ".join(KINDS)


def find_provider(raw: Any) -> Provider | None:
    """Return the provider of a route in the raw file, or None if it is missing or invalid."""
    if not isinstance(raw, dict):
        return None
    name = raw.get("provider")
    if not isinstance(name, str):
        return None
    if name not in KINDS:
        return PROVIDERS.get(name)
    try:
        return make_route_provider(name, KINDS[name].model_validate(raw.get("scheme")))
    except (ValidationError, Unexpected):
        return None


def make_route_provider(name: str, scheme: SenderSection | None) -> Provider:
    """Return a named provider, or make one from the scheme of the route."""
    if scheme is None:
        return PROVIDERS[name]
    return make_provider(name, name, scheme, facts=describe_facts(name, scheme, title=name))


def _check(raw: Any, info: ValidationInfo) -> SenderSection | None:
    kind = (info.context or {}).get("kind")
    section = KINDS.get(kind) if isinstance(kind, str) else None
    if section is None:
        if raw is not None and kind in PROVIDERS:
            expected = f"no scheme: {kind} has its own (only {SAID} are described)"
            raise Unexpected(found=describe(raw), expected=expected)
        return None
    if raw is None:
        raise Unexpected(found="nothing", expected=f"how the sender proves itself: {kind} needs it")
    scheme = section.model_validate(raw)
    check_scheme(scheme)
    return scheme


def _schema() -> dict[str, Any]:
    """Return the JSON Schema of a scheme of any kind. The editor selects the one that matches."""
    kinds = dict.fromkeys(KINDS.values())
    return {
        "anyOf": [_inline(kind.model_json_schema(schema_generator=FileSchema)) for kind in kinds]
    }


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve the references of a schema and remove its `$defs`.

    A reference would be resolved from the root of the schema of the whole file.
    """
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            name = str(node["$ref"]).rpartition("/")[2]
            beside = {key: value for key, value in node.items() if key != "$ref"}
            return resolve({**definitions[name], **beside})
        return {key: resolve(value) for key, value in node.items()}

    resolved: dict[str, Any] = resolve(schema)
    return resolved


AnyScheme = Annotated[SenderSection | None, PlainValidator(_check), WithJsonSchema(_schema())]


def scheme_keys(kind: Any, inner: Sequence[str | int]) -> list[str]:
    """Return the keys that are allowed in a mapping of a scheme."""
    section: Any = KINDS.get(kind, SenderSection) if isinstance(kind, str) else SenderSection
    for step in inner:
        if isinstance(step, str) and isinstance(section, type):
            field = _fields(section).get(step)
            section = None if field is None else _model_in(field.annotation)
    fields = _fields(section) if isinstance(section, type) else {}
    return list(fields)


def _fields(section: type) -> Mapping[str, Any]:
    if not issubclass(section, BaseModel):
        return {}
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _model_in(annotation: Any) -> Any:
    """Return the first class in the annotation of a field, which is the section."""
    if isinstance(annotation, type):
        return annotation
    inner = getattr(annotation, "__args__", ())
    return next((found for item in inner if (found := _model_in(item)) is not None), None)
