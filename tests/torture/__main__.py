"""Attacks a whole gateway from a seed: exit 0 if nothing was lost and nothing came twice."""

import argparse
import asyncio
import json
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from tests.torture.attack import Options, attack
from tests.torture.audit import Result, render_markdown
from tests.torture.page import publish
from tests.torture.plan import SEED, SHAPES
from tests.torture.report import make_console, print_result

EVENTS = 20_000
RATE = 80.0
INTERRUPTED = 130


def main() -> None:
    options = _parse(sys.argv[1:])
    console = make_console()
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    directory.chmod(0o711)  # the engines' account must get to its own
    console.print(f"seed {options.seed}" + (f", kept in {directory}" if options.keep else ""))
    try:
        result = uvloop.run(_until_signal(_options(options), directory, console))
    except asyncio.CancelledError:
        console.print("interrupted: everything was ended")
        sys.exit(INTERRUPTED)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    print_result(console, result)
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_json(), indent=1) + "\n", encoding="utf-8")
    if options.publish:
        publish(render_markdown(result))
    sys.exit(1 if result.problems else 0)


async def _until_signal(options: Options, directory: Path, console: Console) -> Result:
    """A signal unwinds everything; a second one does not cut that short."""
    running = asyncio.ensure_future(attack(options, directory, console))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, _cancel_once(running))
    return await running


def _cancel_once(task: "asyncio.Future[Result]") -> Callable[[], None]:
    asked = False

    def cancel() -> None:
        nonlocal asked
        if not asked:
            asked = True
            task.cancel()

    return cancel


def _options(options: argparse.Namespace) -> Options:
    return Options(
        seed=options.seed,
        faults=options.faults,
        seconds=options.seconds,
        events=options.events,
        rate=options.rate,
        allow_missing=options.allow_missing,
        command=shlex.join(["python", "-m", "tests.torture", *_reproducing(options)]),
    )


def _reproducing(options: argparse.Namespace) -> list[str]:
    """The options that matter for doing the same again."""
    found = ["--seed", str(options.seed)]
    if options.seconds:
        found += ["--seconds", f"{options.seconds:g}"]
    if options.events != _default_events(options.seconds):
        found += ["--events", str(options.events)]
    if options.rate != RATE:
        found += ["--rate", f"{options.rate:g}"]
    if len(options.faults) < len(SHAPES):
        found += ["--faults", ",".join(options.faults)]
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument(
        "--seed",
        type=_seed,
        default=SEED,
        help=f"a number, or `random` to draw one; default {SEED}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="go on for at least so long; every fault runs at least once anyway",
    )
    parser.add_argument(
        "--events",
        type=int,
        metavar="N",
        help=f"go on for so many acknowledged events; default {EVENTS}, or 0 with --seconds",
    )
    parser.add_argument(
        "--faults",
        type=_faults,
        default=list(SHAPES),
        metavar="NAME,NAME",
        help=f"only these: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=RATE,
        metavar="N",
        help=f"new events a second; default {RATE:g}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    parser.add_argument(
        "--publish", action="store_true", help="write the audit into docs/reliability.md"
    )
    parser.add_argument("--keep", action="store_true", help="leave all logs and data, say where")
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="do not fail for a fault that this machine does not permit",
    )
    options = parser.parse_args(arguments)
    if options.events is None:
        options.events = _default_events(options.seconds)
    return options


def _default_events(seconds: float) -> int:
    return 0 if seconds else EVENTS


def _seed(text: str) -> int:
    return secrets.randbelow(10**9) if text == "random" else int(text)


def _faults(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
