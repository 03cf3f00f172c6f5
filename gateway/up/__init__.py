"""Everything in one go: engines, migration, `serve` and `worker`, watched until a signal."""

from gateway.up.reports import Reload, Started
from gateway.up.start import run_up

__all__ = ["Reload", "Started", "run_up"]
