"""Which secrets a route has, when each was last used, and which one can go or must not."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from gateway.notation.quantities import format_roughly
from gateway.operate.status.report import Found, RouteState, SecretState, Status
from gateway.routes import Route

SOON: Final = timedelta(days=7)
LATELY: Final = timedelta(days=1)
IDLE: Final = timedelta(days=3)
"""For so long a sender may still come back with what it signed under the old one."""

REPLACE: Final = "put in what the sender signs with now: docs/secrets.md"


def list_secrets(
    route: Route, uses: Mapping[tuple[str, str], Mapping[str, Any]], now: datetime
) -> list[SecretState]:
    """By their references, in the order of the file."""
    return [
        SecretState(
            secret=str(ref),
            expires_at=ref.expires_at,
            expired=ref.has_expired(now),
            first_used_at=use["first_used_at"] if use else None,
            last_used_at=use["last_used_at"] if use else None,
            uses=use["uses"] if use else 0,
        )
        for ref in route.secrets
        for use in [uses.get((route.name, str(ref)))]
    ]


def can_go(secret: SecretState, route: RouteState, now: datetime) -> bool:
    """Whether nothing has used it for days, while another one was used since."""
    used_at = secret["last_used_at"]
    if used_at is None or now - used_at < IDLE:
        return False
    return any(_used_after(other, used_at) for other in route["secrets"])


def never_used(route: RouteState) -> list[SecretState]:
    """Those that count and verified nothing yet, while another one of the route did."""
    if not any(secret["last_used_at"] for secret in route["secrets"]):
        return []
    return [s for s in route["secrets"] if s["last_used_at"] is None and not s["expired"]]


def find_expiries(routes: Iterable[Route], now: datetime) -> Iterator[str]:
    """In words: of routes alone, whatever was used."""
    for route in routes:
        if route.secrets and all(ref.has_expired(now) for ref in route.secrets):
            yield f"every secret of {route.name} has expired: all its requests are refused"
            continue
        for ref in route.secrets:
            if ref.expires_at is not None and ref.expires_at - now <= SOON:
                yield f"{ref} of {route.name} {describe_expiry(ref.expires_at, now)}"


def has_rotation(route: RouteState) -> bool:
    """Whether there is something to tell that the route's last event does not."""
    return len(route["secrets"]) > 1 or any(s["expires_at"] for s in route["secrets"])


def describe_expiry(ends: datetime, now: datetime) -> str:
    """`expires in 3d`, or `expired 3d ago`."""
    if ends <= now:
        return f"expired {format_roughly(now - ends)} ago"
    return f"expires in {format_roughly(ends - now)}"


def look_at_secrets(status: Status) -> Iterator[Found]:
    """What expired, and what is about to while it is needed."""
    for route in status["routes"]:
        valid = [secret for secret in route["secrets"] if not secret["expired"]]
        if route["secrets"] and not valid:
            text = f"every secret of {route['route']} has expired: all its requests are refused"
            yield Found(level="problem", text=text, advice=REPLACE)
            continue
        for secret in route["secrets"]:
            yield from _expiry(secret, route["route"], valid, status["at"])


def look_at_reloads(status: Status) -> Iterator[Found]:
    """A process that goes on with old secrets."""
    for reload in status["reloads"]:
        if reload["outcome"] == "refused":
            yield Found(
                level="problem",
                text=f"serve on {reload['host']}, pid {reload['pid']}, refused a reload"
                f" {format_roughly(status['at'] - reload['at'])} ago, and goes on with the secrets"
                f" that it had: {reload['error']}",
                advice="correct that, and send it SIGHUP once more: docs/secrets.md",
            )


def _expiry(
    secret: SecretState, route: str, valid: list[SecretState], now: datetime
) -> Iterator[Found]:
    ends, used_at = secret["expires_at"], secret["last_used_at"]
    if ends is None or ends - now > SOON:
        return
    told = f"{secret['secret']} of {route} {describe_expiry(ends, now)}"
    if secret["expired"]:
        yield Found(level="warning", text=told, advice="take it out of routes.yaml")
    elif all(one["expires_at"] is not None and one["expires_at"] <= ends for one in valid):
        text = f"{told}, and there is no other one then"
        yield Found(level="problem", text=text, advice=REPLACE)
    elif used_at is not None and now - used_at < LATELY:
        text = f"{told}, and was used {format_roughly(now - used_at)} ago"
        advice = "the sender still signs with it: change it there, or move `expires_at`"
        yield Found(level="warning", text=text, advice=advice)


def _used_after(other: SecretState, at: datetime) -> bool:
    return other["last_used_at"] is not None and other["last_used_at"] > at
