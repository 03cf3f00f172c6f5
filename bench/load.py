"""A load generator of our own, where wrk is not installed: closed loop, one process."""

import asyncio
import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop


def read_requests(file: Path) -> Iterator[bytes]:
    """The length-prefixed requests of a file, each once."""
    data, position = file.read_bytes(), 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        yield data[position + 4 : position + 4 + length]
        position += 4 + length


async def connection(
    port: int, requests: Iterator[bytes], until: float
) -> list[tuple[float, bool]]:
    """Sends one after the other; returns the latency of each, and whether it was a 2xx."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for request in requests:
        began = time.perf_counter()
        if began > until:
            break
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        answers.append(((time.perf_counter() - began) * 1000, head.startswith(b"HTTP/1.1 2")))
    writer.close()
    return answers


async def load(port: int, file: Path, connections: int, seconds: int) -> dict[str, float]:
    """The same figures as requests.lua prints."""
    requests, began = read_requests(file), time.perf_counter()
    found = await asyncio.gather(
        *(connection(port, requests, began + seconds) for _ in range(connections))
    )
    answers = [answer for answers in found for answer in answers]
    latencies = sorted(ms for ms, _ in answers)
    return {
        "requests": len(answers),
        "seconds": time.perf_counter() - began,
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[len(latencies) * 99 // 100],
        "not_2xx": sum(not ok for _, ok in answers),
        "failed": 0,
    }


if __name__ == "__main__":
    port, file, connections, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(load(int(port), Path(file), int(connections), int(seconds)))))
