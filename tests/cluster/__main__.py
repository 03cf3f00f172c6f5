"""Cuts networks and loses primaries under load: exit 0 if nothing was lost that may not be."""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console

from tests.cluster.attack import Outcome, attack
from tests.cluster.faults import SHAPES, TELLING
from tests.cluster.network import INSIDE, UNSHARE, can_make_namespaces
from tests.cluster.report import print_outcome, render_markdown
from tests.cluster.stage import SIZE, Cluster
from tests.torture.attack import Options
from tests.torture.page import publish
from tests.torture.plan import SEED
from tests.torture.report import make_console

SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
MARKS = {
    SYNCHRONOUS: "cluster: written by `python -m tests.cluster --publish`",
    ASYNCHRONOUS: "asynchronous: written by `python -m tests.cluster --publish`",
}
RATE = 40.0
PATIENCE_S = 30.0
MOST_WAITING_S = 60.0
"""While a standby is being promoted all effects wait, and that is when acknowledgements count."""


def main() -> None:
    options = _parse(sys.argv[1:])
    if not options.processes and INSIDE not in os.environ and can_make_namespaces():
        command = [*UNSHARE, sys.executable, "-m", "tests.cluster", *sys.argv[1:]]
        os.execvpe(command[0], command, os.environ | {INSIDE: "1"})  # noqa: S606
    console = make_console()
    outcome = _run(options, console)
    print_outcome(console, outcome)
    if options.json is not None:
        options.json.write_text(json.dumps(outcome.as_json(), indent=1) + "\n", encoding="utf-8")
    if options.publish:
        publish(render_markdown(outcome), MARKS[options.replication])
    sys.exit(1 if outcome.problems else 0)


def _run(options: argparse.Namespace, console: Console) -> Outcome:
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    directory.chmod(0o711)  # the engines' account must get to its own
    if options.keep:
        console.print(f"kept in {directory}")
    try:
        cluster = Cluster(
            directory,
            is_synchronous=options.replication == SYNCHRONOUS,
            namespaces=INSIDE in os.environ,
            size=options.size,
            commit=options.commit,
            through_pooler=options.pgbouncer,
        )
        return uvloop.run(attack(_options(options), cluster, console))
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def _options(options: argparse.Namespace) -> Options:
    faults = options.faults or _default_faults(options.replication)
    return Options(
        seed=options.seed,
        faults=faults,
        seconds=0.0,
        events=0,
        rate=options.rate,
        allow_missing=INSIDE not in os.environ,
        command=shlex.join(["python", "-m", "tests.cluster", *_reproducing(options)]),
        patience_s=PATIENCE_S,
        most_waiting_s=MOST_WAITING_S,
        is_timed=False,
    )


def _reproducing(options: argparse.Namespace) -> list[str]:
    """The options that matter for doing the same again."""
    found = ["--seed", str(options.seed)]
    for name, default in (
        ("replication", SYNCHRONOUS),
        ("commit", "on"),
        ("rate", RATE),
        ("size", SIZE),
    ):
        if (value := getattr(options, name)) != default:
            found += [f"--{name}", f"{value}"]
    found += [f"--{name}" for name in ("pgbouncer", "processes") if getattr(options, name)]
    if options.faults:
        found += ["--faults", ",".join(options.faults)]
    return found


def _default_faults(replication: str) -> list[str]:
    return list(SHAPES if replication == SYNCHRONOUS else TELLING)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}")
    parser.add_argument(
        "--replication",
        choices=list(MARKS),
        default=SYNCHRONOUS,
        help="whether commits wait for the standby; if not, what is lost is counted and sent again",
    )
    parser.add_argument(
        "--commit",
        choices=["on", "remote_apply"],
        default="on",
        help="the servers' synchronous_commit",
    )
    parser.add_argument(
        "--faults",
        type=_faults,
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
    parser.add_argument(
        "--pgbouncer",
        action="store_true",
        help="clients find the primary through PgBouncer, which is told of a promotion",
    )
    parser.add_argument(
        "--processes", action="store_true", help="on loopback, though there may be namespaces"
    )
    parser.add_argument(
        "--size", type=int, choices=range(1, SIZE + 1), default=SIZE, help=f"default {SIZE}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    parser.add_argument(
        "--publish", action="store_true", help="write the audit into docs/reliability.md"
    )
    parser.add_argument("--keep", action="store_true", help="leave all logs and data, say where")
    return parser.parse_args(arguments)


def _faults(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
