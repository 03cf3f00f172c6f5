"""Where something is pushed to, with every reference resolved."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A service, as a request needs it. Shows nothing of itself: any part can hold a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """With which it is signed; none, and it is not."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What must not be shown, should the service tell it back."""
