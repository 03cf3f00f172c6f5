"""Problems and warnings of a health snapshot, with advice for each."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from gateway.base.errors import Overloaded
from gateway.base.units import format_count, format_roughly
from gateway.config.routes import is_forward
from gateway.operations.encryption import in_use
from gateway.operations.status.engines import look_at_reloads, look_at_secrets
from gateway.operations.status.report import (
    Attention,
    Found,
    HandlerState,
    RouteState,
    StatusReport,
)

OLD: Final = timedelta(minutes=5)
"""A delivery that has been due for this long counts as backlog."""

FEW_RUNS: Final = 10
"""With fewer runs, the success rate of a handler is not meaningful."""

FEW_HANDLERS: Final = 5
"""If more handlers have the same problem, the rest is only counted, to keep the screen readable."""

POOR: Final = 0.5
FULL: Final = 0.9
"""The share of Postgres's connections in use from which a warning is given."""


def find_attention(status: StatusReport) -> list[Attention]:
    """Return problems first, then warnings, each in the order of `LOOKS`."""
    attention = [Attention(**found, see=SEEN.get(look)) for look in LOOKS for found in look(status)]
    return sorted(attention, key=lambda item: item["level"] != "problem")


def _problem(text: str, advice: str) -> Found:
    return Found(level="problem", text=text, advice=advice)


def _warning(text: str, advice: str) -> Found:
    return Found(level="warning", text=text, advice=advice)


def _ledger(status: StatusReport) -> Iterator[Found]:
    error = status["postgres"]["error"]
    if error is not None:
        yield _problem(
            error,
            "events are accepted only into the spool, and none is run; see `gateway doctor`",
        )


def _workers(status: StatusReport) -> Iterator[Found]:
    if status["workers"] or not status["postgres"]["reachable"]:
        return
    waiting = sum(handler["pending"] for handler in status["handlers"])
    text = f"no worker is alive, and {format_count(waiting, 'delivery waits', 'deliveries wait')}"
    yield _problem(text if waiting else "no worker is alive", "start one: `gateway worker`")


def _dead(status: StatusReport) -> Iterator[Found]:
    dying = [handler for handler in status["handlers"] if handler["dead"]]
    if not dying:
        return
    total, lately = sum(h["dead"] for h in dying), sum(h["dead_lately"] for h in dying)
    more = "+" if any("dead" in h["capped"] for h in dying) else ""
    text = f"{total:,}{more} dead letter{'s' if total > 1 else ''}"
    when = {0: "none ", total: "all "}.get(lately, f"{lately:,} of them ")
    if total == 1:
        when = "" if lately else "not "
    worst = max(dying, key=lambda h: h["dead"])
    who = _of(worst)
    if len(dying) > 1:
        most = "most of" if worst["dead"] * 2 > total else f"of {len(dying):,} handlers, such as"
        who = f"{most} {who}"
    yield _problem(
        f"{text}, {when}in the last hour ({who})",
        "`gateway dead --group` shows what died of what\n"
        "`gateway replay --dead` runs them again, once that is mended\n"
        "`gateway discard --dead` gives them up",
    )


def _unknown_effects(status: StatusReport) -> Iterator[Found]:
    found = []
    for handler in status["handlers"]:
        count = handler["unknown_effects"]
        if not count:
            continue
        more = "+" if "unknown_effects" in handler["capped"] else ""
        effects = f"{count:,}{more} effects" if count > 1 else "an effect"
        choose = f"--handler {handler['handler']}"
        found.append(
            _problem(
                f"{_of(handler)} does not know the outcome of {effects}",
                f"`gateway effects {choose}` lists them, with how their calls ended\n"
                "`gateway effects confirm ID` counts one as done, if the service that was called"
                " has it in its log\n"
                f"`gateway effects retry --all {choose}` makes the others again",
            )
        )
    yield from _few(found)


