"""From a seed, all that is going to happen: which fault, to whom, how long; what each event is."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.torture.callee import BREAK, FAILURES, HANG, REFUSALS, Reply

SEED: Final = 20261116

SERVES: Final = ("serve-1", "serve-2")
WORKERS: Final = ("worker-1", "worker-2")
ROUTES: Final = {"stripe": 0.5, "github": 0.3, "billing": 0.2}
HANDLERS: Final = ("count", "tally")
SHARDS: Final = 16
KINDS: Final = {
    "plain": 0.60,
    "ordered": 0.10,
    "called": 0.08,
    "single": 0.04,
    "charged": 0.04,
    "published": 0.04,
    "narrow": 0.05,
    "paced": 0.05,
}
"""What else an event is for: the handler of that name in `project/handlers/effects.py`."""
KEYS: Final = 6
"""Of each route: few, so that something waits for its turn most of the time."""
CONCURRENCY: Final = 2
RATE: Final = 2
"""In half a second. As the handlers have them."""
MOST_SERVES: Final = 6
"""Divisible by as many as there may be."""

SLOW_COUNT: Final = 0.15
SLOW_TALLY: Final = 0.02
"""Fewer: they keep a row from the others for as long as they take."""
SLOW_S: Final = (0.1, 1.0)
FAILING: Final = 0.05
MOST_FAILURES: Final = 2
SAVEPOINT: Final = 0.2
TWIN: Final = 0.03
SLOW_KIT: Final = 0.1
SLOW_NARROW_S: Final = (0.05, 0.5)
TROUBLED: Final = 0.6
"""Of the events that make a call: the first request or the first two do not succeed."""
MOST_REPLIES: Final = 2
REPLY_KINDS: Final = {"refusal": 0.4, "failure": 0.3, HANG: 0.1, BREAK: 0.2}
CATCHES: Final = 0.2
SUBJECTS: Final = ((100, 1), (2_000, 4))
"""Keys of `once_per` and `per`: how many there are for so many events in a row. Events of the first
ones are close together, those of the second ones are spread over some faults."""
AGAIN: Final = 0.1
AGAIN_S: Final = (0.2, 8.0)

BURST: Final = 40
LEAD_S: Final = (0.0, 0.15)
PAUSE_S: Final = (1.0, 3.0)
OVERLAP: Final = 0.3
OVERLAP_S: Final = (0.1, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What may be drawn for a fault."""

    targets: tuple[str, ...] = ("",)
    hold_s: tuple[float, float] = (0.0, 0.0)
    each: bool = False
    """Whether every target gets a step of its own in every round."""


