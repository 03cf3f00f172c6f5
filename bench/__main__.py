"""Ingest, side by side: contestants take turns, so that noise hits all of them alike."""

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.requests import PATH, SECRET, TYPE, write_requests
from gateway.embedded import Postgres, Redis

HERE = Path(__file__).parent
NAMES = {
    "plain": "(a) plain ASGI, HMAC",
    "starlette": "(b) Starlette, HMAC + json",
    "starlette again": "(b) again: what is noise",
    "textbook": "(c) textbook: INSERT + enqueue_job",
    "gateway": "(d) this gateway, all of it",
}
ROUTES = f"""
routes:
  stripe:
    provider: stripe
    path: {PATH}
    secrets: [env:BENCH_SECRET]
    handlers: [handlers]
"""
HANDLER = f"""
from gateway import handler

@handler("{TYPE}")
async def handle(event, ctx): ...
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes instead of five")
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    rounds, seconds = (3, 3) if options.quick else (7, 5)
    with engines() as environ:
        results = measure(environ, rounds, seconds, options.connections)
    report(results, options.connections, seconds)


@contextmanager
def engines() -> Iterator[dict[str, str]]:
    """A Postgres with fsync on and a Redis with AOF, of the bench's own, and a project."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-bench-"))
    directory.chmod(0o711)
    postgres, redis = Postgres(directory / "postgres"), Redis(directory / "redis")
    try:
        postgres.start()
        redis.start()
        (directory / "routes.yaml").write_text(ROUTES)
        (directory / "handlers.py").write_text(HANDLER)
        environ = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent),
            "GATEWAY_CONFIG": "routes.yaml",
            "GATEWAY_DATABASE_URL": postgres.url,
            "GATEWAY_REDIS_URL": redis.url,
            "BENCH_DATABASE_URL": postgres.url,
            "BENCH_REDIS_SOCKET": urlsplit(redis.url).path,
            "BENCH_SECRET": SECRET.decode(),
            "BENCH_DIRECTORY": str(directory),
        }
        subprocess.run(
            [sys.executable, "-m", "gateway", "migrate"], cwd=directory, env=environ, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        yield environ
    finally:
        postgres.stop()
        redis.stop()
        shutil.rmtree(directory, ignore_errors=True)


def measure(
    environ: dict[str, str], rounds: int, seconds: int, connections: int
) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for number in range(1, rounds + 1):
        for name in NAMES:
            sample = one_run(name, environ, seconds, connections)
            results[name].append(sample)
            print(
                f"round {number}/{rounds}  {NAMES[name]:<36} {sample['per_second']:>8.0f}/s"
                f"  p50 {sample['p50_ms']:.1f} ms  p99 {sample['p99_ms']:.1f} ms"
                f"  steal {sample['steal']:.0%}",
                flush=True,
            )
    return results


def one_run(name: str, environ: dict[str, str], seconds: int, connections: int) -> dict[str, Any]:
    requests = Path(environ["BENCH_DIRECTORY"]) / "requests"
    write_requests(requests, seconds * (4_000 if name == "textbook" else 16_000))
    with contestant(name, environ) as port:
        before = cpu()
        answer = subprocess.run(
            load_command(port, requests, seconds, connections),
            env={**os.environ, "BENCH_REQUESTS": str(requests)},
            capture_output=True,
            text=True,
            check=True,
            cwd=HERE.parent,
        )
        after = cpu()
    sample: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    if sample["not_2xx"] or sample["failed"]:
        sys.exit(f"error: {name}: {sample}")
    sample["per_second"] = sample["requests"] / sample["seconds"]
    sample["steal"] = (after[1] - before[1]) / max(after[0] - before[0], 1)
    return sample


def load_command(port: int, requests: Path, seconds: int, connections: int) -> list[str]:
    """wrk where it is installed, else a slower generator of our own."""
    if shutil.which("wrk") is None:
        numbers = [str(port), str(requests), str(connections), str(seconds)]
        return [sys.executable, "-m", "bench.load", *numbers]
    script, url = str(HERE / "requests.lua"), f"http://127.0.0.1:{port}"
    return ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script, url]


@contextmanager
def contestant(name: str, environ: dict[str, str]) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.contestants", name.removesuffix(" again"), str(port)]
    if name == "gateway":
        command = [sys.executable, "-m", "gateway", "serve"]
    process = subprocess.Popen(
        command,
        cwd=environ["BENCH_DIRECTORY"],
        env={**environ, "GATEWAY_PORT": str(port)},
        stderr=(Path(environ["BENCH_DIRECTORY"]) / "log").open("w"),
    )
    try:
        wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("error: a contestant did not start")


def cpu() -> tuple[int, int]:
    """All jiffies so far, and those that the hypervisor took."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]))
    return sum(fields), fields[7]


def report(results: dict[str, list[dict[str, Any]]], connections: int, seconds: int) -> None:
    base = statistics.median(s["per_second"] for s in results["starlette"])
    rows = []
    for name, samples in results.items():
        rates = [s["per_second"] for s in samples]
        rows.append(
            {
                "contestant": NAMES[name],
                "per_second": statistics.median(rates),
                "lowest": min(rates),
                "highest": max(rates),
                "of_b": statistics.median(rates) / base,
                "p50_ms": statistics.median(s["p50_ms"] for s in samples),
                "p99_ms": statistics.median(s["p99_ms"] for s in samples),
                "steal": statistics.median(s["steal"] for s in samples),
            }
        )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"\n{machine}; {connections} connections, {seconds} s a run, medians\n")
    for row in rows:
        print(
            f"{row['contestant']:<36} {row['per_second']:>8.0f}/s"
            f" ({row['lowest']:.0f}-{row['highest']:.0f})  {row['of_b']:.2f} of (b)"
            f"  p50 {row['p50_ms']:.1f} ms  p99 {row['p99_ms']:.1f} ms"
        )
    file = HERE / "results" / "latest.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