def _backlog(status: StatusReport) -> Iterator[Found]:
    found = []
    for handler in status["handlers"]:
        oldest = handler["oldest_due_at"]
        if oldest is None or status["at"] - oldest < OLD:
            continue
        if handler["orphaned"] or handler["paused"] or not status["workers"]:
            continue  # already reported, with the reason why it waits
        text = f"{_of(handler)} is behind: {_pending(handler)}, the oldest due for"
        found.append(
            _problem(
                f"{text} {_age(status['at'], oldest)}",
                "more workers or GATEWAY_CONCURRENCY, or a faster handler",
            )
        )
    yield from _few(found)


def _suspects(status: StatusReport) -> Iterator[Found]:
    found = [
        _warning(
            f"{_of(handler)}: a worker was lost twice while"
            f" {format_count(handler['suspects'], 'delivery', 'deliveries')} ran; each runs alone",
            "find out what kills workers (memory, a crash, a blocked event loop):"
            " isolated_worker_lost in the log of the worker",
        )
        for handler in status["handlers"]
        if handler["suspects"]
    ]
    yield from _few(found)


def _orphans(status: StatusReport) -> Iterator[Found]:
    found = [
        _problem(
            f"{_of(handler)} is in no worker: {_pending(handler)}",
            f"{advise_lost(handler['handler'])}; else deploy a worker that has it, or give them up:"
            " `gateway discard`",
        )
        for handler in status["handlers"]
        if handler["orphaned"]
    ]
    yield from _few(found)


def advise_lost(handler: str) -> str:
    """Advise what to do about a renamed handler. A forward can only be renamed back."""
    if is_forward(handler):
        return "if the forward was renamed, give it its name back"
    return f'if it was renamed, write formerly=["{handler}"] at the @handler of its new name'


def _pauses(status: StatusReport) -> Iterator[Found]:
    for pause in status["pauses"]:
        what = pause["handler"] or f"all of {pause['route']}"
        since = _age(status["at"], pause["since"])
        why = f": {pause['reason']}" if pause["reason"] else ""
        handler = "" if pause["handler"] is None else f" {pause['handler']}"
        yield _warning(
            f"{what} is paused, for {since} now, by {pause['actor']}{why}",
            f"when it may run again: `gateway resume {pause['route']}{handler}`",
        )


def _unheard(status: StatusReport) -> Iterator[Found]:
    """Report each unreachable destination once, however many alerts it missed."""
    errors = {
        told["destination"]: told["error"]
        for alert in status["alerts"]
        for told in alert["told"]
        if told["status"] != "sent" and told["error"] is not None
    }
    for destination, error in errors.items():
        yield _problem(
            f"alerts do not get through to {destination}: {error}",
            "try it: `gateway alerts --test`; what stands: `gateway alerts`",
        )


def _failing(status: StatusReport) -> Iterator[Found]:
    found = [
        _warning(
            f"{_of(handler)} failed {handler['failed']:,} of {handler['runs']:,} runs"
            " in the last hour",
            f"see why: `gateway events --handler {handler['handler']}`, then `gateway show ID`",
        )
        for handler in status["handlers"]
        if handler["success"] is not None
        and handler["runs"] >= FEW_RUNS
        and handler["success"] < POOR
    ]
    yield from _few(found)


def _rejected(status: StatusReport) -> Iterator[Found]:
    """Report rejected requests whose cause shows that a genuine sender is affected."""
    for told in status["rejected"]:
        if told["cause"] in OURS:
            on = f"on {told['route']}" if told["route"] else "that came to no route"
            requests = format_count(told["refused"], "request")
            such = ": " if told["kept"] == told["refused"] else f", {told['kept']:,} looked into: "
            yield _warning(
                f"{requests} refused {on} as {told['code']} in the last hour{such}{told['detail']}",
                SEE_REJECTED,
            )


