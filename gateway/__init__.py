"""What a handler author imports, and nothing else."""

from gateway.errors import Defer, Reject, Retry
from gateway.model import Event
from gateway.registry import handler
from gateway.run.context import Context

__all__ = ["Context", "Defer", "Event", "Reject", "Retry", "handler"]
