"""Durations and sizes: what is read, what is refused, and that both directions agree."""

import re
from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.base.problems import Unexpected
from gateway.base.units import (
    LONGEST,
    Duration,
    Size,
    format_duration,
    format_size,
    holding,
    lasting,
    parse_duration,
    parse_size,
)

milliseconds = st.integers(min_value=0, max_value=LONGEST // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("15s", timedelta(seconds=15)),
        ("5m", timedelta(minutes=5)),
        ("90m", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("35d", timedelta(days=35)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("1m5ms", timedelta(minutes=1, milliseconds=5)),
        ("0s", timedelta(0)),
        ("36500d", LONGEST),
    ],
)
def test_a_duration_is_read(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "0", "-5m", "+5m", "5 m", " 5m", "5m ", "5m\n", "1.5h", "5M", "5min", "m", "ms"),
        *("1m1h", "5m5m", "5sm", "٣s", "1e3s", "1_0s", "0x5s", "1234567890123s"),
    ],
)
def test_a_text_that_is_no_duration_is_refused_with_what_was_found(text: str) -> None:
    with pytest.raises(Unexpected) as refused:
        parse_duration(text)
    assert str(refused.value) == (
        f"found {text!r}; expected a duration such as 250ms, 15s, 5m, 1h30m or 35d"
    )


@pytest.mark.parametrize("text", ["36500d1ms", "999999999999d", "999999999999h"])
def test_a_duration_over_a_century_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"found '{text}'; expected at most 36500d"):
        parse_duration(text)


@given(milliseconds)
def test_a_duration_is_written_as_it_is_read(count: int) -> None:
    duration = timedelta(milliseconds=count)
    assert parse_duration(format_duration(duration)) == duration


@given(st.text(alphabet="0123456789dhms", max_size=12))
def test_whatever_is_read_as_a_duration_means_the_same_when_written_again(text: str) -> None:
    try:
        duration = parse_duration(text)
    except ValueError:
        return
    assert parse_duration(format_duration(duration)) == duration


def test_a_duration_is_written_in_the_units_of_people() -> None:
    assert format_duration(timedelta(hours=36)) == "1d12h"
    assert format_duration(timedelta(0)) == "0s"
    assert format_duration(timedelta(seconds=1, microseconds=999)) == "1s"


def test_a_negative_duration_or_size_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="not negative"):
        format_duration(timedelta(seconds=-1))
    with pytest.raises(ValueError, match="found -1; expected a size that is not negative"):
        format_size(-1)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1MiB", 1_048_576),
        ("25MiB", 26_214_400),
        ("64KiB", 65_536),
        ("2GiB", 2_147_483_648),
        ("1MB", 1_000_000),
        ("3KB", 3_000),
        ("1GB", 1_000_000_000),
        ("1000", 1_000),
        ("2B", 2),
        ("0", 0),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5MiB", "1 MiB", "MiB", "1mib", "1M", "1TiB", "1MiB ", "1MiB\n", "٣B", "1MiB1B"],
)
def test_a_text_that_is_no_size_is_refused_with_what_was_found(text: str) -> None:
    with pytest.raises(Unexpected) as refused:
        parse_size(text)
    assert str(refused.value) == f"found {text!r}; expected a size such as 64KiB, 1MiB or 1000000"


@given(st.integers(min_value=0, max_value=10**11))
def test_a_size_is_written_as_it_is_read(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


def test_a_size_is_written_in_the_largest_unit_that_keeps_it_exact() -> None:
    assert [format_size(n) for n in (0, 1, 1000, 1024, 1025, 2**20, 10**6)] == [
        "0B",
        "1B",
        "1KB",
        "1KiB",
        "1025B",
        "1MiB",
        "1MB",
    ]


class Sample(BaseModel):
    wait: Duration = timedelta(seconds=1)
    room: Size = 1


def test_fields_take_text_and_values_of_their_own_type() -> None:
    sample = Sample.model_validate({"wait": "5m", "room": "1KiB"})
    assert sample == Sample(wait=timedelta(minutes=5), room=1024)
    assert sample.model_dump() == {"wait": "5m", "room": "1KiB"}


@pytest.mark.parametrize("value", [5, 5.0, True, None, ["5m"], {"s": 5}])
def test_a_number_without_a_unit_is_no_duration(value: object) -> None:
    with pytest.raises(ValidationError, match="expected a duration such as"):
        Sample.model_validate({"wait": value})


@pytest.mark.parametrize("value", [1.5, True, None, ["1MiB"]])
def test_what_is_neither_text_nor_a_whole_number_is_no_size(value: object) -> None:
    with pytest.raises(ValidationError, match="expected a size such as"):
        Sample.model_validate({"room": value})


def test_bounds_include_both_ends_and_say_so() -> None:
    wait = TypeAdapter(Annotated[Duration, lasting(timedelta(seconds=1), timedelta(hours=1))])
    assert wait.validate_python("1s") == timedelta(seconds=1)
    assert wait.validate_python("1h") == timedelta(hours=1)
    for wrong in ("999ms", "1h1ms"):
        with pytest.raises(ValidationError, match=f"found {wrong}; expected 1s to 1h"):
            wait.validate_python(wrong)
    room = TypeAdapter(Annotated[Size, holding(2, 1024)])
    assert room.validate_python("2B") == 2
    assert room.validate_python("1KiB") == 1024
    for wrong in ("1B", "1025B"):
        with pytest.raises(ValidationError, match=f"found {wrong}; expected 2B to 1KiB"):
            room.validate_python(wrong)


@pytest.mark.parametrize("name", ["wait", "room"])
def test_the_json_schema_has_a_pattern_that_its_own_examples_match(name: str) -> None:
    schema = Sample.model_json_schema()["properties"][name]
    assert "string" in schema["type"]
    assert schema["examples"]
    for example in schema["examples"]:
        assert re.search(schema["pattern"], example)


@given(st.text(alphabet="0123456789dhms -", max_size=8))
def test_the_json_schema_accepts_a_duration_exactly_when_the_parser_does(text: str) -> None:
    valid = Draft202012Validator(TypeAdapter(Duration).json_schema()).is_valid(text)
    assert valid == is_duration(text)


def is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except Unexpected as refused:
        return "at most" in refused.expected
    return True
