"""The table of operations."""

from typing import Any, Final

from gateway.api.operation import Operation
from gateway.api.operations.alerts import ALERTS, TEST_ALERTS
from gateway.api.operations.bulk import (
    BEGIN_BULK,
    DELIVER,
    LIST_BULK,
    RESUME_BULK,
    SHOW_BULK,
    STOP_BULK,
)
from gateway.api.operations.dead import CAUSES, DEAD, GROUPS
from gateway.api.operations.effects import (
    CONFIRM_EFFECTS,
    EFFECT_GROUPS,
    EFFECTS,
    RESOLVE_ALL_EFFECTS,
    RETRY_EFFECTS,
)
from gateway.api.operations.events import AUDIT, DISCARD, EVENTS, REPLAY, REVEAL, SHOW
from gateway.api.operations.health import DOCTOR, STATUS
from gateway.api.operations.pauses import PAUSE, PAUSES, RESUME
from gateway.api.operations.reconcile import RECONCILE, RECONCILIATION, RECONCILIATIONS
from gateway.api.operations.rejected import (
    REJECTED,
    REJECTED_GROUPS,
    RELEASE,
    SHOW_REJECTED,
)
from gateway.api.operations.stored_data import ERASE, PRUNE, REKEY

OPERATIONS: Final[tuple[Operation[Any, Any], ...]] = (
    STATUS,
    DOCTOR,
    EVENTS,
    SHOW,
    REVEAL,
    DEAD,
    GROUPS,
    CAUSES,
    REPLAY,
    DISCARD,
    EFFECTS,
    EFFECT_GROUPS,
    RETRY_EFFECTS,
    CONFIRM_EFFECTS,
    PAUSES,
    PAUSE,
    RESUME,
    LIST_BULK,
    BEGIN_BULK,
    DELIVER,
    RESOLVE_ALL_EFFECTS,
    SHOW_BULK,
    STOP_BULK,
    RESUME_BULK,
    PRUNE,
    ERASE,
    REKEY,
    AUDIT,
    ALERTS,
    TEST_ALERTS,
    RECONCILE,
    RECONCILIATIONS,
    RECONCILIATION,
    REJECTED,
    REJECTED_GROUPS,
    RELEASE,
    SHOW_REJECTED,
)
