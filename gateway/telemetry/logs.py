"""Configure logging: readable lines on a terminal, JSON lines otherwise."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
import structlog
from structlog.typing import EventDict

from gateway.base.names import NameKind, Names

NAMED: Final = tuple(map(str, NameKind))
"""Fields of log lines that hold the name of a route or of a handler."""
QUIET: Final = ("arq", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries whose info lines only repeat our own."""
MUTE: Final = ("uvicorn.error",)
"""Loggers whose warnings clients can cause in any number.

The protocol logs them with a rate limit.
"""


_names: Names | None = None


def show_names(names: Names) -> None:
    """Show current names of routes and handlers in log lines, in place of identities."""
    global _names
    _names = names or None


def _labelled(_: Any, __: str, event: EventDict) -> EventDict:
    if _names is not None:
        event.update(_names.labelled({k: event[k] for k in NAMED if k in event}))
    return event


def configure_logs(format: Literal["auto", "console", "json"], level: str) -> None:
    """Configure structlog and the loggers of the standard library. They write to stderr."""
    threshold = getattr(logging, level.upper())
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=_for_people() if console else [_as_json],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr)
        if console
        else structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=False,
    )
    _configure_stdlib(_for_people() if console else [_as_json, _decoded], threshold)


def _for_people() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        _labelled,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24),
    ]


def _as_json(logger: Any, method: str, event: EventDict) -> bytes:
    """Render a line in one processor instead of four, since every accepted event writes one."""
    event = _labelled(logger, method, event)
    event["level"] = method
    event["timestamp"] = now = datetime.now(UTC)
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    event = {**structlog.contextvars.get_contextvars(), **event}
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_UTC_Z)
    except TypeError:  # a lone surrogate, or an integer of more than 64 bits
        event["timestamp"] = now.isoformat().replace("+00:00", "Z")
        return json.dumps(event, default=str).encode()


def _decoded(_: Any, __: str, line: bytes) -> str:
    return line.decode()


def _configure_stdlib(processors: list[Any], threshold: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *processors],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in MUTE:
        logging.getLogger(name).setLevel(max(threshold, logging.ERROR))
