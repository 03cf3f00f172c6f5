"""What needs attention: pure decisions from a health snapshot and the time.

`gateway status`, `gateway doctor` and the console show these lines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from gateway.base.errors import Overloaded
from gateway.base.units import format_count, format_roughly
from gateway.config.routes import Route, is_forward
from gateway.operations.encryption import in_use
from gateway.operations.health.snapshot import (
    AttentionLine,
    HandlerState,
    HealthSnapshot,
    RouteState,
    SecretState,
)

OLD: Final = timedelta(minutes=5)
"""A delivery that has been due for this long counts as backlog."""
SOON: Final = timedelta(days=7)
"""A secret that expires within this time is reported."""
LATELY: Final = timedelta(days=1)
"""A secret that was used within this time is still in use."""

FEW_RUNS: Final = 10
"""With fewer runs, the success rate of a handler is not meaningful."""
FEW_HANDLERS: Final = 5
"""If more handlers have the same problem, the rest is only counted, to keep the screen readable."""

POOR: Final = 0.5
FULL: Final = 0.9
"""The share of Postgres's connections in use from which a warning is given."""

REFUSALS: Final = {
    "BAD_SIGNATURE": "a secret that was rotated at the provider only, or a stranger",
    "STALE_TIMESTAMP": "a clock that is wrong, here or there: `gateway doctor`",
    "REPEATED_BODY": "the same bytes under fresh ids: see `repeats` in docs/routes.md",
    "BAD_PAYLOAD": "signed, but no event: is the route's provider the right one?",
    "TOO_LARGE": "bodies over the route's max_body",
    "TIMEOUT": "bodies that come too slowly: the network, or a slow sender",
    "ADDRESS_REFUSED": "a sender with new addresses, a stranger, or a proxy that is not in"
    " GATEWAY_TRUSTED_PROXIES: see `allow` in docs/routes.md",
    "RATE_LIMITED": "more than the route's `limit`: the sender comes again",
    "TOO_MANY_REFUSED": "a flood of refused requests, which are no longer looked at",
}


MORE_CAPACITY: Final = (
    "find out why requests take long (`gateway status`), run one more `gateway serve`, or raise"
    " GATEWAY_MAX_IN_FLIGHT and GATEWAY_MAX_BUFFERED"
)
SEE_REJECTED: Final = "see `gateway rejected`"
OURS: Final = frozenset(
    {"another_route", "wrong_url", "secret_form", "reserialised", "clock", "other_url"}
)
"""Causes that only occur with a genuine sender."""
REPLACE: Final = "put in what the sender signs with now: docs/secrets.md"

Lines = Iterable[AttentionLine]
Find = Callable[[HealthSnapshot, datetime], Lines]


def find_attention(health: HealthSnapshot, now: datetime) -> list[AttentionLine]:
    """Return problems first, then warnings, each in the order of `RULES`."""
    lines = [replace(line, see=rule.see) for rule in RULES for line in rule.find(health, now)]
    return sorted(lines, key=lambda line: line.level != "problem")


def _problem(text: str, advice: str) -> AttentionLine:
    return AttentionLine(level="problem", text=text, advice=advice)


def _warning(text: str, advice: str) -> AttentionLine:
    return AttentionLine(level="warning", text=text, advice=advice)


def _per_handler(find: Callable[[HandlerState, HealthSnapshot, datetime], Lines]) -> Find:
    """Apply a rule to each handler. Of many handlers with the same problem, only count the rest."""

    def find_all(health: HealthSnapshot, now: datetime) -> Iterator[AttentionLine]:
        found = [line for handler in health.handlers for line in find(handler, health, now)]
        yield from found[:FEW_HANDLERS]
        if rest := found[FEW_HANDLERS:]:
            yield AttentionLine(
                level=rest[0].level,
                text=f"the same is true of {format_count(len(rest), 'more handler')}",
                advice="all handlers, with what is wrong: `gateway status --json`",
            )

    return find_all


def _ledger(health: HealthSnapshot, now: datetime) -> Lines:
    if health.postgres.error is not None:
        yield _problem(
            health.postgres.error,
            "events are accepted only into the spool, and none is run; see `gateway doctor`",
        )


def _secrets(health: HealthSnapshot, now: datetime) -> Lines:
    """Report expired secrets, and those that expire soon while still needed."""
    for route in health.routes:
        if route.secrets and not route.valid_secrets:
            yield _problem(
                f"every secret of {route.route} has expired: all its requests are refused", REPLACE
            )
            continue
        for secret in route.secrets:
            if secret.expires_at is not None and secret.expires_at - now <= SOON:
                yield from _expiry(secret, secret.expires_at, route, now)


