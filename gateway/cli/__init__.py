"""The command line: thin, one file per group of commands."""

import os
import signal
import sys

import typer
from pydantic import ValidationError

from gateway.cli import (
    act,
    alerts,
    doctor,
    effects,
    forget,
    look,
    orders,
    pause,
    processes,
    providers,
    publish,
    reconcile,
    rehearse,
    rejected,
    rekey,
    send,
    setup,
    show,
    start,
    status,
    version,
)
from gateway.cli.help import join_lines
from gateway.cli.output import complain
from gateway.errors import ConfigInvalid, GatewayError
from gateway.ledger.connection import TROUBLE, describe
from gateway.notation.problems import refusals

FAILED = 1
MISCONFIGURED = 2
INTERRUPTED = 130
TERMINATED = 143
FIRST_PROCESS = 1

app = typer.Typer(
    name="gateway",
    help="A webhook gateway: every event it acknowledges takes effect once in your database.",
    epilog="Start everything with `gateway up`, then `gateway send stripe invoice.paid`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for group in (
    start, processes, setup, providers, rehearse, send, publish, status, doctor, look, show, act,
    effects, alerts, orders, pause, forget, rekey, reconcile, rejected, version,
):  # fmt: skip
    group.register(app)
join_lines(app)


def _hear_sigterm() -> None:
    """The first process of a container gets no signal that it has no handler for: told to stop
    before it works, it would go on until it is killed. `serve` and `worker` have their own then."""
    if os.getpid() == FIRST_PROCESS:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def main() -> None:
    """Runs a command; an error of ours is one line, and the exit code tells whose it is."""
    _hear_sigterm()
    try:
        app()
    except ConfigInvalid as error:
        complain(str(error))
        sys.exit(MISCONFIGURED)
    except ValidationError as error:  # what an operation does not take
        for refusal in refusals(error):
            name = ".".join(map(str, refusal.location))
            complain(f"{name}: found {refusal.found}; expected {refusal.expected}")
        sys.exit(MISCONFIGURED)
    except GatewayError as error:
        complain(str(error))
        sys.exit(FAILED)
    except TROUBLE as error:
        complain(describe(error))
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
