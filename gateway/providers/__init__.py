"""Providers: request verification as pure functions over bytes, and the catalogue of senders."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.providers.entries import entry_names, load_entry
from gateway.providers.github import GITHUB
from gateway.providers.provider import Headers, Incoming, Provider
from gateway.providers.publish import PUBLISH
from gateway.providers.stripe import STRIPE

__all__ = ["PROVIDERS", "Headers", "Incoming", "Provider"]


class _Providers(Mapping[str, Provider]):
    """Mapping of provider names to providers. Catalogue entries are loaded on first access."""

    def __init__(self, *own: Provider) -> None:
        self._own = {provider.name: provider for provider in own}

    def __getitem__(self, name: str) -> Provider:
        if name in self._own:
            return self._own[name]
        if name in entry_names():
            return load_entry(name)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in entry_names()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from entry_names()

    def __len__(self) -> int:
        return len(self._own) + len(entry_names())


PROVIDERS: Final[Mapping[str, Provider]] = _Providers(STRIPE, GITHUB, PUBLISH)