def _expiry(secret: SecretState, ends: datetime, route: RouteState, now: datetime) -> Lines:
    text = f"{secret.secret} of {route.route} {describe_expiry(ends, now)}"
    used_at = secret.last_used_at
    if secret.expired:
        yield _warning(text, "take it out of routes.yaml")
    elif all(one.expires_at and one.expires_at <= ends for one in route.valid_secrets):
        yield _problem(f"{text}, and there is no other one then", REPLACE)
    elif used_at is not None and now - used_at < LATELY:
        yield _warning(
            f"{text}, and was used {_age(now, used_at)} ago",
            "the sender still signs with it: change it there, or move `expires_at`",
        )


def find_expiries(routes: Iterable[Route], now: datetime) -> Iterator[str]:
    """Describe expired and expiring secrets by configuration alone, without their use."""
    for route in routes:
        if route.secrets and all(ref.has_expired(now) for ref in route.secrets):
            yield f"every secret of {route.name} has expired: all its requests are refused"
            continue
        for ref in route.secrets:
            if ref.expires_at is not None and ref.expires_at - now <= SOON:
                yield f"{ref} of {route.name} {describe_expiry(ref.expires_at, now)}"


def describe_expiry(ends: datetime, now: datetime) -> str:
    """Return `expires in 3d` or `expired 3d ago`."""
    if ends <= now:
        return f"expired {format_roughly(now - ends)} ago"
    return f"expires in {format_roughly(ends - now)}"


def _reloads(health: HealthSnapshot, now: datetime) -> Lines:
    """Report processes that refused a reload and continue with old secrets."""
    for reload in health.reloads:
        if reload.outcome == "refused":
            yield _problem(
                f"serve on {reload.host}, pid {reload.pid}, refused a reload"
                f" {_age(now, reload.at)} ago, and goes on with the secrets"
                f" that it had: {reload.error}",
                "correct that, and send it SIGHUP once more: docs/secrets.md",
            )


def _workers(health: HealthSnapshot, now: datetime) -> Lines:
    if health.workers or not health.postgres.reachable:
        return
    waiting = sum(handler.pending for handler in health.handlers)
    text = f"no worker is alive, and {format_count(waiting, 'delivery waits', 'deliveries wait')}"
    yield _problem(text if waiting else "no worker is alive", "start one: `gateway worker`")


def _dead(health: HealthSnapshot, now: datetime) -> Lines:
    dying = [handler for handler in health.handlers if handler.dead]
    if not dying:
        return
    total, lately = sum(h.dead for h in dying), sum(h.dead_lately for h in dying)
    more = "+" if any("dead" in h.capped for h in dying) else ""
    text = f"{total:,}{more} dead letter{'s' if total > 1 else ''}"
    when = {0: "none ", total: "all "}.get(lately, f"{lately:,} of them ")
    if total == 1:
        when = "" if lately else "not "
    worst = max(dying, key=lambda h: h.dead)
    who = _of(worst)
    if len(dying) > 1:
        most = "most of" if worst.dead * 2 > total else f"of {len(dying):,} handlers, such as"
        who = f"{most} {who}"
    yield _problem(
        f"{text}, {when}in the last hour ({who})",
        "`gateway dead --group` shows what died of what\n"
        "`gateway replay --dead` runs them again, once that is mended\n"
        "`gateway discard --dead` gives them up",
    )


@_per_handler
def _unknown_effects(handler: HandlerState, health: HealthSnapshot, now: datetime) -> Lines:
    if count := handler.unknown_effects:
        more = "+" if "unknown_effects" in handler.capped else ""
        effects = f"{count:,}{more} effects" if count > 1 else "an effect"
        choose = f"--handler {handler.handler}"
        yield _problem(
            f"{_of(handler)} does not know the outcome of {effects}",
            f"`gateway effects {choose}` lists them, with how their calls ended\n"
            "`gateway effects confirm ID` counts one as done, if the service that was called"
            " has it in its log\n"
            f"`gateway effects retry --all {choose}` makes the others again",
        )


@_per_handler
def _backlog(handler: HandlerState, health: HealthSnapshot, now: datetime) -> Lines:
    oldest = handler.oldest_due_at
    if handler.orphaned or handler.paused or not health.workers:
        return  # already reported, with the reason why it waits
    if oldest is not None and now - oldest >= OLD:
        yield _problem(
            f"{_of(handler)} is behind: {_pending(handler)}, the oldest due for"
            f" {_age(now, oldest)}",
            "more workers or GATEWAY_CONCURRENCY, or a faster handler",
        )


@_per_handler
def _orphans(handler: HandlerState, health: HealthSnapshot, now: datetime) -> Lines:
    if handler.orphaned:
        yield _problem(
            f"{_of(handler)} is in no worker: {_pending(handler)}",
            f"{advise_lost(handler.handler)}; else deploy a worker that has it, or give them up:"
            " `gateway discard`",
        )


