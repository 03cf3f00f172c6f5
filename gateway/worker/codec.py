"""The seam for privacy: events are decoded here before a run, and errors encoded for storage."""

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
from gateway.base.errors import CannotOpen, HandlerSignal, PayloadGone, PushFailed
from gateway.base.model import Event, Lease
from gateway.config.routes import Config
from gateway.ledger.deliveries import Settlement
from gateway.ledger.encryption import EncryptionKeys, open_event, seal_error
from gateway.ledger.filter import CONCEALED
from gateway.privacy.redaction import Hide, as_it_is, hide_in
from gateway.worker.policy import Decision, HandlerTimeout, frames, name_of, summary

SEARCHED_BYTES: Final = 64 * 1024
"""Larger bodies are searched in a thread, so that they do not block the event loop."""
DECRYPTED_BYTES: Final = 1024 * 1024
"""Larger payloads are decrypted in a thread, for the same reason."""
OWN: Final = frozenset({"route", "event_id", "delivery_id", "handler", "attempt"})
"""Fields of log lines that describe the delivery."""
OUR_LINE: Final = re.compile("[a-z]+(?:_[a-z]+)+")
"""Matches the event names of the gateway's own log lines, such as delivery_dead."""
OURS: Final = (HandlerTimeout, CannotOpen)
"""Errors of the gateway whose messages contain nothing of a payload."""
FOREIGN: Final = (
    str(Path(gateway.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platlib"),
    "<",
)
_STATUS: Final = re.compile(r"\bHTTP \d{3}\b")


class LeaseCodec:
    """Applies the redaction and the encryption of a route to the runs of its deliveries."""

    def __init__(self, config: Config, encryption: EncryptionKeys) -> None:
        self._config = config
        self.encryption = encryption

    async def decode(self, lease: Lease) -> Lease:
        """Return the lease with a readable event. Raises CannotOpen."""
        if not lease.payload_kept:
            raise PayloadGone("its payload is gone: a handler would take nothing for the event")
        if lease.sealed is None:
            return lease
        where = self.encryption.ring, lease.event.route, lease.event.id, lease.sealed
        if len(lease.sealed) > DECRYPTED_BYTES:
            headers, body = await asyncio.to_thread(open_event, *where)
        else:
            headers, body = open_event(*where)
        return replace(lease, event=replace(lease.event, headers=headers, body=body), sealed=None)

    async def encode(self, decision: Decision, lease: Lease) -> Settlement:
        """Return the settlement with the text of the error, as it is stored.

        Redacted values are removed. On an encrypted route the text is encrypted, since it may quote
        the payload. The error's class and location stay readable: operators and the grouping of
        errors need them to distinguish causes.
        """
        error, sealed = decision.error, None
        line = decision.text
        if line is None:
            line = decision.before + summary(error, await self.hiding(lease.event))
        trace = frames(error) if decision.has_detail else []
        if lease.event.route in self.encryption.routes and not isinstance(error, OURS):
            text = "\n".join([line, *trace])
            sealed = seal_error(self.encryption.ring, lease.delivery_id, lease.run, text)
            line = outline(error)
        return Settlement(
            status=decision.status,
            outcome=decision.outcome,
            error=line,
            detail="\n".join([line, *trace]) if decision.has_detail else None,
            delay=decision.delay,
            is_conflict=decision.is_conflict,
            sealed=sealed,
        )

    async def hiding(self, event: Event) -> Hide:
        """Return a function that removes the values of the event's redacted fields from a text."""
        redaction = self._config.redaction(event.route)
        if redaction is None:
            return as_it_is
        if len(event.body) > SEARCHED_BYTES:
            return await asyncio.to_thread(redaction.hiding, event.headers, event.body)
        return redaction.hiding(event.headers, event.body)

    def logger(self, event: Event) -> Any:
        """Return the logger of a handler. It redacts values if the event's route redacts fields."""
        redaction = self._config.redaction(event.route)
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
