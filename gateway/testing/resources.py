"""Stand-ins for the `@resource` functions in a test."""

from typing import Any

from gateway.config.registry import Registry
from gateway.testing.background import Background
from gateway.worker.resources import OpenResources


class NoStandIn(LookupError):
    """The handler uses a resource for which the test has provided no stand-in."""


class Resources(dict[str, Any]):
    """The mapping behind `ctx.resources` in a test: your stand-ins, and the resources you opened.

    No resource is opened automatically, because a test should not reach a mail server by accident.
    """

    def __init__(self, registry: Registry, background: Background) -> None:
        super().__init__()
        self._known = {resource.name: resource for resource in registry.resources}
        self._background = background
        self._opened: list[OpenResources] = []

    def __setitem__(self, name: str, stand_in: Any) -> None:
        self._check(name)
        super().__setitem__(name, stand_in)

    def __missing__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(name)
        raise NoStandIn(
            f"ctx.resources.{name} has no stand-in in this test: resources[{name!r}] = ..., "
            f"or resources.open({name!r}) for the real one"
        )

    def open(self, *names: str) -> None:
        """Open the real resources until the end of the test."""
        __tracebackhide__ = True
        for name in names:
            self._check(name)
            opening = OpenResources([self._known[name]])
            self[name] = self._background.run(opening.open())[name]
            self._opened.append(opening)

    @property
    def has_opened(self) -> bool:
        """Whether the test has opened a real resource."""
        return bool(self._opened)

    def close(self) -> None:
        while self._opened:
            self._background.run(self._opened.pop().close())

    def _check(self, name: str) -> None:
        __tracebackhide__ = True
        if name not in self._known:
            known = ", ".join(sorted(self._known)) or "none: no module has a @resource"
            raise ValueError(f"resources: there is no {name!r}; this project has {known}")
