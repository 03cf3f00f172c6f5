"""Keeps the redacted fields of an event out of what is written about its run."""

import asyncio
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor

from gateway.model import Event
from gateway.redaction.hiding import Hide, as_it_is, hide_in
from gateway.routes import Config

THREAD_BYTES: Final = 64 * 1024
"""Larger bodies are searched in a thread, so that they do not hold up the others."""
OWN: Final = frozenset({"route", "event_id", "delivery_id", "handler", "attempt"})
"""What the lines say of the delivery."""
OUR_LINE: Final = re.compile("[a-z]+(?:_[a-z]+)+")
"""What our own lines are called: delivery_dead."""


async def hiding(config: Config, event: Event) -> Hide:
    """What takes the values of the event's redacted fields out of a text."""
    redaction = config.redaction(event.route)
    if redaction is None:
        return as_it_is
    if len(event.body) > THREAD_BYTES:
        return await asyncio.to_thread(redaction.hiding, event.headers, event.body)
    return redaction.hiding(event.headers, event.body)


def handler_log(config: Config, event: Event) -> Any:
    """The logger of a handler; one that hides, where the event's route redacts fields."""
    redaction = config.redaction(event.route)
    if redaction is None:
        return structlog.get_logger("handler")
    found = cache(partial(redaction.hiding, event.headers, event.body))  # most write no line
    processors = [_hider(found), *structlog.get_config()["processors"]]
    return structlog.wrap_logger(None, processors=processors, logger_factory_args=("handler",))


def _hider(found: Callable[[], Hide]) -> Processor:
    def hide(logger: Any, method: str, event: EventDict) -> EventDict:
        if event.get("exc_info"):
            event = structlog.processors.format_exc_info(logger, method, event)
        return {k: v if _is_ours(k, v) else hide_in(v, found()) for k, v in event.items()}

    return hide


def _is_ours(key: str, value: Any) -> bool:
    return key in OWN or (key == "event" and OUR_LINE.fullmatch(str(value)) is not None)
