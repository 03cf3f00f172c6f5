"""Failpoints: named points between two steps, so that tests can kill a process at each of them.

A failpoint does nothing unless a test has armed it in the same process. No setting and no
environment variable can arm one.
"""

from collections.abc import Callable
from typing import Final, Literal, get_args

Step = Literal[
    "claim.verified",
    "claim.committed",
    "claim.answering",
    "turn.giving",
    "enqueue.sending",
    "enqueue.sent",
    "lease.taken",
    "handler.starting",
    "effect.begun",
    "effect.called",
    "effect.kept",
    "handler.returned",
    "settle.committed",
    "settle.apart",
    "settle.settled",
    "sweep.alive",
    "sweep.renewed",
    "sweep.reaped",
    "replay.marked",
    "bulk.marked",
    "bulk.stepped",
    "spool.written",
    "spool.synced",
    "spool.adopted",
    "spool.claimed",
    "spool.removed",
    "prune.held",
    "prune.forgotten",
    "prune.committed",
    "partition.step",
    "partition.refiled",
    "partition.detached",
    "partition.dropped",
    "alert.decided",
    "alert.taken",
    "alert.sent",
    "erase.held",
    "erase.taken",
    "erase.committed",
    "rekey.sealed",
    "rekey.written",
    "rekey.past",
]
STEPS: Final[tuple[Step, ...]] = get_args(Step)

_action: Callable[[Step], None] | None = None


def reached(step: Step) -> None:
    """Run the armed action, if any, at this step."""
    if _action is not None:
        _action(step)


def arm(action: Callable[[Step], None]) -> None:
    """Set the action for every step from now on. For tests only."""
    global _action
    _action = action
