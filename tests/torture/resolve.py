"""After the last fault: a person resolves the effects of unknown outcome, with the commands."""

import json
import signal
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol

from gateway.ledger.connection import Connection
from tests.support.waiting import until
from tests.torture.callee import Callee
from tests.torture.calls import Listed, Resolution
from tests.torture.child import Child
from tests.torture.evidence import count_completions, count_retries, unfinished

CONFIRMED_ROUTE: Final = "github"
"""Its effects are confirmed, all others are made again."""
ROUNDS: Final = 5
"""A worker that is killed in the middle of a retry leaves effects that are listed anew."""
REASON: Final = ("--reason", "the outage is over")


class Scene(Protocol):
    """Where the commands run."""

    @property
    def callee(self) -> Callee: ...

    @property
    def children(self) -> Mapping[str, Child]: ...

    async def connect(self) -> Connection: ...

    async def ready(self, *names: str) -> None: ...

    def command(self, *arguments: str) -> Awaitable[str]: ...


async def list_effects(scene: Scene) -> list[Listed]:
    """Return what `gateway effects` lists."""
    rows: Sequence[Mapping[str, Any]] = json.loads(await scene.command("effects", "--json"))
    return [
        Listed(event_id=row["event_id"], route=row["route"], error=row["error"]) for row in rows
    ]


async def resolve(scene: Scene, listed: Sequence[Listed], within_s: float) -> Resolution:
    """Confirm some effects and retry the others; all workers are killed in the middle of it."""
    confirmed = frozenset(e.event_id for e in listed if e.route == CONFIRMED_ROUTE)
    left: Sequence[Listed] = listed
    problem = ""
    scene.callee.recover()
    try:
        if confirmed:
            await scene.command(
                *("effects", "confirm", "--all", "--yes", "--route", CONFIRMED_ROUTE, *REASON)
            )
        left = await list_effects(scene)
        for number in range(ROUNDS):
            if not left:
                break
            await scene.command("effects", "retry", "--all", "--yes", *REASON)
            if number == 0:
                await until(lambda: scene.callee.ordered_calls, within_s=within_s)
                await _kill_workers(scene)
            await until(lambda: _is_finished(scene), within_s=within_s)
            left = await list_effects(scene)
    except (AssertionError, TimeoutError, RuntimeError) as error:
        problem = str(error)
    connection = await scene.connect()
    try:
        return Resolution(
            confirmed=confirmed,
            retries=await count_retries(connection),
            completions=await count_completions(connection),
            listed_after=[effect.event_id for effect in left],
            problem=problem,
        )
    finally:
        await connection.close()


async def _kill_workers(scene: Scene) -> None:
    workers = [name for name in scene.children if name.startswith("worker")]
    for name in workers:
        scene.children[name].send(signal.SIGKILL)
    await scene.ready(*workers)


async def _is_finished(scene: Scene) -> bool:
    connection = await scene.connect()
    try:
        return await unfinished(connection) == 0
    finally:
        await connection.close()
