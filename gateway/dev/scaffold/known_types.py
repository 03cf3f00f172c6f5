"""Event types that a provider is known to send. A handler for a misspelled type would never run."""

import typing
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.config.project import Project
from gateway.dev.scaffold.github_actions import GITHUB_ACTIONS
from gateway.providers.samples import sample_types

PROVIDERS: Final = {"stripe": "Stripe", "github": "GitHub"}
ALIKE: Final = 0.7
"""Minimum similarity (0 to 1) for a suggestion in an error message."""
MISTAKABLE: Final = 0.85
"""Minimum similarity to consider one type a misspelling of the other."""
WILD: Final = frozenset("*?[")


def check_known(provider: str, type: str, *, force: bool) -> None:
    """Reject a type of another provider, and an unknown type unless `force` is set.

    Most senders have no list of types, so nothing is checked for them.
    """
    if provider not in PROVIDERS or is_known(provider, type):
        return
    for other, name in PROVIDERS.items():
        if other != provider and is_known(other, type):
            raise CommandFailed(f"type: found {type}, of {name}; expected one of {_name(provider)}")
    if not force:
        raise CommandFailed(
            f"type: found {type}, which {_name(provider)} is not known to send; expected "
            f"{_expected(provider, type)}, a recorded event of it with --event, or --force"
        )


def doubt(provider: str, type: str) -> str | None:
    """Return a notice about a type that the provider is not known to send, or None."""
    if provider not in PROVIDERS or is_known(provider, type):
        return None
    meant = suggest(provider, type)
    hint = f" (did you mean {meant}?)" if meant else ""
    return f"{_name(provider)} is not known to send {type}{hint}"


def is_known(provider: str, type: str) -> bool:
    """Whether the provider is known to send events of this type."""
    if type in sample_types(provider):
        return True
    if provider == "stripe":
        return type in _stripe_types()
    event, _, action = type.partition(".")
    actions = GITHUB_ACTIONS.get(event)
    return actions is not None and (not actions or action in actions.split())


def find_doubtful(project: Project) -> Iterator[str]:
    """Yield a line for each type of a handler that is probably misspelled."""
    providers = {route.name: route.provider.name for route in project.config.routes}
    for item in project.registry.subscriptions:
        provider = providers[item.route]
        for type in item.types if provider in PROVIDERS else ():
            if is_known(provider, type) or not WILD.isdisjoint(type):
                continue
            meant = suggest(provider, type, alike=MISTAKABLE)
            if meant is not None:
                yield (
                    f"{item.handler} takes {type}, which {_name(provider)} is not known to send: "
                    f"did you mean {meant}?"
                )


def suggest(provider: str, type: str, *, alike: float = ALIKE) -> str | None:
    """Return the known type that was probably meant."""
    known = sorted({*sample_types(provider), *_all_types(provider)})
    return next(iter(get_close_matches(type, known, n=1, cutoff=alike)), None)


def _expected(provider: str, type: str) -> str:
    meant = suggest(provider, type)
    return f"one of its types (did you mean {meant}?)" if meant else "one of its types"


def _name(provider: str) -> str:
    return PROVIDERS.get(provider, provider)


def _all_types(provider: str) -> frozenset[str]:
    if provider == "stripe":
        return _stripe_types()
    return frozenset(
        f"{event}.{action}" if action else event
        for event, actions in GITHUB_ACTIONS.items()
        for action in actions.split() or [""]
    )


def _stripe_types() -> frozenset[str]:
    # The import takes a third of a second, and few types need it.
    from stripe import Event
    from stripe.events._event_classes import _V2_EVENT_NOTIFICATION_CLASS_LOOKUP as THIN

    return frozenset((*typing.get_args(Event.__annotations__["type"]), *THIN))
