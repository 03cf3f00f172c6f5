"""Looks every few seconds for what needs people, and tells them: in every worker and `serve`."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import orjson
import structlog

from gateway.alerts.message import make_message, message_id
from gateway.alerts.post import Answer, names, post
from gateway.alerts.rules import Decision, News, judge
from gateway.failpoints import reached
from gateway.ledger.alert_messages import (
    Letter,
    forget_destinations,
    note_sent,
    note_unsent,
    put_message,
    take_messages,
)
from gateway.ledger.alerts import (
    Alert,
    Finding,
    Key,
    Kind,
    describe_alerts,
    keep_alert,
    load_alerts,
    look_backlog,
    look_dead,
    look_effects,
    start_look,
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
from gateway.outbound.client import Client
from gateway.routes import AlertDestinations, Alerts

COMMITTING: Final = timedelta(seconds=2)
"""A death has a time a moment before it is committed: what is younger is looked at the next time,
so that the mark up to which people were told never passes one."""

MOST_AT_ONCE: Final = 4
"""Messages to one destination: nothing that needs people must become an attack on them."""

log = structlog.get_logger("gateway.alerts")


class Teller:
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
        """Whatever goes wrong is tried again."""
        while True:
            try:
                await self.round()
            except TROUBLE as error:
                log.warning("alerts_failed", error=describe(error))
            except Exception:  # a mistake of ours here must not end what the worker is there for
                log.exception("alerts_failed")
            await asyncio.sleep(self._every.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311 (no secret)

    async def round(self, now: datetime | None = None) -> int:
        """Looks, and sends what is due; returns how many got there."""
        if not self._has_begun:
            await forget_destinations(self._ledger, self._names)
            self._has_begun = True
        await self.look(now)
        return await self.send(now)

    async def look(self, now: datetime | None = None) -> list[Decision]:
        """Notes what has changed, with the messages that are due, in one transaction."""
        async with self._ledger.acquire() as connection, connection.transaction():
            at = await start_look(connection, now)
            if at is None:  # another worker is at it
                return []
            decisions = await self._decide(connection, at)
            await self._keep(connection, decisions, at)
        reached("alert.decided")
        for decision in decisions:
            _log(decision)
        return decisions

    async def send(self, now: datetime | None = None) -> int:
        """Sends what is due; returns how many got there."""
        if not self._names:
            return 0
        letters = await take_messages(self._ledger, self._names, now)
        if not letters:
            return 0
        reached("alert.taken")
        async with Client(most_connections=MOST_AT_ONCE) as http:
            tasks = [asyncio.create_task(self._deliver(http, letter, now)) for letter in letters]
            try:
                await asyncio.wait(tasks)  # all of them: one that cannot be noted ends no other
            finally:
                for task in tasks:
                    task.cancel()
        failures = [failure for task in tasks if (failure := task.exception())]
        if failures:
            raise failures[0]
        return sum(task.result() for task in tasks)

    async def _decide(self, connection: Pooled, at: datetime) -> list[Decision]:
        standing = {alert.key: alert for alert in await load_alerts(connection)}
        found = {finding.key: finding for finding in await self._find(connection, at)}
        judged = (
            self._judge(standing.get(key), found.get(key), key, at)
            for key in dict.fromkeys([*standing, *found])
        )
        return [decision for decision in judged if decision is not None]

    async def _find(self, connection: Pooled, at: datetime) -> list[Finding]:
        found: list[Finding] = []
        if self._alerts.dead:
            until = at - COMMITTING
            found += await look_dead(connection, enough=self._alerts.dead, until=until)
        if self._alerts.backlog:
            found += await look_backlog(connection, due_before=at - self._alerts.backlog)
        if self._alerts.effects:
            until = at - COMMITTING
            found += await look_effects(connection, enough=self._alerts.effects, until=until)
        return found

    def _judge(
        self, alert: Alert | None, finding: Finding | None, key: Key, at: datetime
    ) -> Decision | None:
        is_on = {
            Kind.DEAD: self._alerts.dead,
            Kind.BACKLOG: self._alerts.backlog,
            Kind.EFFECTS: self._alerts.effects,
        }[key[0]]
        return judge(
            alert,
            finding,
            repeat=self._alerts.repeat,
            at=at,
            tells=bool(self._names) and bool(is_on),
        )

    async def _keep(self, connection: Pooled, decisions: list[Decision], at: datetime) -> None:
        told = [d.alert.key for d in decisions if d.news and d.news is not News.RECOVERED]
        details = await describe_alerts(connection, told, at) if told else {}
        for decision in decisions:
            alert, news = decision.alert, decision.news
            if news is not None:
                about = details.get(alert.key)
                if about is None and news is not News.RECOVERED:
                    continue  # it has just ended: the next look will see so
                message = make_message(alert, news, about, at)
                id = message_id(alert)
                await put_message(connection, alert.key, self._names, id=id, message=message, at=at)
                alert = replace(alert, told_through=at - COMMITTING)
            await keep_alert(connection, alert)

    async def _deliver(self, http: Client, letter: Letter, now: datetime | None) -> bool:
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

    async def _note_failure(self, letter: Letter, answer: Answer, now: datetime | None) -> None:
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
    """Tells over a connection of its own, where there is whom to tell."""
    if not names(destinations):
        yield
        return
    ledger = await open_pool(
        url, name="gateway alerts", size=1, command_timeout_s=COMMAND_TIMEOUT_S, **PREPARED_ONCE
    )
    teller = Teller(ledger, alerts=alerts, destinations=destinations, every=every)
    task = asyncio.create_task(teller.tell_forever(), name="alerts")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        ledger.terminate()


def _names_of(letter: Letter) -> dict[str, str]:
    return {
        "kind": letter.kind.value,
        "route": letter.route,
        "handler": letter.handler,
        "destination": letter.destination,
    }


def _log(decision: Decision) -> None:
    """Also for those who are told by their logs alone."""
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
