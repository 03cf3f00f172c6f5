"""How commands ask: the ledger that the settings name, or a gateway far away (`--url`)."""

import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

import typer

from gateway.api.desk import Desk, open_desk
from gateway.api.operation import Operation, Params
from gateway.api.paging import LONGEST_PAGE, Page, PageParams
from gateway.notation.moments import parse_moment
from gateway.notation.problems import Unexpected
from gateway.routes.url import check_url
from gateway.settings import discover, load_settings

T = TypeVar("T")
P = TypeVar("P", bound=Params)
Q = TypeVar("Q", bound=PageParams)
R = TypeVar("R")

SHORT: Final = 20
"""Rows of a listing for people, unless they say how many."""


def _check_url(text: str | None) -> str | None:
    if text is not None:
        try:
            check_url(text)
        except Unexpected as error:
            expected = "a URL such as https://hooks.example.com"
            raise typer.BadParameter(f"found {error.found}; expected {expected}") from None
    return text


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        callback=_check_url,
        help="Ask this gateway (https://hooks.example.com), with GATEWAY_ADMIN_TOKEN, "
        "and not the database.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one array, all of it.")]
RouteName = Annotated[str | None, typer.Option("--route", help="Only this route.")]
Type = Annotated[str | None, typer.Option("--type", help="Only these event types (invoice.*).")]
Handler = Annotated[
    str | None, typer.Option("--handler", help="Only this handler (handlers.mail.send).")
]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Only where the error has this text (time*out).")
]
Account = Annotated[str | None, typer.Option("--account", help="Only of this account.")]
Since = Annotated[str | None, typer.Option("--since", help="Not before: 2h (ago), or a time.")]
Until = Annotated[str | None, typer.Option("--until", help="Before: 10m (ago), or a time.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the audit log.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, max=2**31 - 1, help="At most so many, newest first.")
]


def at_desk(url: str | None, work: Callable[[Desk], Awaitable[T]]) -> T:
    """Does something at the desk of the ledger, or of the gateway at a URL."""

    async def run() -> T:
        async with open_desk(discover(load_settings()), url, who()) as desk:
            return await work(desk)

    return asyncio.run(run())


def ask(url: str | None, operation: Operation[P, R], params: P) -> R:
    """The answer to one operation."""
    return at_desk(url, lambda desk: desk.ask(operation, params))


def ask_pages(
    url: str | None, operation: Operation[Q, Page[R]], params: Q, limit: int | None
) -> list[R]:
    """So many rows of a listing, or all of them."""

    async def collect(desk: Desk) -> list[R]:
        return [row async for row in pages(desk, operation, params, limit)]

    return at_desk(url, collect)


async def pages(
    desk: Desk, operation: Operation[Q, Page[R]], params: Q, limit: int | None
) -> AsyncIterator[R]:
    """The rows of a listing, page by page."""
    left, after = limit, params.after
    while left is None or left > 0:
        size = LONGEST_PAGE if left is None else min(LONGEST_PAGE, left)
        page = await desk.ask(operation, params.model_copy(update={"after": after, "limit": size}))
        for row in page["items"]:
            yield row
        after = page["next"]
        if after is None:
            return
        left = None if left is None else left - len(page["items"])


def limit_of(limit: int | None, as_json: bool) -> int | None:
    """For people a page, in JSON everything, unless it was said."""
    return limit if limit is not None or as_json else SHORT


def given(**values: Any) -> dict[str, Any]:
    """What was said on the command line; times are read."""
    return dict(_read(values))


def _read(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in ("since", "until") and value is not None:
            try:
                yield name, parse_moment(value)
            except Unexpected as error:
                raise typer.BadParameter(
                    f"found {error.found}; expected {error.expected}", param_hint=f"--{name}"
                ) from None
        elif value is not None:
            yield name, value


def who() -> str:
    """The person for the audit log; a container's arbitrary user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
