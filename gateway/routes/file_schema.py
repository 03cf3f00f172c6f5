"""How the JSON Schema of the file says what its models say."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.model import Rate
from gateway.notation.quantities import format_duration, format_rate
from gateway.providers.schemes.places import Place
from gateway.providers.schemes.template import Template


class FileSchema(GenerateJsonSchema):
    """Says it as the file does: durations as text, and an unset key left out, not null."""

    def encode_default(self, dft: Any) -> Any:
        match dft:
            case timedelta():
                return format_duration(dft)
            case Rate():
                return format_rate(dft.count, dft.period)
            case Template() | Place():
                return str(dft)
            case [Template()]:
                return dft[0].said
        return super().encode_default(dft)

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        return {key: value for key, value in described.items() if (key, value) != ("default", None)}

    def field_title_should_be_set(self, schema: Mapping[str, Any]) -> bool:
        return False
