"""The load: senders that retry or do not, that send twice, and keep book of every answer."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import orjson

from gateway.providers import PROVIDERS
from tests.support.processes import GITHUB_SECRET, STRIPE_SECRET
from tests.torture.http import Answer, post
from tests.torture.plan import PlannedEvent, draw_event, number_of
from tests.torture.record import Acknowledged, Record
from tests.torture.wire import Address

MOST_WAITING_S: Final = 6.0
"""So many seconds' worth of events may wait for their effects before no new ones are sent: whether
this machine is fast enough is not what is asked here."""

HELD_BACK_S: Final = 0.05
BACKOFF_S: Final = (0.2, 2.0)
SECRETS: Final = {"stripe": STRIPE_SECRET.encode(), "github": GITHUB_SECRET.encode()}
PROVIDER_OF: Final = {"stripe": "stripe", "billing": "stripe", "github": "github"}
MOST_UNEXPECTED: Final = 20

ACKNOWLEDGED: Final = 200
UNAVAILABLE: Final = 503
STALE: Final = "403 STALE_TIMESTAMP"
"""What an honest sender is told by a server whose clock is wrong."""


class Sender:
    """Sends at a steady rate, whatever becomes of what was sent before."""

    def __init__(
        self,
        seed: int,
        rate: float,
        addresses: Sequence[Address],
        record: Record,
        most_waiting_s: float = MOST_WAITING_S,
    ) -> None:
        self._seed = seed
        self._rate = rate
        self._most_waiting = most_waiting_s * rate
        self._addresses = addresses
        self._record = record
        self._tasks: set[asyncio.Task[None]] = set()
        self._due_at = 0.0
        self.sent = 0
        self.held_back_s = 0.0
        self.retries = 0
        self.given_up = 0
        """Events of a sender that never retries, and that got no 2xx."""
        self.answers: Counter[str] = Counter()
        self.duplicates: Counter[str] = Counter()
        self.unexpected: list[str] = []

    async def send_forever(self) -> None:
        """New events, each in a task of its own, until it is cancelled."""
        self._due_at = time.monotonic()
        for number in count():
            while self._record.waiting > self._most_waiting:
                await asyncio.sleep(HELD_BACK_S)
                self.held_back_s += HELD_BACK_S
                self._due_at = time.monotonic()
            await asyncio.sleep(max(self._due_at - time.monotonic(), 0))
            self._due_at += 1 / self._rate
            self.sent += 1
            self._spawn(self._send(draw_event(self._seed, number)))

    def burst(self, events: int) -> None:
        """Sends so many at once, beside the steady rate: a fault shall hit something under way."""
        self._due_at -= events / self._rate

    async def send_again(self, event_ids: Sequence[str]) -> None:
        """As a provider does that is asked to, or a reconciliation: until each is acknowledged."""
        letters = [_Letter(draw_event(self._seed, number_of(e))) for e in event_ids]
        await asyncio.gather(*(self._retry(letter, 0, False) for letter in letters))

    async def finish(self) -> None:
        """Waits until everything that was begun has its answer."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_unexpected(f"the sender itself failed: {error!r}")

    async def _send(self, event: PlannedEvent) -> None:
        letter = _Letter(event)
        first = event.serve
        if event.twin:
            answers = await asyncio.gather(self._try(letter, first), self._try(letter, first + 1))
            acknowledged = any(answers)
        else:
            acknowledged = await self._try(letter, first)
        if not acknowledged and letter.provider == "github":
            self.given_up += 1
            return
        await self._retry(letter, first, acknowledged)
        if event.again_after_s is not None:
            await asyncio.sleep(event.again_after_s)
            self.duplicates["sent"] += 1
            answered = await self._try(letter, first + 1)
            if letter.provider != "github":
                await self._retry(letter, first, answered)
                answered = True
            self.duplicates["answered"] += answered

    async def _retry(self, letter: "_Letter", serve: int, acknowledged: bool) -> None:
        delay_s = BACKOFF_S[0]
        while not acknowledged:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_S[1])
            self.retries += 1
            serve += 1
            acknowledged = await self._try(letter, serve)

    async def _try(self, letter: "_Letter", serve: int) -> bool:
        """Sends to this `serve`, or to the next one if nobody listens there."""
        for place in (serve, serve + 1):
            address = self._addresses[place % len(self._addresses)]
            try:
                answer = await post(address, letter.path, letter.body, letter.sign())
            except ConnectionRefusedError:
                self.answers["refused"] += 1
                continue
            except TimeoutError:
                self.answers["no answer"] += 1
                return False
            except OSError:
                self.answers["broken"] += 1
                return False
            return self._note(letter, answer)
        return False

    def _note(self, letter: "_Letter", answer: Answer) -> bool:
        document = orjson.loads(answer.body)
        word = document.get("status") or document.get("error")
        text = f"{answer.status} {word}"
        self.answers[text] += 1
        if answer.status == ACKNOWLEDGED and word in {"accepted", "duplicate"}:
            self._record.acknowledge(letter.acknowledged())
            return True
        if answer.status != UNAVAILABLE and text != STALE:
            self._note_unexpected(f"{letter.event.id}: {text}")
        return False

    def _note_unexpected(self, text: str) -> None:
        if len(self.unexpected) < MOST_UNEXPECTED:
            self.unexpected.append(text)


class _Letter:
    """The bytes of one event, the same each time; the signature is made anew each time."""

    def __init__(self, event: PlannedEvent) -> None:
        self.event = event
        self.provider = PROVIDER_OF[event.route]
        self.path = f"/webhooks/{event.route}"
        self.body = orjson.dumps(_payload(event, self.provider))
        self._sent_at = time.monotonic()

    def sign(self) -> dict[str, str]:
        return (
            PROVIDERS[self.provider]
            .sign(
                self.body,
                secret=SECRETS[self.provider],
                id=self.event.id,
                type=self.event.kind,
                now=datetime.now(UTC),
            )
            .headers
        )

    def acknowledged(self) -> Acknowledged:
        """As it is noted at a 2xx."""
        event = self.event
        return Acknowledged(
            event_id=event.id,
            at=time.monotonic(),
            fails=event.fails,
            owed=event.owed,
            sent_at=self._sent_at,
            turn=event.turn,
            once=event.once,
        )


def _payload(event: PlannedEvent, provider: str) -> dict[str, Any]:
    work = {
        "number": event.number,
        "shard": event.shard,
        "count_slow_s": event.count_slow_s,
        "tally_slow_s": event.tally_slow_s,
        "savepoint": event.savepoint,
        "count_fails": event.count_fails,
        "tally_fails": event.tally_fails,
        "key": event.key,
        "kit_slow_s": event.kit_slow_s,
        "kit_fails": event.kit_fails,
        "unknown": event.unknown,
        "replies": ",".join(map(str, event.replies)),
        "catches": event.catches,
        "subject": event.subject,
    }
    if provider == "github":
        return {"ref": "refs/heads/main", "work": work}
    return {
        "id": event.id,
        "object": "event",
        "type": event.kind,
        "created": int(time.time()),
        "livemode": False,
        "data": {"object": {"id": f"in_{event.number}"}},
        "work": work,
    }
