"""The table of operations."""

from typing import Any, Final

from gateway.api.operation import Operation
from gateway.api.operations.audit import AUDIT
from gateway.api.operations.dead import DEAD
from gateway.api.operations.events import DISCARD, EVENTS, REPLAY, SHOW
from gateway.api.operations.pauses import PAUSE, PAUSES, RESUME
from gateway.api.operations.status import STATUS

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    STATUS,
    EVENTS,
    SHOW,
    DEAD,
    REPLAY,
    DISCARD,
    PAUSES,
    PAUSE,
    RESUME,
    AUDIT,
)
