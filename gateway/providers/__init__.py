"""Who may send: one file per scheme, pure functions over bytes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.providers.github import GITHUB
from gateway.providers.provider import Headers, Incoming, Provider
from gateway.providers.publish import PUBLISH
from gateway.providers.stripe import STRIPE

__all__ = ["PROVIDERS", "Headers", "Incoming", "Provider"]

PROVIDERS: Final[Mapping[str, Provider]] = MappingProxyType(
    {provider.name: provider for provider in (STRIPE, GITHUB, PUBLISH)}
)
