"""GitHub: the signature covers only the body. Delivery id and event name
are in unsigned headers.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.base.errors import BadPayload, BadSignature
from gateway.base.model import Envelope, payload_bytes
from gateway.providers.payload import (
    MAX_TEXT_CHARS,
    check_text,
    describe,
    parse_object,
    require_text,
    text_at,
)
from gateway.providers.provider import (
    Facts,
    Headers,
    Incoming,
    Key,
    Provider,
    Repeats,
    Signed,
    Verified,
)
from gateway.providers.signature import hexdigest, match_hmac

UNIQUE: Final = {
    "branch_protection_rule.created": "rule.id",
    "branch_protection_rule.deleted": "rule.id",
    "branch_protection_rule.edited": "rule.updated_at",
    "check_run.created": "check_run.id",
    "check_suite.completed": "check_suite.updated_at",
    "check_suite.requested": "check_suite.id",
    "commit_comment.created": "comment.id",
    "dependabot_alert.created": "alert.created_at",
    "dependabot_alert.dismissed": "alert.updated_at",
    "dependabot_alert.fixed": "alert.updated_at",
    "dependabot_alert.reintroduced": "alert.updated_at",
    "dependabot_alert.reopened": "alert.updated_at",
    "deploy_key.created": "key.id",
    "deploy_key.deleted": "key.id",
    "deployment.created": "deployment.id",
    "deployment_status.created": "deployment_status.id",
    "discussion.created": "discussion.id",
    "discussion.deleted": "discussion.id",
    "discussion.edited": "discussion.updated_at",
    "discussion_comment.created": "comment.id",
    "discussion_comment.deleted": "comment.id",
    "discussion_comment.edited": "comment.updated_at",
    "fork": "forkee.id",
    "installation.created": "installation.id",
    "installation.deleted": "installation.id",
    "issue_comment.created": "comment.id",
    "issue_comment.deleted": "comment.id",
    "issue_comment.edited": "comment.updated_at",
    "issues.assigned": "issue.updated_at",
    "issues.closed": "issue.updated_at",
    "issues.deleted": "issue.id",
    "issues.demilestoned": "issue.updated_at",
    "issues.edited": "issue.updated_at",
    "issues.labeled": "issue.updated_at",
    "issues.milestoned": "issue.updated_at",
    "issues.opened": "issue.id",
    "issues.reopened": "issue.updated_at",
    "issues.unassigned": "issue.updated_at",
    "issues.unlabeled": "issue.updated_at",
    "label.created": "label.id",
    "label.deleted": "label.id",
    "meta.deleted": "hook_id",
    "milestone.closed": "milestone.updated_at",
    "milestone.created": "milestone.id",
    "milestone.deleted": "milestone.id",
    "milestone.edited": "milestone.updated_at",
    "milestone.opened": "milestone.updated_at",
    "page_build": "id",
    "project.created": "project.id",
    "project.deleted": "project.id",
    "project_card.created": "project_card.id",
    "project_card.deleted": "project_card.id",
    "project_card.edited": "project_card.updated_at",
    "project_card.moved": "project_card.updated_at",
    "project_column.created": "project_column.id",
    "project_column.deleted": "project_column.id",
    "project_column.edited": "project_column.updated_at",
    "projects_v2_item.archived": "projects_v2_item.updated_at",
    "projects_v2_item.converted": "projects_v2_item.updated_at",
    "projects_v2_item.created": "projects_v2_item.id",
    "projects_v2_item.deleted": "projects_v2_item.id",
    "projects_v2_item.reordered": "projects_v2_item.updated_at",
    "projects_v2_item.restored": "projects_v2_item.updated_at",
    "pull_request.assigned": "pull_request.updated_at",
    "pull_request.closed": "pull_request.updated_at",
    "pull_request.converted_to_draft": "pull_request.updated_at",
    "pull_request.demilestoned": "pull_request.updated_at",
    "pull_request.edited": "pull_request.updated_at",
    "pull_request.labeled": "pull_request.updated_at",
    "pull_request.milestoned": "pull_request.updated_at",
    "pull_request.opened": "pull_request.id",
    "pull_request.ready_for_review": "pull_request.updated_at",
    "pull_request.reopened": "pull_request.updated_at",
    "pull_request.review_request_removed": "pull_request.updated_at",
    "pull_request.review_requested": "pull_request.updated_at",
    "pull_request.synchronize": "pull_request.updated_at",
    "pull_request.unassigned": "pull_request.updated_at",
    "pull_request.unlabeled": "pull_request.updated_at",
    "pull_request_review.dismissed": "review.id",
    "pull_request_review.submitted": "review.id",
    "pull_request_review_comment.created": "comment.id",
    "pull_request_review_comment.deleted": "comment.id",
    "pull_request_review_comment.edited": "comment.updated_at",
    # In this type only, the field is a Unix time, which changes with each push.
    "push": "repository.pushed_at",
    "release.created": "release.id",
    "release.deleted": "release.id",
    "repository.created": "repository.id",
    "secret_scanning_alert.created": "alert.created_at",
    "sponsorship.created": "sponsorship.created_at",
    "star.created": "starred_at",
    "status": "id",
    "team.created": "team.id",
    "team.deleted": "team.id",
    "workflow_job.completed": "workflow_job.completed_at",
    "workflow_job.queued": "workflow_job.id",
    "workflow_run.completed": "workflow_run.updated_at",
}
"""Maps event and action to the body field that no two events have in common.

