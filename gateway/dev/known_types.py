"""Event types that a provider is known to send. A handler for a misspelled type would never run."""

import typing
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from gateway.base.errors import CommandFailed
from gateway.config.project import Project
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


# https://docs.github.com/en/webhooks/webhook-events-and-payloads
GITHUB_ACTIONS: Final[Mapping[str, str]] = {
    "branch_protection_configuration": "disabled enabled",
    "branch_protection_rule": "created deleted edited",
    "check_run": "completed created requested_action rerequested",
    "check_suite": "completed requested rerequested",
    "code_scanning_alert": (
        "appeared_in_branch closed_by_user created fixed reopened reopened_by_user "
        "updated_assignment"
    ),
    "commit_comment": "",
    "create": "",
    "custom_property": "created deleted promote_to_enterprise updated",
    "custom_property_values": "",
    "delete": "",
    "dependabot_alert": (
        "assignees_changed auto_dismissed auto_reopened created dismissed fixed reintroduced "
        "reopened withdrawn"
    ),
    "deploy_key": "created deleted",
    "deployment": "",
    "deployment_protection_rule": "",
    "deployment_review": "approved rejected requested",
    "deployment_status": "",
    "discussion": (
        "answered category_changed closed created deleted edited labeled locked pinned reopened "
        "transferred unanswered unlabeled unlocked unpinned"
    ),
    "discussion_comment": "created deleted edited",
    "fork": "",
    "github_app_authorization": "",
    "gollum": "",
    "installation": "created deleted new_permissions_accepted suspend unsuspend",
    "installation_repositories": "added removed",
    "installation_target": "",
    "issue_comment": "created deleted edited pinned unpinned",
    "issue_dependencies": "blocked_by_added blocked_by_removed blocking_added blocking_removed",
    "issue_relates_to": "relates_to_added relates_to_removed",
    "issues": (
        "assigned closed deleted demilestoned edited field_added field_removed labeled locked "
        "milestoned opened pinned reopened transferred typed unassigned unlabeled unlocked "
        "unpinned untyped"
    ),
    "label": "archived created deleted edited unarchived",
    "marketplace_purchase": "cancelled changed pending_change pending_change_cancelled purchased",
    "member": "added edited removed",
    "membership": "added removed",
    "merge_group": "checks_requested destroyed",
    "meta": "",
    "milestone": "closed created deleted edited opened",
    "org_block": "blocked unblocked",
    "organization": "deleted member_added member_invited member_removed renamed",
    "package": "published updated",
    "page_build": "",
    "personal_access_token_request": "approved cancelled created denied",
    "ping": "",
    "project": "closed created deleted edited reopened",
    "project_card": "converted created deleted edited moved",
    "project_column": "created deleted edited moved",
    "projects_v2": "closed created deleted edited reopened",
    "projects_v2_item": "archived converted created deleted edited reordered restored",
    "projects_v2_status_update": "created deleted edited",
    "public": "",
    "pull_request": (
        "assigned auto_merge_disabled auto_merge_enabled closed converted_to_draft demilestoned "
        "dequeued edited enqueued labeled locked milestoned opened ready_for_review reopened "
        "review_request_removed review_requested stacked synchronize unassigned unlabeled "
        "unlocked"
    ),
    "pull_request_review": "dismissed edited submitted",
    "pull_request_review_comment": "created deleted edited",
    "pull_request_review_thread": "resolved unresolved",
    "push": "",
    "registry_package": "published updated",
    "release": "created deleted edited prereleased published released unpublished",
    "repository": (
        "archived created deleted edited privatized publicized renamed transferred unarchived"
    ),
    "repository_advisory": "published reported",
    "repository_dispatch": "",
    "repository_import": "",
    "repository_ruleset": "created deleted edited",
    "repository_vulnerability_alert": "create dismiss reopen resolve",
    "secret_scanning_alert": (
        "assigned created metadata_created metadata_removed publicly_leaked reopened resolved "
        "unassigned validated"
    ),
    "secret_scanning_alert_location": "",
    "secret_scanning_scan": "",
    "security_advisory": "published updated withdrawn",
    "security_and_analysis": "",
    "sponsorship": "cancelled created edited pending_cancellation pending_tier_change tier_changed",
    "star": "created deleted",
    "status": "",
    "sub_issues": "parent_issue_added parent_issue_removed sub_issue_added sub_issue_removed",
    "team": "added_to_repository created deleted edited removed_from_repository",
    "team_add": "",
    "watch": "",
    "workflow_dispatch": "",
    "workflow_job": "completed in_progress queued waiting",
    "workflow_run": "completed in_progress requested",
}
"""The actions of each event. Empty if it has no action, only one, or any."""
