"""Logs for people on a terminal, JSON lines for machines."""

import logging
import sys
from typing import Any, Final, Literal

import orjson
import structlog

QUIET: Final = ("arq", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries whose ordinary lines say nothing that ours do not."""


def configure_logs(format: Literal["auto", "console", "json"], level: str) -> None:
    """Sets up structlog and, through it, the standard library's loggers. To stderr."""
    threshold = getattr(logging, level.upper())
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if console else "iso", utc=not console),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24)
        if console
        else structlog.processors.JSONRenderer(serializer=_dumps)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_stdlib(shared, renderer, threshold)


def _configure_stdlib(shared: list[Any], renderer: Any, threshold: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def _dumps(fields: Any, **_: Any) -> str:
    return orjson.dumps(fields, default=str).decode()
