"""Errors of encrypted routes: class and location stay readable, the message is encrypted."""

import asyncio
import re
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import httpx
import structlog
from structlog.typing import EventDict, Processor

import gateway
from gateway.base.errors import CannotOpen, HandlerSignal, PushFailed
from gateway.base.model import Event, Lease
from gateway.config.routes import Config
from gateway.ledger.deliveries import Settlement
from gateway.ledger.encryption import EncryptionKeys, seal_error
from gateway.ledger.filter import CONCEALED
from gateway.privacy.redaction import Hide, as_it_is, hide_in
from gateway.worker.policy import HandlerTimeout, frames, name_of

THREAD_BYTES: Final = 64 * 1024
"""Larger bodies are searched in a thread, so that they do not block the event loop."""
OWN: Final = frozenset({"route", "event_id", "delivery_id", "handler", "attempt"})
"""Fields of log lines that describe the delivery."""
OUR_LINE: Final = re.compile("[a-z]+(?:_[a-z]+)+")
"""Matches the event names of the gateway's own log lines, such as delivery_dead."""


async def hiding(config: Config, event: Event) -> Hide:
    """Return a function that removes the values of the event's redacted fields from a text."""
    redaction = config.redaction(event.route)
    if redaction is None:
        return as_it_is
    if len(event.body) > THREAD_BYTES:
        return await asyncio.to_thread(redaction.hiding, event.headers, event.body)
    return redaction.hiding(event.headers, event.body)


def handler_log(config: Config, event: Event) -> Any:
    """Return the logger of a handler. It redacts values if the event's route redacts fields."""
    redaction = config.redaction(event.route)
    if redaction is None:
        return structlog.get_logger("handler")
    found = cache(
        partial(redaction.hiding, event.headers, event.body)
    )  # lazy: most handlers log nothing
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


OURS: Final = (HandlerTimeout, CannotOpen)
"""Errors of the gateway whose messages contain nothing of a payload."""

FOREIGN: Final = (
    str(Path(gateway.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platlib"),
    "<",
)
_STATUS: Final = re.compile(r"\bHTTP \d{3}\b")


def conceal(
    settlement: Settlement, error: BaseException, lease: Lease, encryption: EncryptionKeys
) -> Settlement:
    """Encrypt the message of the error in a settlement, because it may quote the payload.

    The error's class and location stay readable: operators and the grouping of errors need them to
    distinguish causes.
    """
    if lease.event.route not in encryption.routes or isinstance(error, OURS):
        return settlement
    text = settlement.detail or settlement.error
    if text is None:
        return settlement
    line = outline(error)
    return replace(
        settlement,
        error=line,
        detail="\n".join([line, *frames(error)]) if settlement.detail else None,
        sealed=seal_error(encryption.ring, lease.delivery_id, lease.run, text),
    )


def outline(error: BaseException) -> str:
    """Describe an error by its class, HTTP status and location."""
    parts = [name_of(error), _status(error), _place(error)]
    return f"{' '.join(part for part in parts if part)}, {CONCEALED}"


def _status(error: BaseException) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, PushFailed | HandlerSignal) and error.__traceback__ is None:
        found = _STATUS.search(str(error))  # the message of a failed forward begins with the status
        return "" if found is None else found[0]
    return ""


def _place(error: BaseException) -> str:
    """Return the innermost location in the handler's own code, not in a library that it called."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in stack if not frame.filename.startswith(FOREIGN)]
    if not own:
        return ""
    return f"in {own[-1].name} ({Path(own[-1].filename).name}:{own[-1].lineno})"