def _shed(status: StatusReport) -> Iterator[Found]:
    for route in status["routes"]:
        if not route["shed"]:
            continue
        shed = format_count(route["shed"], "request was", "requests were")
        text = f"{route['route']}: {shed} shed (503) in the last hour: too many in flight"
        if route["retries"] is False:
            lost = format_count(route["shed"], "event")
            yield _problem(
                f"{text}; the sender does not retry: {lost} may be lost",
                f"which: `gateway rejected --route {route['route']}`; have them redelivered"
                f" (`gateway reconcile {route['route']}`, or at the sender); {MORE_CAPACITY}",
            )
        else:
            retries = "; the sender retries" if route["retries"] else ""
            yield _warning(text + retries, MORE_CAPACITY)


def _rejected_items(status: StatusReport) -> Iterator[Found]:
    for route in status["routes"]:
        if route["rejected_items"]:
            items = format_count(route["rejected_items"], "item")
            yield _warning(
                f"{route['route']}: {items} of accepted batches could not be read; the sender does"
                " not send them again",
                f"why: `gateway rejected --route {route['route']}`; once the route can read them:"
                f" `gateway rejected release --route {route['route']} --all`",
            )


def _refusals(status: StatusReport) -> Iterator[Found]:
    few_first = sorted(status["rejected"], key=lambda told: told["kept"])
    most = {(told["route"], told["code"]): told for told in few_first}
    for route in status["routes"]:
        for code, count in sorted(route["refused_as"].items(), key=lambda item: -item[1]):
            cause = most.get((route["route"], code))
            if cause is not None and cause["cause"] in OURS:
                continue  # already reported by _rejected
            if code == Overloaded.code:
                continue  # reported by _shed
            if code == "UNAVAILABLE":
                yield _problem(
                    f"{route['route']}: {format_count(count, 'request')} not taken (503)"
                    " in the last 5 minutes",
                    "Postgres was slow or away: see the log of serve",
                )
            elif _is_much(route, count):
                yield _warning(
                    f"{route['route']}: {count:,} of {_answered(route):,} requests refused"
                    f" as {code} in the last 5 minutes",
                    f"{_usual(code) if cause is None else cause['detail']}; {SEE_REJECTED}",
                )


def _spool(status: StatusReport) -> Iterator[Found]:
    spool = status["spool"]
    for piece in spool["unreadable"]:
        yield _problem(
            f"a piece of the spool on {spool['host']} cannot be read: {piece}",
            "acknowledged events may be in it: keep the file, see docs/reliability.md",
        )
    if spool["events"] and spool["oldest_at"] is not None:
        yield _warning(
            f"{format_count(spool['events'], 'event waits', 'events wait')} in the spool on"
            f" {spool['host']}, the oldest for {_age(status['at'], spool['oldest_at'])}",
            "they are claimed as soon as a serve there reaches Postgres",
        )


def _reconciles(status: StatusReport) -> Iterator[Found]:
    for run in status["reconciles"]:
        if run["status"] == "failed":
            ended_at = run["finished_at"] or run["started_at"]
            yield _problem(
                f"the last reconcile of {run['route']} failed {_age(status['at'], ended_at)} ago:"
                f" {run['error']}",
                f"then: `gateway reconcile {run['route']} --resume`, which goes on where it ended",
            )
        elif run["unrecoverable"]:
            yield _warning(
                f"{format_count(run['unrecoverable'], 'event')} of {run['route']} never came"
                " and cannot be had any more",
                "which, and why: the query at the end of docs/reconcile.md",
            )


def _keys(status: StatusReport) -> Iterator[Found]:
    """Report encrypted data whose key is missing."""
    for key in status["keys"]:
        if key["at_hand"] is False and in_use(key):
            events = format_count(key["events"] + key["spooled"], "event is", "events are")
            yield _problem(
                f"{events} encrypted under key {key['key_id']}, which is not among `keys`:"
                " their deliveries wait",
                "put it back, behind the first, restart the workers, then `gateway rekey`",
            )


