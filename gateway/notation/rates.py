"""Rates as values: `100/m` in a file or a variable."""

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from gateway.model import Rate
from gateway.notation.problems import Unexpected, describe
from gateway.notation.quantities import RATE_EXPECTED, RATE_PATTERN, format_rate, parse_rate


def _rate(value: object) -> Rate:
    if isinstance(value, Rate):  # a default
        return value
    if not isinstance(value, str):
        raise Unexpected(found=describe(value), expected=RATE_EXPECTED)
    count, period = parse_rate(value)
    return Rate(count=count, period=period)


RateText = Annotated[
    Rate,
    PlainValidator(_rate),
    PlainSerializer(lambda rate: format_rate(rate.count, rate.period), return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{RATE_PATTERN}$", "examples": ["100/m"]}),
]
