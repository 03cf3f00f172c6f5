"""`gateway up`: start the engines, migrate, and supervise `serve` and `worker` until a signal."""

from gateway.dev.up.reports import Reload, Started
from gateway.dev.up.start import run_up

__all__ = ["Reload", "Started", "run_up"]
