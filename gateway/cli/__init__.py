"""The command line: a thin layer with one module per group of commands."""

import os
import platform
import signal
import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from gateway.base.errors import ConfigInvalid, GatewayError
from gateway.base.problems import refusals
from gateway.cli import (
    alerts,
    bulk,
    doctor,
    effects,
    listings,
    pause,
    processes,
    providers,
    reconcile,
    rehearse,
    rejected,
    replay,
    send,
    setup,
    show,
    start,
    status,
    stored_data,
)
from gateway.cli.output import complain, join_lines
from gateway.ledger.connection import TROUBLE, describe
from gateway.ledger.migrate import read_migrations

DISTRIBUTION: Final = "webhook-gateway-server"
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


def _print_version(is_asked: bool) -> None:
    if is_asked:
        schema = read_migrations()[-1].version
        typer.echo(
            f"gateway {version(DISTRIBUTION)}, schema {schema}, Python {platform.python_version()}"
        )
        raise typer.Exit


@app.callback()
def _options(
    is_asked: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version of the code, and of the schema that it needs.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None: ...


for group in (
    start, processes, setup, providers, rehearse, send, status, doctor, listings, show, replay,
    effects, alerts, bulk, pause, stored_data, reconcile, rejected,
):  # fmt: skip
    group.register(app)
join_lines(app)


def _hear_sigterm() -> None:
    """Exit on SIGTERM in the first process of a container.

    The kernel does not deliver a signal without a handler to process 1, so a command that is
    stopped early would continue until it is killed. `serve` and `worker` later install their own
    handlers.
    """
    if os.getpid() == FIRST_PROCESS:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def main() -> None:
    """Run a command. An error of the gateway is one line, and the exit code shows its kind."""
    _hear_sigterm()
    try:
        app()
    except ConfigInvalid as error:
        complain(str(error))
        sys.exit(MISCONFIGURED)
    except ValidationError as error:  # an operation rejected its parameters
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
