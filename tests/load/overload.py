"""Three times the rate that can be sustained: what is taken, what is refused, and what it costs."""

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Sample
from bench.machine import rss_bytes
from bench.requests import SECRET
from tests.load.senders import port_of
from tests.support.ledger import Reader
from tests.support.processes import Project, Running, Serving
from tests.support.waiting import until

TIMES = 3
GENERATORS = 2
SUSTAINED_CONNECTIONS = 64
MOST_CONNECTIONS = 800
"""Of each generator: together far more than requests are taken at once."""
NORMAL_PER_SECOND = 100
LOOK_EVERY_S = 0.25
OVERTIME_S = 60
MIB = 1024**2


@dataclass
class Memory:
    """The resident memory of a process while it is loaded."""

    running: Running
    samples: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.samples.append(rss_bytes(self.running.process.pid))

    @property
    def thirds_mib(self) -> tuple[float, float]:
        """The medians of the first third and of the last."""
        third = max(len(self.samples) // 3, 1)
        first, last = self.samples[:third], self.samples[-third:]
        return statistics.median(first) / MIB, statistics.median(last) / MIB

    @property
    def growth(self) -> float:
        first, last = self.thirds_mib
        return last / first - 1


@dataclass(kw_only=True)
class Overload:
    """What came of it."""

    sustained: Sample
    excess: Sample
    normal: Sample
    serve: Memory
    worker: Memory
    acknowledged: int
    lost: int
    repeated: int


async def overload(
    project: Project, ledger: Reader, *, measure_s: float, seconds: float, normal_s: float
) -> Overload:
    """One `serve` and one `worker`: measured, given too much, and then as usual."""
    project.environ["STRIPE_WEBHOOK_SECRET"] = SECRET.decode()
    with project.serve() as serving, project.process("worker") as worker:
        await serving.ready()
        await worker.says("worker_started")
        load = Load(port_of(serving))
        sustained = await load.closed(measure_s)
        memories = Memory(serving.running), Memory(worker)
        watching = asyncio.create_task(_watch(memories))
        excess = await load.fixed(TIMES * sustained["requests"] / sustained["seconds"], seconds)
        watching.cancel()
        normal = await load.fixed(NORMAL_PER_SECOND, normal_s)
        await _drained(ledger, serving, worker)
    return Overload(
        sustained=sustained,
        excess=excess,
        normal=normal,
        serve=memories[0],
        worker=memories[1],
        acknowledged=len(load.acknowledged),
        lost=await ledger.value(LOST, load.acknowledged),
        repeated=await ledger.value(REPEATED),
    )


LOST = """
    select count(*) from unnest($1::text[]) as told (event_id)
    where not exists (select from public.effects where effects.event_id = told.event_id)
"""
REPEATED = "select count(*) - count(distinct event_id) from public.effects"


async def _watch(memories: Sequence[Memory]) -> None:
    while True:
        for memory in memories:
            memory.look()
        await asyncio.sleep(LOOK_EVERY_S)


async def _drained(ledger: Reader, serving: Serving, worker: Running) -> None:
    async def is_done() -> bool:
        assert serving.running.process.poll() is None, serving.running.output[-2000:]
        assert worker.process.poll() is None, worker.output[-2000:]
        return set(await ledger.statuses()) == {"done"}

    claimed = await ledger.value("select count(*) from gateway.deliveries")
    await until(is_done, within_s=60 + claimed / 200)


class Load:
    """Generators in processes of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.acknowledged: list[str] = []

    async def closed(self, seconds: float) -> Sample:
        """All that is taken."""
        return await self._generate(seconds, SUSTAINED_CONNECTIONS)

    async def fixed(self, rate: float, seconds: float) -> Sample:
        """So many a second, whatever happens."""
        share = ("--rate", str(rate / GENERATORS))
        found = await asyncio.gather(
            *(self._generate(seconds, MOST_CONNECTIONS, *share) for _ in range(GENERATORS))
        )
        return {
            name: (max if name == "seconds" or name.endswith("_ms") else sum)(
                sample[name] for sample in found
            )
            for name in found[0]
        }

    async def _generate(self, seconds: float, connections: int, *options: str) -> Sample:
        with tempfile.TemporaryDirectory() as directory:
            answers = Path(directory) / "answers"
            output = await generate(
                self._port,
                *("--connections", str(connections), "--seconds", str(seconds)),
                *("--answers", str(answers), *options),
                within_s=seconds + OVERTIME_S,
            )
            self.acknowledged += [event_id for event_id, _ in json.loads(answers.read_text())]
        sample: Sample = json.loads(output)
        return sample


async def generate(port: int, *options: str, within_s: float) -> bytes:
    """Runs a generator to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.load.generator", str(port), *options),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), within_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output
