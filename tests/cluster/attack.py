"""The torture's run on several machines; losses that are the price are counted and mended."""

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Self

from rich.console import Console

from tests.cluster.faults import FAULTS, SHAPES
from tests.cluster.stage import Cluster, running
from tests.support.waiting import until
from tests.torture.attack import Attack, Options, Script
from tests.torture.audit import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The audit, and what was missing before it was sent again."""

    result: Result
    is_synchronous: bool
    network: str
    missing: int
    """Acknowledged, and not in the ledger of whoever was promoted."""

    @property
    def forgotten(self) -> list[str]:
        """What is wrong because the promoted side did not have it."""
        return [*self.result.flow.problems, *self.result.calls.problems]

    @property
    def problems(self) -> list[str]:
        """What was not replicated is forgotten: that it was called, and whose turn it was."""
        if not self.is_synchronous:
            return [p for p in self.result.problems if p not in self.forgotten]
        missing = f"{self.missing} acknowledged events were not on the promoted side"
        return [*self.result.problems, *([missing] if self.missing else [])]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        return cls(**document | {"result": Result.from_json(document["result"])})


class ClusterAttack(Attack[Cluster]):
    """After the last fault, asks the ledger for every event that was acknowledged."""

    missing: int = 0

    async def _finish(self) -> None:
        await super()._finish()
        evidence = await self._evidence()
        missing = [e for e in self._record.acknowledged if e not in evidence.claimed]
        self.missing = len(missing)
        if not missing or self._stage.pair.is_synchronous:
            return
        await self._sender.send_again(missing)
        with contextlib.suppress(AssertionError):  # the audit says what is missing
            await until(self._is_whole, within_s=self._options.patience_s)


async def attack(options: Options, cluster: Cluster, console: Console) -> Outcome:
    """Starts everything, attacks it, and ends it."""
    async with running(cluster):
        console.print(f"hosts: {cluster.network.description}")
        script = Script(faults=FAULTS, shapes=SHAPES)
        run = ClusterAttack(options, script, cluster, console)
        result = await run.run()
        return Outcome(
            result=result,
            is_synchronous=cluster.pair.is_synchronous,
            network=cluster.network.description,
            missing=run.missing,
        )
