"""What an editor knows of `event.` and `ctx.`: a type and a text for each public name."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from gateway import Context, Event
from gateway.worker.context import Database

PROJECT: Final = Path(__file__).parents[2]
COMPLETED: Final = {"event": Event, "ctx": Context, "ctx.db": Database}
UNTYPED: Final = {"event.payload", "ctx.once", "ctx.db.fetchval"}
"""Anyone's JSON, what a function of the handler's returns, and a column of a table."""
IS_UNTYPED: Final = re.compile(r"(?:^|-> )(?:typing\.Coroutine\[Any, Any, )?Any\]?$")
SNIPPET: Final = """
import stripe
from pydantic import BaseModel
from stripe.events import V1BillingMeterErrorReportTriggeredEventNotification

from gateway import Context, Event, handler


class Opened(BaseModel):
    number: int


@handler("*")
async def look(event: Event, ctx: Context) -> None:
    typed = event.stripe(ctx.stripe)
    if isinstance(typed, V1BillingMeterErrorReportTriggeredEventNotification):
        reveal_type((await typed.fetch_related_object_async()).display_name)  # a meter
        reveal_type((await typed.fetch_event_async()).data.developer_message_summary)
    elif isinstance(typed, stripe.Event):
        assert isinstance(typed.data.object, stripe.Invoice)
        reveal_type(typed.data.object.amount_due)  # a snapshot
    reveal_type((await ctx.stripe.v1.invoices.retrieve_async("in_1")).amount_due)  # fetched
    reveal_type(event.github(Opened).number)  # of GitHub
"""


def public_names(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")} | set(_given_texts(owner))


def texts(owner: type) -> Mapping[str, str | None]:
    """The text of each public name: a docstring, or the string under an attribute."""
    given = _given_texts(owner)
    return {
        name: given[name] if name in given else inspect.getdoc(inspect.getattr_static(owner, name))
        for name in public_names(owner)
    }


def _given_texts(owner: type) -> dict[str, str | None]:
    [body] = ast.parse(dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    functions = [node for node in body.body if isinstance(node, ast.FunctionDef)]
    blocks = [body.body, *(each.body for each in functions if each.name == "__init__")]
    return {name: text for block in blocks for name, text in _attributes(block)}


def _attributes(block: list[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    for statement, following in zip(block, [*block[1:], None], strict=True):
        for name in _assigned(statement):
            if name.startswith("_"):
                continue
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield name, text
                case _:
                    yield name, None


def _assigned(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.AnnAssign(target=ast.Attribute(attr=name)):
            yield name
        case ast.Assign(targets=[ast.Attribute(attr=name)]):
            yield name


@pytest.fixture(scope="module")
def revealed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What mypy says of every public name, and of what handlers do with them; one run."""
    names = [f"{at}.{name}" for at, owner in COMPLETED.items() for name in public_names(owner)]
    lines = [*SNIPPET.splitlines(), *(f"    reveal_type({name})" for name in sorted(names))]
    file = tmp_path_factory.mktemp("handlers") / "look.py"
    file.write_text("\n".join(lines), encoding="utf-8")
    # In the project's directory, so that what `make check` has looked at is not looked at again.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert re.findall(rf"{file.name}:\d+: error: .*", run.stdout) == [], run.stderr
    found = re.findall(r':(\d+): note: Revealed type is "(.*)"', run.stdout)
    return {lines[int(number) - 1].strip(): type for number, type in found}


def test_every_public_name_has_a_type(revealed: Mapping[str, str]) -> None:
    names = {f"{at}.{name}" for at, owner in COMPLETED.items() for name in public_names(owner)}
    untyped = {name for name in names if IS_UNTYPED.search(revealed[f"reveal_type({name})"])}
    assert untyped == UNTYPED


@pytest.mark.parametrize("owner", COMPLETED.values())
def test_every_public_name_says_what_it_is(owner: type) -> None:
    assert {name for name, text in texts(owner).items() if not text} == set()


def test_the_names_are_all_found() -> None:
    assert public_names(Event) >= {"id", "headers", "payload", "stripe", "github"}
    assert public_names(Context) >= {"db", "http", "attempt", "log", "upsert", "once", "stripe"}


def test_ctx_db_shows_only_what_handlers_may_call() -> None:
    statements = {"execute", "executemany", "fetch", "fetchrow", "fetchval"}
    assert public_names(Database) == {*statements, "transaction"}


def test_the_objects_of_the_providers_are_typed(revealed: Mapping[str, str]) -> None:
    plain = {line: type for line, type in revealed.items() if "#" in line or "await" in line}
    assert sorted(plain.values()) == ["int", "int", "int", "str", "str"]
