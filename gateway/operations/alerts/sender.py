"""Check regularly for problems that need attention, and notify.

Runs in every worker and `serve`.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import orjson
import structlog

from gateway.base.failpoints import reached
from gateway.base.names import NO_NAMES, Names
from gateway.config.routes import AlertDestinations, Alerts
from gateway.http.outbound import OutboundClient
from gateway.ledger.alerts import (
    Alert,
    AlertFinding,
    AlertMessage,
    Details,
    Key,
    describe_alerts,
    find_conditions,
    forget_destinations,
    keep_alert,
    load_alerts,
    note_sent,
    note_unsent,
    put_message,
    start_evaluation,
    take_messages,
)
from gateway.ledger.connection import (
    COMMAND_TIMEOUT_S,
    PREPARED_ONCE,
    TROUBLE,
    Pool,
    Pooled,
    describe,
    open_pool,
)
from gateway.ledger.names import load_names
from gateway.operations.alerts.message import PostResult, make_message, message_id, names, post
from gateway.operations.alerts.rules import AlertDecision, AlertNews, judge

COMMITTING: Final = timedelta(seconds=2)
"""A dead letter has a timestamp slightly before its commit. Younger ones are left for the next
check, so that `told_through` never passes a dead letter that was not visible yet.
"""

MOST_AT_ONCE: Final = 4
"""Maximum number of concurrent messages to one destination, so that alerts never flood it."""

log = structlog.get_logger("gateway.alerts")


class AlertSender:
    """Report dead letters, a backlog and effects of unknown outcome, once for all workers."""

    def __init__(
        self, ledger: Pool, *, alerts: Alerts, destinations: AlertDestinations, every: timedelta
    ) -> None:
        self._ledger = ledger
        self._alerts = alerts
        self._destinations = destinations
        self._names = names(destinations)
        self._every = every
        self._has_begun = False

    async def tell_forever(self) -> None:
        """Check and send in a loop. Errors are logged, and the next round tries again."""
        while True:
            try:
                await self.round()
            except TROUBLE as error:
                log.warning("alerts_failed", error=describe(error))
            except Exception:  # our own bug must not end the worker
                log.exception("alerts_failed")
            await asyncio.sleep(self._every.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311 (no secret)

    async def round(self, now: datetime | None = None) -> int:
        """Check once and send the due messages. Return the number of sent messages."""
        if not self._has_begun:
            await forget_destinations(self._ledger, self._names)
            self._has_begun = True
        await self.evaluate(now)
        return await self.send(now)

    async def evaluate(self, now: datetime | None = None) -> list[AlertDecision]:
        """Store changed alerts and their due messages in one transaction."""
        async with self._ledger.acquire() as connection, connection.transaction():
            at = await start_evaluation(connection, now)
            if at is None:  # another worker is checking
                return []
            decisions = await self._decide(connection, at)
            await self._keep(connection, decisions, at)
        reached("alert.decided")
        for decision in decisions:
            _log(decision)
        return decisions

    async def send(self, now: datetime | None = None) -> int:
        """Send the due messages. Return the number of sent messages."""
        if not self._names:
            return 0
        letters = await take_messages(self._ledger, self._names, now)
        if not letters:
            return 0
        reached("alert.taken")
        async with OutboundClient(most_connections=MOST_AT_ONCE) as http:
            tasks = [asyncio.create_task(self._deliver(http, letter, now)) for letter in letters]
            try:
                await asyncio.wait(tasks)  # all: one failure must not cancel the others
            finally:
                for task in tasks:
                    task.cancel()
        failures = [failure for task in tasks if (failure := task.exception())]
        if failures:
            raise failures[0]
        return sum(task.result() for task in tasks)

    async def _decide(self, connection: Pooled, at: datetime) -> list[AlertDecision]:
        standing = {alert.key: alert for alert in await load_alerts(connection)}
        findings = await find_conditions(connection, self._alerts, at=at, until=at - COMMITTING)
        found = {finding.key: finding for finding in findings}
        judged = (
            self._judge(standing.get(key), found.get(key), key, at)
            for key in dict.fromkeys([*standing, *found])
        )
        return [decision for decision in judged if decision is not None]

    def _judge(
        self, alert: Alert | None, finding: AlertFinding | None, key: Key, at: datetime
    ) -> AlertDecision | None:
        is_on = bool(self._names) and bool(getattr(self._alerts, key[0].value))
        return judge(
            alert,
            finding,
            repeat=self._alerts.repeat,
            at=at,
            tells=is_on,
        )

    async def _keep(self, connection: Pooled, decisions: list[AlertDecision], at: datetime) -> None:
        told = [d.alert.key for d in decisions if d.news and d.news is not AlertNews.RECOVERED]
        details = await describe_alerts(connection, told, at) if told else {}
        known = await load_names(connection) if any(d.news for d in decisions) else NO_NAMES
        for decision in decisions:
            alert, news = decision.alert, decision.news
            if news is not None:
                about = details.get(alert.key)
                if about is None and news is not AlertNews.RECOVERED:
                    continue  # it has just ended: the next check will notice
                message = make_message(_shown(alert, known), news, _shown_pause(about, known), at)
                id = message_id(alert)
                await put_message(connection, alert.key, self._names, id=id, message=message, at=at)
                alert = replace(alert, told_through=at - COMMITTING)
            await keep_alert(connection, alert)

    async def _deliver(
        self, http: OutboundClient, letter: AlertMessage, now: datetime | None
    ) -> bool:
        answer = await post(
            http,
            self._destinations,
            letter.destination,
            id=letter.id,
            message=orjson.loads(letter.message),
        )
        reached("alert.sent")
        if answer.ok:
            await note_sent(self._ledger, letter, now)
            log.info("alert_sent", **_names_of(letter))
            return True
        await self._note_failure(letter, answer, now)
        return False

    async def _note_failure(
        self, letter: AlertMessage, answer: PostResult, now: datetime | None
    ) -> None:
        goes_on = await note_unsent(
            self._ledger, letter, now, error=answer.text, retry_after=answer.retry_after
        )
        tell = log.warning if goes_on else log.error
        event = "alert_not_sent" if goes_on else "alert_given_up"
        tell(event, **_names_of(letter), attempt=letter.attempts, answer=answer.text)


@asynccontextmanager
async def telling(
    url: str, *, alerts: Alerts, destinations: AlertDestinations, every: timedelta
) -> AsyncIterator[None]:
    """Run the alerts with a connection pool of their own, if there is a destination."""
    if not names(destinations):
        yield
        return
    ledger = await open_pool(
        url, name="gateway alerts", size=1, command_timeout_s=COMMAND_TIMEOUT_S, **PREPARED_ONCE
    )
    teller = AlertSender(ledger, alerts=alerts, destinations=destinations, every=every)
    task = asyncio.create_task(teller.tell_forever(), name="alerts")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        ledger.terminate()


def _shown(alert: Alert, names: Names) -> Alert:
    """The alert with current names in the place of identities."""
    route, handler = names.routes.label(alert.route), names.handlers.label(alert.handler)
    return replace(alert, route=route, handler=handler)


def _shown_pause(details: Details | None, names: Names) -> Details | None:
    if details is None or details.pause is None or details.pause.handler is None:
        return details
    pause = replace(details.pause, handler=names.handlers.label(details.pause.handler))
    return replace(details, pause=pause)


def _names_of(letter: AlertMessage) -> dict[str, str]:
    return {
        "kind": letter.kind.value,
        "route": letter.route,
        "handler": letter.handler,
        "destination": letter.destination,
    }


def _log(decision: AlertDecision) -> None:
    """Log the decision, for operators who rely on logs only."""
    alert = decision.alert
    event = "alert_stands" if alert.stands else "alert_over"
    log.warning(
        event,
        kind=alert.kind.value,
        route=alert.route,
        handler=alert.handler,
        round=alert.round,
        paused=alert.paused,
    )