def advise_lost(handler: str) -> str:
    """Advise what to do about a renamed handler. A forward can only be renamed back."""
    if is_forward(handler):
        return "if the forward was renamed, give it its name back"
    return f'if it was renamed, write formerly=["{handler}"] at the @handler of its new name'


@_per_handler
def _suspects(handler: HandlerState, health: HealthSnapshot, now: datetime) -> Lines:
    if handler.suspects:
        yield _warning(
            f"{_of(handler)}: a worker was lost twice while"
            f" {format_count(handler.suspects, 'delivery', 'deliveries')} ran; each runs alone",
            "find out what kills workers (memory, a crash, a blocked event loop):"
            " isolated_worker_lost in the log of the worker",
        )


@_per_handler
def _failing(handler: HandlerState, health: HealthSnapshot, now: datetime) -> Lines:
    if handler.success is not None and handler.runs >= FEW_RUNS and handler.success < POOR:
        yield _warning(
            f"{_of(handler)} failed {handler.failed:,} of {handler.runs:,} runs in the last hour",
            f"see why: `gateway events --handler {handler.handler}`, then `gateway show ID`",
        )


def _pauses(health: HealthSnapshot, now: datetime) -> Lines:
    for pause in health.pauses:
        what = pause.handler or f"all of {pause.route}"
        why = f": {pause.reason}" if pause.reason else ""
        handler = "" if pause.handler is None else f" {pause.handler}"
        yield _warning(
            f"{what} is paused, for {_age(now, pause.since)} now, by {pause.actor}{why}",
            f"when it may run again: `gateway resume {pause.route}{handler}`",
        )


def _unheard(health: HealthSnapshot, now: datetime) -> Lines:
    """Report each unreachable destination once, however many alerts it missed."""
    errors = {
        receipt.destination: receipt.error
        for alert in health.alerts
        for receipt in alert.told
        if receipt.status != "sent" and receipt.error is not None
    }
    for destination, error in errors.items():
        yield _problem(
            f"alerts do not get through to {destination}: {error}",
            "try it: `gateway alerts --test`; what stands: `gateway alerts`",
        )


def _reconciles(health: HealthSnapshot, now: datetime) -> Lines:
    for run in health.reconciles:
        if run.status == "failed":
            yield _problem(
                f"the last reconcile of {run.route} failed"
                f" {_age(now, run.finished_at or run.started_at)} ago: {run.error}",
                f"then: `gateway reconcile {run.route} --resume`, which goes on where it ended",
            )
        elif run.unrecoverable:
            yield _warning(
                f"{format_count(run.unrecoverable, 'event')} of {run.route} never came"
                " and cannot be had any more",
                "which, and why: the query at the end of docs/reconcile.md",
            )


def _bulk(health: HealthSnapshot, now: datetime) -> Lines:
    for bulk in health.bulk:
        if bulk["is_idle"]:
            yield _warning(
                f"bulk operation {bulk['bulk_id']} ({bulk['action']}, by {bulk['actor']}) has no"
                f" running process: it stopped at {bulk['moved']:,} of {bulk['total']:,},"
                f" {_age(now, bulk['stepped_at'])} ago",
                f"resume it: `gateway bulk resume {bulk['bulk_id']}`",
            )


def _keys(health: HealthSnapshot, now: datetime) -> Lines:
    """Report encrypted data whose key is missing."""
    for key in health.keys:
        if key["at_hand"] is False and in_use(key):
            events = format_count(key["events"] + key["spooled"], "event is", "events are")
            yield _problem(
                f"{events} encrypted under key {key['key_id']}, which is not among `keys`:"
                " their deliveries wait",
                "put it back, behind the first, restart the workers, then `gateway rekey`",
            )


def _shed(health: HealthSnapshot, now: datetime) -> Lines:
    for route in health.routes:
        if not route.shed:
            continue
        shed = format_count(route.shed, "request was", "requests were")
        text = f"{route.route}: {shed} shed (503) in the last hour: too many in flight"
        if route.retries is False:
            lost = format_count(route.shed, "event")
            yield _problem(
                f"{text}; the sender does not retry: {lost} may be lost",
                f"which: `gateway rejected --route {route.route}`; have them redelivered"
                f" (`gateway reconcile {route.route}`, or at the sender); {MORE_CAPACITY}",
            )
        else:
            retries = "; the sender retries" if route.retries else ""
            yield _warning(text + retries, MORE_CAPACITY)


