"""What the machine is and what it spent: CPU time, stolen time and memory, from /proc."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Sample

PROC = Path("/proc")
JIFFY_US = 1_000_000 / os.sysconf("SC_CLK_TCK")
STEAL = 7
"""The place of stolen time among the numbers of /proc/stat."""
PARENT, OWN, CHILDREN = 1, (11, 12), (13, 14)
"""Places in /proc/PID/stat, counted from the state; user and system time each."""


def describe_machine() -> dict[str, str | int]:
    return {
        "cpu": _field("cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int((_field("meminfo", "MemTotal") or "0 kB").split()[0]) // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def available_bytes() -> int:
    """Memory that can be had without pushing anything out."""
    return int((_field("meminfo", "MemAvailable") or "0 kB").split()[0]) * 1024


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    found = (_field(f"{member}/status", "VmRSS") for member in family(pid))
    return sum(int(text.split()[0]) * 1024 for text in found if text)


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had."""
    return int((_field(f"{pid}/status", "VmHWM") or "0 kB").split()[0]) * 1024


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields:
            children.setdefault(int(fields[PARENT]), []).append(int(entry.name))
    members = [pid]
    for member in members:
        members += children.get(member, [])
    return members


def cpu_us(pids: Iterable[int]) -> float:
    """CPU time of these processes and their descendants so far, those that ended included."""
    jiffies = 0
    for pid in pids:
        for member in family(pid):
            fields = _stat(member)
            jiffies += sum(int(fields[place]) for place in (*OWN, *CHILDREN)) if fields else 0
    return jiffies * JIFFY_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What had been spent at one moment."""

    jiffies: int
    stolen: int
    cpu_us: Mapping[str, float]

    def spent_since(self, earlier: "Reading", count: float) -> Sample:
        """CPU per one of `count`, and the share of all time that the hypervisor took."""
        spent = {
            f"{name}_cpu_us": (us - earlier.cpu_us[name]) / max(count, 1)
            for name, us in self.cpu_us.items()
        }
        steal = (self.stolen - earlier.stolen) / max(self.jiffies - earlier.jiffies, 1)
        return {**spent, "steal": steal}


def read_meters(groups: Mapping[str, Sequence[int]]) -> Reading:
    """`groups`: names with the processes whose time counts under them."""
    line = (PROC / "stat").read_text().partition("\n")[0]
    jiffies = [int(text) for text in line.split()[1:]]
    return Reading(
        # The last two are contained in the first two.
        jiffies=sum(jiffies[:8]),
        stolen=jiffies[STEAL],
        cpu_us={name: cpu_us(pids) for name, pids in groups.items()},
    )


def _field(file: str, name: str) -> str | None:
    try:
        text = (PROC / file).read_text()
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _stat(pid: int) -> list[str] | None:
    try:
        # The name in parentheses may hold anything; the state follows the last one.
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