The bodies of `projects_v2_item.edited` and `project_column.moved` do not contain the change, so
that two changes within a second have the same bytes. `package.published` is sent again for each tag
of a version, and its `package_version` may be null.
"""


_SIGNATURE: Final = "x-hub-signature-256"
_SCHEME: Final = "sha256="
_DELIVERY: Final = "x-github-delivery"
_EVENT: Final = "x-github-event"
_EVENT_NAME: Final = re.compile("[a-z0-9_]{1,100}")
_DELIVERY_ID: Final = re.compile(f"[!-~]{{1,{MAX_TEXT_CHARS}}}")

_ACCOUNTS: Final = (
    ("organization", "login"),
    ("repository", "owner", "login"),
    ("installation", "account", "login"),
)
_NUMBERED: Final = ("pull_request", "issue", "discussion")


def verify(
    incoming: Incoming, *, keys: Sequence[Key], now: datetime, tolerance: timedelta | None
) -> Verified:
    """Verify the signature. `now` and `tolerance` are unused, because GitHub signs no time."""
    # The SHA-1 header `x-hub-signature` is legacy and never sufficient.
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    header = incoming.headers.get(_SIGNATURE)
    if header is None:
        raise BadSignature(f"no {_SIGNATURE} header")
    if not header.startswith(_SCHEME) or not header.isascii():
        raise BadSignature(f"{_SIGNATURE}: expected {_SCHEME} and hex")
    # In a form too, GitHub signs the raw body, not the `payload` field.
    return Verified(match_hmac(incoming.body, [header[len(_SCHEME) :].encode("ascii")], keys))


def read(incoming: Incoming) -> Envelope:
    """Read id and event name from the headers, action and account from the body."""
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers
    headers = incoming.headers
    delivery = _require_header(headers, _DELIVERY, _DELIVERY_ID, "1 to 255 visible characters")
    event = _require_header(headers, _EVENT, _EVENT_NAME, "1 to 100 of a-z, 0-9 and _")
    payload = parse_object(_document(headers, incoming.body))
    return Envelope(
        id=delivery,
        type=_type(event, payload),
        account=_account(payload),
        object_id=_object_id(payload),
    )


def _require_header(headers: Headers, name: str, pattern: re.Pattern[str], expected: str) -> str:
    value = headers.get(name)
    if value is None or not pattern.fullmatch(value):
        raise BadPayload(f"{name}: found {describe(value)}; expected {expected}")
    return value


def _document(headers: Headers, body: bytes) -> bytes:
    # The body is JSON, or a form with the JSON in its `payload` field, depending on the
    # content type of the hook.
    # https://docs.github.com/en/webhooks/using-webhooks/creating-webhooks
    try:
        return payload_bytes(headers, body)
    except ValueError:  # the error text may quote megabytes of the form
        raise BadPayload("the form has no single, readable `payload` field") from None


def _type(event: str, payload: dict[str, Any]) -> str:
    # Most events have an action, some (push, workflow_dispatch) have none. The action of
    # repository_dispatch is free text, chosen by the caller of the API.
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#repository_dispatch
    if payload.get("action") is None:
        return event
    return check_text(f"{event}.{require_text(payload, 'action')}", "type")


def _account(payload: dict[str, Any]) -> str | None:
    """Return the login of the organization, the repository's owner or the App's installer."""
    for path in _ACCOUNTS:
        login = text_at(payload, *path)
        if login is not None:
            return login
    return None


def _object_id(payload: dict[str, Any]) -> str | None:
    """Return the object in GitHub's notation: acme/shop#42 for issues and pull
    requests, else the repository.
    """
    repository = text_at(payload, "repository", "full_name")
    for name in _NUMBERED:
        thing = payload.get(name)
        number = thing.get("number") if isinstance(thing, dict) else None
        if repository is not None and isinstance(number, int) and number < 2**63:
            return f"{repository}#{number}"
    return repository


def sign(body: bytes, *, secret: bytes, id: str, type: str, now: datetime, url: str = "") -> Signed:
    """Sign like GitHub. The action is already in the body."""
    headers = {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/7d3a1f0",
        _DELIVERY: id,
        _EVENT: type.partition(".")[0],
        _SIGNATURE: _SCHEME + hexdigest(secret, body).decode(),
    }
    return Signed(headers, body, url)


GITHUB: Final = Provider(
    name="github",
    verify=verify,
    read=read,
    sign=sign,
    # Deliveries of the past 3 days can be redelivered. On Enterprise Server it is 7 days, so a
    # route for such a server needs a key retention of at least 8.
    # https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks
    redelivery=timedelta(days=3),
    # "GitHub does not automatically redeliver failed deliveries."
    # https://docs.github.com/en/webhooks/using-webhooks/handling-failed-webhook-deliveries
    retries=False,
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
    max_body=25 * 1024**2,
    tolerance=None,
    columns={
        "type": (("action",),),
        "account": _ACCOUNTS,
        "object_id": (
            ("repository", "full_name"),
            *((name, "number") for name in _NUMBERED),
        ),
    },
    repeats=Repeats(unique=frozenset(UNIQUE), has_one_type=True),
    facts=Facts(
        title="GitHub",
        scheme="HMAC-SHA256 hex over {body}, header x-hub-signature-256",
        docs=("https://docs.github.com/en/webhooks",),
        id="header.x-github-delivery",
        type="header.x-github-event and json.action",
        unsigned=("id", "type"),
        vector="GitHub's documentation, and npm @octokit/webhooks-methods 6.0.0",
        notes=("Never comes back by itself. No time is signed: repeated bodies are refused.",),
    ),
)
