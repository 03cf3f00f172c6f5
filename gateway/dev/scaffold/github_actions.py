"""GitHub's events and their actions, as listed by githubkit 0.16."""

from collections.abc import Mapping
from typing import Final

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