def _rejected(health: HealthSnapshot, now: datetime) -> Lines:
    """Report rejected requests whose cause shows that a genuine sender is affected."""
    for group in health.rejected:
        if group.cause in OURS:
            on = f"on {group.route}" if group.route else "that came to no route"
            requests = format_count(group.refused, "request")
            such = ": " if group.kept == group.refused else f", {group.kept:,} looked into: "
            yield _warning(
                f"{requests} refused {on} as {group.code} in the last hour{such}{group.detail}",
                SEE_REJECTED,
            )


def _rejected_items(health: HealthSnapshot, now: datetime) -> Lines:
    for route in health.routes:
        if route.rejected_items:
            yield _warning(
                f"{route.route}: {format_count(route.rejected_items, 'item')} of accepted batches"
                " could not be read; the sender does not send them again",
                f"why: `gateway rejected --route {route.route}`; once the route can read them:"
                f" `gateway rejected release --route {route.route} --all`",
            )


def _refusals(health: HealthSnapshot, now: datetime) -> Lines:
    few_first = sorted(health.rejected, key=lambda group: group.kept)
    most = {(group.route, group.code): group for group in few_first}
    for route in health.routes:
        for code, count in sorted(route.refused_as.items(), key=lambda item: -item[1]):
            cause = most.get((route.route, code))
            if (cause is not None and cause.cause in OURS) or code == Overloaded.code:
                continue  # already reported by _rejected or _shed
            if code == "UNAVAILABLE":
                yield _problem(
                    f"{route.route}: {format_count(count, 'request')} not taken (503)"
                    " in the last 5 minutes",
                    "Postgres was slow or away: see the log of serve",
                )
            elif count >= FEW_RUNS or count * 2 >= route.minutes.total:
                # Single ones can come from anyone.
                usual = REFUSALS.get(code, "see the log of `gateway serve`")
                yield _warning(
                    f"{route.route}: {count:,} of {route.minutes.total:,} requests refused"
                    f" as {code} in the last 5 minutes",
                    f"{usual if cause is None else cause.detail}; {SEE_REJECTED}",
                )


def _spool(health: HealthSnapshot, now: datetime) -> Lines:
    spool = health.spool
    for piece in spool.unreadable:
        yield _problem(
            f"a piece of the spool on {spool.host} cannot be read: {piece}",
            "acknowledged events may be in it: keep the file, see docs/reliability.md",
        )
    if spool.events and spool.oldest_at is not None:
        yield _warning(
            f"{format_count(spool.events, 'event waits', 'events wait')} in the spool on"
            f" {spool.host}, the oldest for {_age(now, spool.oldest_at)}",
            "they are claimed as soon as a serve there reaches Postgres",
        )


def _redis(health: HealthSnapshot, now: datetime) -> Lines:
    if health.redis.error is not None:
        yield _warning(
            f"Redis is away: {health.redis.error}",
            "nothing is lost: workers find their work in Postgres, a moment later",
        )


def _connections(health: HealthSnapshot, now: datetime) -> Lines:
    used, most = health.postgres.connections, health.postgres.max_connections
    if used is not None and most is not None and used >= most * FULL:
        yield _warning(
            f"Postgres has {used} of {most} connections in use",
            "raise max_connections, or run fewer workers or a lower GATEWAY_CONCURRENCY",
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of problem or warning."""

    find: Find
    see: str | None = None
    """The console page with details and with the form to fix it."""
    about: str | None = "work"
    """Heading of the finding in the doctor's report. None if the doctor checks it itself."""


RULES: Final[Sequence[Rule]] = (
    Rule(_ledger, about=None),
    Rule(_secrets, see="routes", about=None),
    Rule(_reloads, see="system", about="reloads"),
    Rule(_workers, see="system"),
    Rule(_dead, see="dead"),
    Rule(_unknown_effects, see="effects"),
    Rule(_backlog, see="handlers"),
    Rule(_orphans, see="handlers"),
    Rule(_suspects, see="handlers"),
    Rule(_pauses, see="handlers"),
    Rule(_unheard),
    Rule(_reconciles, see="reconcile"),
    Rule(_bulk, see="bulk"),
    Rule(_keys),
    Rule(_shed, see="routes"),
    Rule(_rejected, see="rejected"),
    Rule(_rejected_items, see="rejected"),
    Rule(_refusals, see="rejected"),
    Rule(_failing, see="handlers"),
    Rule(_spool, about="spool"),
    Rule(_redis, see="system", about=None),
    Rule(_connections, see="system", about=None),
)


def _of(handler: HandlerState) -> str:
    return f"{handler.handler} ({handler.route})"


def _pending(handler: HandlerState) -> str:
    more = "+" if "pending" in handler.capped else ""
    return f"{handler.pending:,}{more} waiting"


def _age(now: datetime, then: datetime) -> str:
    return format_roughly(now - then)
