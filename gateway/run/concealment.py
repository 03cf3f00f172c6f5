"""Errors of encrypted routes: their class and place are told, their text is sealed."""

import re
import sysconfig
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

import gateway
from gateway.errors import CannotOpen, HandlerSignal, PushFailed
from gateway.ledger.deliveries import Settlement
from gateway.ledger.outline import CONCEALED
from gateway.ledger.sealed import Vault, seal_error
from gateway.model import Lease
from gateway.run.policy import HandlerTimeout, frames, name_of

OURS: Final = (HandlerTimeout, CannotOpen)
"""Whose text is our own, with nothing of a payload in it."""

FOREIGN: Final = (
    str(Path(gateway.__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platlib"),
    "<",
)
_STATUS: Final = re.compile(r"\bHTTP \d{3}\b")


def conceal(settlement: Settlement, error: BaseException, lease: Lease, vault: Vault) -> Settlement:
    """The settlement without the text of the error, which may quote the payload, but for who has
    the key. What tells one cause from another stays: grouping needs it, and people."""
    if lease.event.route not in vault.routes or isinstance(error, OURS):
        return settlement
    text = settlement.detail or settlement.error
    if text is None:
        return settlement
    line = outline(error)
    return replace(
        settlement,
        error=line,
        detail="\n".join([line, *frames(error)]) if settlement.detail else None,
        sealed=seal_error(vault.ring, lease.delivery_id, lease.run, text),
    )


def outline(error: BaseException) -> str:
    """What an error is and where it was raised."""
    parts = [name_of(error), _status(error), _place(error)]
    return f"{' '.join(part for part in parts if part)}, {CONCEALED}"


def _status(error: BaseException) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    if isinstance(error, PushFailed | HandlerSignal) and error.__traceback__ is None:
        found = _STATUS.search(str(error))  # of a forward, which begins with it
        return "" if found is None else found[0]
    return ""


def _place(error: BaseException) -> str:
    """In the handler's own code, rather than in what it called."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in stack if not frame.filename.startswith(FOREIGN)]
    if not own:
        return ""
    return f"in {own[-1].name} ({Path(own[-1].filename).name}:{own[-1].lineno})"