SHAPES: Final[Mapping[str, Shape]] = {
    "kill-serve": Shape(targets=SERVES),
    "term-serve": Shape(targets=SERVES),
    "kill-worker": Shape(targets=WORKERS),
    "term-worker": Shape(targets=WORKERS),
    "kill-all": Shape(),
    # Past the lease; about as long as Postgres lets the open transactions live.
    "stop-worker": Shape(targets=WORKERS, hold_s=(4.0, 5.5), each=True),
    "stop-serve": Shape(targets=SERVES, hold_s=(2.0, 4.0)),
    "flushall": Shape(hold_s=(0.5, 1.5)),
    "redis-restart": Shape(hold_s=(0.1, 1.0)),
    "redis-unreachable": Shape(hold_s=(2.0, 4.0)),
    "redis-hang": Shape(hold_s=(2.0, 5.0)),
    "redis-full": Shape(hold_s=(2.0, 4.0)),
    "postgres-kill": Shape(hold_s=(0.1, 1.0)),
    "postgres-restart": Shape(),
    "postgres-immediate": Shape(),
    "postgres-away": Shape(hold_s=(4.0, 6.0)),
    "kill-spooling": Shape(hold_s=(4.0, 6.0)),
    "connections-terminated": Shape(hold_s=(0.5, 1.5)),
    "cut-after-commit": Shape(hold_s=(1.5, 3.0)),
    "slow-database": Shape(hold_s=(2.0, 4.0)),
    "full-disk": Shape(hold_s=(3.0, 4.0)),
    "rename": Shape(targets=("", "", ""), each=True),
    "clock-jump": Shape(
        targets=("gateway +10m", "gateway -10m", "postgres +10m", "postgres -10m"),
        hold_s=(3.0, 4.0),
        each=True,
    ),
}
"""Every fault by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fault of the schedule."""

    fault: str
    target: str
    lead_s: float
    """From a burst of events to the fault."""
    hold_s: float
    pause_s: float
    """From the recovery to the next fault, or from the end where the next one overlaps."""
    overlaps: bool
    """Whether the next fault is not kept waiting until everything has recovered; two at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvent:
    """One event, and how it is sent and handled."""

    number: int
    route: str
    serve: int
    """Which is tried first, counted round and round."""
    shard: int
    count_slow_s: float
    tally_slow_s: float
    count_fails: int
    tally_fails: int
    savepoint: bool
    kind: str
    key: str
    """Of the same key one at a time, where it is of the kind `ordered`."""
    kit_slow_s: float
    kit_fails: int
    unknown: str
    """If it is of the kind `called`: what its handler does about a call of unknown outcome."""
    replies: tuple[Reply, ...]
    """What the callee says to its first requests; later ones succeed."""
    catches: bool
    """Whether its handler catches the error of the call and goes on."""
    subject: str
    """Of the same subject one takes effect if it is of the kind `single`, and all make one call
    together if it is of the kind `charged`."""
    twin: bool
    """Sent to two `serve` processes at the same moment."""
    again_after_s: float | None
    """Sent once more, so long after it was acknowledged."""

    @property
    def id(self) -> str:
        return event_id(self.route, self.number)

    @property
    def fails(self) -> dict[str, int]:
        return {"count": self.count_fails, "tally": self.tally_fails}

    @property
    def owed(self) -> tuple[str, ...]:
        """The effects that it is to have."""
        without = {"plain": (), "single": (), "published": ("published", "job")}
        kit = without.get(self.kind, (self.kind,))
        return HANDLERS + kit

    @property
    def turn(self) -> str | None:
        """Events with the same one take turns."""
        return f"{self.route} {self.key}" if self.kind == "ordered" else None

    @property
    def once(self) -> str | None:
        """Events with the same one have one effect together."""
        return f"{self.route} {self.subject}" if self.kind == "single" else None


def event_id(route: str, number: int) -> str:
    """Unique by its number; the route is said for whoever reads a log."""
    return f"{route}_{number:07}"


def number_of(event_id: str) -> int:
    return int(event_id.rpartition("_")[2])


def draw_steps(
    seed: int, faults: Sequence[str], shapes: Mapping[str, Shape] = SHAPES
) -> Iterator[list[Step]]:
    """Round after round, each with every one of these faults in an order of its own."""
    for number in count():
        dice = _dice(f"{seed} round {number}")
        slots = [slot for fault in faults for slot in _slots(fault, shapes[fault], dice)]
        dice.shuffle(slots)
        steps: list[Step] = []
        for place, (fault, target) in enumerate(slots, 1):
            is_second = bool(steps) and steps[-1].overlaps
            may_overlap = not is_second and place < len(slots)
            steps.append(_step(fault, target, shapes[fault], dice, may_overlap=may_overlap))
        yield steps


def draw_event(seed: int, number: int) -> PlannedEvent:
    """The event with this number: the same whenever it is drawn."""
    dice = _dice(f"{seed} event {number}")
    route = dice.choices(list(ROUTES), list(ROUTES.values()))[0]
    kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
    return PlannedEvent(
        number=number,
        route=route,
        serve=dice.randrange(MOST_SERVES),
        shard=dice.randrange(SHARDS),
        count_slow_s=_slowness_s(dice, SLOW_COUNT),
        tally_slow_s=_slowness_s(dice, SLOW_TALLY),
        count_fails=_failures(dice),
        tally_fails=_failures(dice),
        savepoint=dice.random() < SAVEPOINT,
        kind=kind,
        key=f"key-{dice.randrange(KEYS)}",
        kit_slow_s=_kit_slowness_s(dice, kind),
        kit_fails=_failures(dice),
        unknown=dice.choice(("retry", "skip")),
        twin=dice.random() < TWIN,
        again_after_s=round(dice.uniform(*AGAIN_S), 1) if dice.random() < AGAIN else None,
        replies=_replies(dice),
        catches=dice.random() < CATCHES,
        subject=_subject(dice, number),
    )


def _slots(fault: str, shape: Shape, dice: random.Random) -> list[tuple[str, str]]:
    targets = shape.targets if shape.each else (dice.choice(shape.targets),)
    return [(fault, target) for target in targets]


def _step(fault: str, target: str, shape: Shape, dice: random.Random, *, may_overlap: bool) -> Step:
    overlaps = dice.random() < OVERLAP and may_overlap
    return Step(
        fault=fault,
        target=target,
        lead_s=round(dice.uniform(*LEAD_S), 3),
        hold_s=round(dice.uniform(*shape.hold_s), 2),
        pause_s=round(dice.uniform(*(OVERLAP_S if overlaps else PAUSE_S)), 2),
        overlaps=overlaps,
    )


def _slowness_s(dice: random.Random, share: float) -> float:
    return round(dice.uniform(*SLOW_S), 2) if dice.random() < share else 0.0


def _kit_slowness_s(dice: random.Random, kind: str) -> float:
    if kind == "narrow":
        return round(dice.uniform(*SLOW_NARROW_S), 2)
    return _slowness_s(dice, SLOW_KIT)


def _failures(dice: random.Random) -> int:
    return dice.randint(1, MOST_FAILURES) if dice.random() < FAILING else 0


def _replies(dice: random.Random) -> tuple[Reply, ...]:
    if dice.random() >= TROUBLED:
        return ()
    return tuple(_reply(dice) for _ in range(dice.randint(1, MOST_REPLIES)))


def _reply(dice: random.Random) -> Reply:
    kind = dice.choices(list(REPLY_KINDS), list(REPLY_KINDS.values()))[0]
    is_done = dice.random() < 0.5
    if kind == "refusal":
        return Reply(str(dice.choice(REFUSALS)), False)
    how = str(dice.choice(FAILURES)) if kind == "failure" else kind
    return Reply(how, is_done)


def _subject(dice: random.Random, number: int) -> str:
    """Begins with what its handler does about a call of unknown outcome."""
    events, keys = dice.choice(SUBJECTS)
    unknown = "retry" if number // events % 2 else "skip"
    return f"{unknown}-{events}-{number // events}-{dice.randrange(keys)}"


def _dice(text: str) -> random.Random:
    return random.Random(text)  # noqa: S311 (reproducible on purpose)
