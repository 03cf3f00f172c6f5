"""Refuse the connections that a handler opens itself in a test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.testing.drivers import wrap_drivers
from gateway.testing.guard import AllowedHosts, Guard, guarding
from gateway.testing.resources import Resources

ALLOW: Final = "gateway_allow_hosts"
"""The name of the marker of a test, and of the pytest setting."""


class ConnectionNotAllowed(AssertionError):
    """A handler opened a connection itself, which a test must allow explicitly."""


class Connections:
    """Guards the runs of a test's handlers."""

    def __init__(self, root: Path, resources: Resources, hosts: Sequence[str]) -> None:
        self._guard = _TestGuard(root, AllowedHosts(tuple(hosts)))
        self._resources = resources

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Refuse connections while a handler runs.

        If the test has opened a real resource, all connections are allowed, because the resource
        may connect at any time.
        """
        if self._resources.has_opened:
            yield
            return
        wrap_drivers()
        with guarding(self._guard):
            yield

    def take_refused(self) -> ConnectionNotAllowed | None:
        """Return an error that lists the connections refused since the last call, or None."""
        refused = [
            f"{escape.target} ({escape.place})" if escape.place else escape.target
            for escape in self._guard.escapes.values()
        ]
        self._guard.escapes.clear()
        if not refused:
            return None
        return ConnectionNotAllowed(
            f"the handler connects by itself to {', '.join(refused)}, and was refused: {_HINT}"
        )


class _TestGuard(Guard):
    def _is_in_run(self) -> bool:
        return True

    def _reason(self, target: str) -> str:
        return f"a handler in a test may not connect to {target} by itself: {_HINT}"


_HINT: Final = (
    f'use ctx.http, ctx.db or a @resource, or allow it with @pytest.mark.{ALLOW}("host:port")'
)
