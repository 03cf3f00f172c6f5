"""What a handler author imports, and nothing else.

Each is loaded when it is asked for: pytest imports this package in every run of an environment in
which it is installed (`gateway.pytest_plugin`), and should not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.base.errors import Defer, NotSent, Reject, Retry
    from gateway.base.model import Event
    from gateway.config.registry import handler, resource
    from gateway.worker.context import Context
else:
    _HOMES: Final = {
        "Context": "gateway.worker.context",
        "Defer": "gateway.base.errors",
        "Event": "gateway.base.model",
        "NotSent": "gateway.base.errors",
        "Reject": "gateway.base.errors",
        "Retry": "gateway.base.errors",
        "handler": "gateway.config.registry",
        "resource": "gateway.config.registry",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted(__all__)


__all__ = ["Context", "Defer", "Event", "NotSent", "Reject", "Retry", "handler", "resource"]
