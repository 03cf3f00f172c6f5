"""A line of JSON for every event, whatever is in it."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from gateway.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


Captured = pytest.CaptureFixture[bytes]


def lines(stderr: Captured) -> list[dict[str, object]]:
    return [json.loads(line) for line in stderr.readouterr().err.splitlines()]


def test_a_line_has_time_level_and_fields(capfdbinary: Captured) -> None:
    configure_logs("json", "info")
    structlog.get_logger().bind(route="stripe").info("event_accepted", event_id="evt_1")
    [line] = lines(capfdbinary)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "event": "event_accepted",
        "level": "info",
        "route": "stripe",
        "event_id": "evt_1",
    }


def test_libraries_log_in_the_same_form(capfdbinary: Captured) -> None:
    configure_logs("json", "info")
    logging.getLogger("library").warning("%s went wrong", "something")
    [line] = lines(capfdbinary)
    assert (line["event"], line["level"]) == ("something went wrong", "warning")
    assert str(line["timestamp"]).endswith("Z")


@pytest.mark.parametrize("value", ["\ud800", 2**70, object(), {1: 2}, b"\xff"])
def test_no_value_keeps_a_line_from_being_written(capfdbinary: Captured, value: object) -> None:
    configure_logs("json", "info")
    structlog.get_logger().info("odd", value=value)
    [line] = lines(capfdbinary)
    assert line["event"] == "odd"


def test_an_exception_comes_with_its_traceback(capfdbinary: Captured) -> None:
    configure_logs("json", "info")
    try:
        raise ValueError("told")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("library").exception("failed too")
    ours, theirs = lines(capfdbinary)
    assert (ours["level"], theirs["level"]) == ("error", "error")
    assert "ValueError: told" in str(ours["exception"])
    assert "ValueError: told" in str(theirs["exception"])


def test_what_is_below_the_level_is_not_written(capfdbinary: Captured) -> None:
    configure_logs("json", "warning")
    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet")
    assert lines(capfdbinary) == []
