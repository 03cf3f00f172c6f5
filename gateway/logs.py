"""Logs for people on a terminal, JSON lines for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
import structlog
from structlog.typing import EventDict

QUIET: Final = ("arq", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries whose ordinary lines say nothing that ours do not."""
MUTE: Final = ("uvicorn.error",)
"""Whose warnings strangers cause, as many as they like: the protocol tells of them in measure."""


def configure_logs(format: Literal["auto", "console", "json"], level: str) -> None:
    """Sets up structlog and, through it, the standard library's loggers. To stderr."""
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
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24),
    ]


def _as_json(logger: Any, method: str, event: EventDict) -> bytes:
    """One processor instead of four: an accepted event writes a line, and this is most of it."""
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