def _bulk(status: StatusReport) -> Iterator[Found]:
    for bulk in status["bulk"]:
        if bulk["is_idle"]:
            yield _warning(
                f"bulk operation {bulk['bulk_id']} ({bulk['action']}, by {bulk['actor']}) has no"
                f" running process: it stopped at {bulk['moved']:,} of {bulk['total']:,},"
                f" {_age(status['at'], bulk['stepped_at'])} ago",
                f"resume it: `gateway bulk resume {bulk['bulk_id']}`",
            )


def _redis(status: StatusReport) -> Iterator[Found]:
    if status["redis"]["error"] is not None:
        yield _warning(
            f"Redis is away: {status['redis']['error']}",
            "nothing is lost: workers find their work in Postgres, a moment later",
        )


def _connections(status: StatusReport) -> Iterator[Found]:
    used, most = status["postgres"]["connections"], status["postgres"]["max_connections"]
    if used is not None and most is not None and used >= most * FULL:
        yield _warning(
            f"Postgres has {used} of {most} connections in use",
            "raise max_connections, or run fewer workers or a lower GATEWAY_CONCURRENCY",
        )


Look = Callable[[StatusReport], Iterator[Found]]

OF_THE_WORK: Final[tuple[Look, ...]] = (
    _workers,
    _dead,
    _unknown_effects,
    _backlog,
    _orphans,
    _suspects,
    _pauses,
    _unheard,
    _reconciles,
    _bulk,
    _keys,
    _shed,
    _rejected,
    _rejected_items,
    _refusals,
    _failing,
)
LOOKS: Final[tuple[Look, ...]] = (
    *(_ledger, look_at_secrets, look_at_reloads, *OF_THE_WORK, _spool, _redis, _connections),
)

SEEN: Final[Mapping[Look, str]] = {
    look_at_secrets: "routes",
    look_at_reloads: "system",
    _workers: "system",
    _dead: "dead",
    _unknown_effects: "effects",
    _backlog: "handlers",
    _orphans: "handlers",
    _suspects: "handlers",
    _pauses: "handlers",
    _reconciles: "reconcile",
    _bulk: "bulk",
    _shed: "routes",
    _rejected: "rejected",
    _rejected_items: "rejected",
    _refusals: "rejected",
    _failing: "handlers",
    _redis: "system",
    _connections: "system",
}
"""The console page with details and with the form to fix it."""

REFUSALS: Final = {
    "BAD_SIGNATURE": "a secret that was rotated at the provider only, or a stranger",
    "STALE_TIMESTAMP": "a clock that is wrong, here or there: `gateway doctor`",
    "REPLAYED": "the same bytes under fresh ids: see `replay` in docs/routes.md",
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
    {
        *("another_route", "wrong_url", "secret_form", "reserialised", "clock"),
        "other_url",
    }
)
"""Causes that only occur with a genuine sender."""


def _usual(code: str) -> str:
    return REFUSALS.get(code, "see the log of `gateway serve`")


def _is_much(route: RouteState, count: int) -> bool:
    """Whether there are enough rejected requests for a warning.

    Single ones can come from anyone.
    """
    return count >= FEW_RUNS or count * 2 >= _answered(route)


def _answered(route: RouteState) -> int:
    requests = route["minutes"]
    return requests["accepted"] + requests["duplicate"] + requests["ignored"] + requests["refused"]


def _few(found: list[Found]) -> Iterator[Found]:
    """Limit the number of handlers listed with the same problem, and count the rest."""
    yield from found[:FEW_HANDLERS]
    if rest := found[FEW_HANDLERS:]:
        yield Found(
            level=rest[0]["level"],
            text=f"the same is true of {format_count(len(rest), 'more handler')}",
            advice="all handlers, with what is wrong: `gateway status --json`",
        )


def _of(handler: HandlerState) -> str:
    return f"{handler['handler']} ({handler['route']})"


def _pending(handler: HandlerState) -> str:
    more = "+" if "pending" in handler["capped"] else ""
    return f"{handler['pending']:,}{more} waiting"


def _age(now: datetime, then: datetime) -> str:
    return format_roughly(now - then)
