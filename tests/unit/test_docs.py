"""The documentation says what is there: no less, and nothing else."""

import ast
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
import typer
from prometheus_client import CollectorRegistry
from typer.core import TyperCommand, TyperGroup, TyperOption

import gateway
from gateway.api.operations import OPERATIONS
from gateway.base.model import MOVES
from gateway.cli import DISTRIBUTION, app
from gateway.config.routes import load_config
from gateway.config.settings import VARIABLES, Settings
from gateway.ledger.budget import SERVE_CONNECTIONS, worker_connections
from gateway.ledger.migrate import read_migrations
from gateway.receive.metrics import Metrics
from gateway.worker.metrics import WorkerMetrics
from tests import reference

PROJECT: Final = Path(__file__).parents[2]
DOCS: Final = PROJECT / "docs"
PAGES: Final = (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
UNSET: Final = "not set"

Row = list[str]


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _rows(text: str) -> Iterator[Row]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _documented(text: str, pattern: str) -> dict[str, Row]:
    """The rows whose first cell is one name in backquotes, by that name."""
    found: dict[str, Row] = {}
    for row in _rows(text):
        match = re.fullmatch(f"`({pattern})`", row[0])
        if match:
            assert match[1] not in found, f"{match[1]} twice"
            found[match[1]] = row
    return found


def _blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def _sections(text: str) -> dict[str, str]:
    """What stands under each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_pages_that_people_were_promised_are_there() -> None:
    names = {page.name for page in PAGES}
    assert names >= {
        "README.md",
        "alerts.md",
        "api.md",
        "forward.md",
        "routes.md",
        "settings.md",
        "commands.md",
        "handlers.md",
        "ledger.md",
        "metrics.md",
        "publish.md",
        "reliability.md",
        "operate.md",
        "reconcile.md",
    }


def test_every_setting_is_documented_with_its_default() -> None:
    documented = _documented(_text("settings.md"), "GATEWAY_[A-Z_]+")
    defaults = Settings().model_dump(mode="json")
    expected = {
        variable: UNSET if defaults[name] is None else f"`{defaults[name]}`"
        for variable, name in VARIABLES.items()
    }
    assert {variable: row[1] for variable, row in documented.items()} == expected
    assert all(row[2] for row in documented.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_setting_that_does_not_exist(page: Path) -> None:
    named = set(re.findall(r"\bGATEWAY_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    assert named <= VARIABLES.keys()


def test_the_tables_of_the_routes_are_as_the_schema_has_them() -> None:
    text = _text("routes.md")
    assert reference.rewrite(text) == text, "run `make docs`"


def test_every_key_of_the_routes_is_documented() -> None:
    documented = _documented(_text("routes.md"), r"[a-z_.<>\[\]]+")
    assert documented.keys() == reference.routes_keys().keys()
    assert all(len(row) == 4 and all(row) for row in documented.values())


def test_keys_are_found_at_every_level_of_the_schema() -> None:
    keys = reference.routes_keys()
    assert keys["schema"].takes == "list of texts"
    assert keys["defaults.retry.cap"] == ("duration", "`6h`", "The longest wait; at least base.")
    assert keys["routes.<name>.retention.dead"].default == "`90d`"
    assert keys["routes.<name>.secrets"].takes == "list of references or mappings"
    assert keys["routes.<name>.forward[].retry.attempts"].takes == "1 to 20"
    assert keys["routes.<name>.scheme.signature.encoding"].takes == "`hex`, `base64` or `base64url`"


def test_a_key_that_the_page_does_not_have_comes_with_the_words_of_the_schema() -> None:
    text = _text("routes.md")
    [row] = re.findall(r"^\| `alerts\.repeat` .*\n", text, flags=re.MULTILINE)
    without = text.replace(row, "| `alerts.repeated` | duration | `1h` | No such key. |\n")
    written = _documented(reference.rewrite(without), r"alerts\.[a-z_.]+")
    assert "alerts.repeated" not in written
    assert written["alerts.repeat"][1:] == list(reference.routes_keys()["alerts.repeat"])


def test_the_concepts_have_every_move_of_a_delivery_and_no_other() -> None:
    """But pending to pending, by which a replay of what waits means now."""
    moves: dict[str, set[str]] = {}
    for row in _rows(_sections(_text("concepts.md"))["States of a delivery"]):
        for before in re.findall(r"`([a-z]+)`", row[0]):
            moves.setdefault(before, set()).update(re.findall(r"`([a-z]+)`", row[1]))
    assert moves == {
        str(before): {str(after) for after in allowed if after != before}
        for before, allowed in MOVES.items()
    }


def test_the_pages_tell_the_schema_and_the_connections_of_this_code() -> None:
    told = re.findall(r"gateway (\S+), schema (\d+)", _text("releases.md"))
    assert told == [(version(DISTRIBUTION), str(read_migrations()[-1].version))]
    of_worker, of_serve = worker_connections(Settings()), SERVE_CONNECTIONS
    assert f"{of_worker} x workers + {of_serve} x serves" in _text("production.md")
    assert f"at most {of_serve} per `serve`, and {of_worker} per `worker`" in _text(
        "performance.md"
    )
    beside = of_worker - Settings().concurrency
    assert f"{of_serve} for each `serve`, `GATEWAY_CONCURRENCY` + {beside}" in _text("scale.md")
    assert f"{of_worker} per worker and {of_serve} per `serve`" in _text("operate.md")


def _commands() -> dict[str, TyperCommand]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return {name: item for name, item in group.commands.items() if isinstance(item, TyperCommand)}


def test_every_command_is_documented_with_its_options() -> None:
    sections = _sections(_text("commands.md"))
    commands = _commands()
    assert commands
    assert sections.keys() == {f"`gateway {name}`" for name in commands}
    for name, command in commands.items():
        section = sections[f"`gateway {name}`"]
        options = {
            option
            for parameter in command.params
            if isinstance(parameter, TyperOption) and not parameter.hidden
            for option in parameter.opts
            if option != "--help"
        }
        named = set(re.findall(r"`(--[a-z-]+)`", section))
        assert named == options, name
        assert re.search(rf"^```sh\n(GATEWAY_\S+ )*gateway {name}\b", section, re.MULTILINE), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_command_that_does_not_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shell = "\n".join(_blocks(page, "(?:sh|bash|console)?"))
    named = re.findall(r"`gateway ([a-z]+)", text)
    named += re.findall(r"(?:^|\$ |xargs )gateway ([a-z]+)", shell, flags=re.MULTILINE)
    assert set(named) <= _commands().keys()


def _command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every `gateway ...` in the shell blocks, up to a pipe, a redirection or a comment."""
    for page in PAGES:
        for line in "\n".join(_blocks(page, "(?:sh|bash|console)?")).splitlines():
            found = re.match(r"^(?:\$ )?(?:GATEWAY_\w+=\S+ )*gateway (?!COMMAND)(.+)$", line)
            if found:
                words = shlex.split(re.split(r" [|>&;]| #", found[1])[0].replace(" ...", ""))
                yield f"{page.name}: {line}", words


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=line) for line, words in _command_lines()]
)
def test_every_command_line_of_the_docs_can_be_typed(words: list[str]) -> None:
    command = _commands()[words[0]]
    with command.make_context(words[0], words[1:]) as context:
        assert context.command is command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_handlers_are_named_with_their_function(page: Path) -> None:
    """Of a module alone nothing is found: what the runbook says at 2 am must be typed as it is."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"gateway (?:pause|resume) [a-z]+ (handlers\.[\w.]+)", text)
    named += re.findall(r"--handler (handlers\.[\w.]+)", text)
    assert [name for name in named if name.count(".") < 2] == []


@pytest.mark.parametrize("name", sorted(_commands()))
def test_the_help_of_a_command_flows(name: str) -> None:
    """typer keeps the ends of lines, and then breaks them again where the terminal ends."""
    told, *_ = (_commands()[name].help or "").split("Example")
    assert "\n" not in told.replace("\n\n", "")


def _registries() -> Iterator[CollectorRegistry]:
    """Those of both processes, with all that they watch."""
    serve, worker = Metrics(), WorkerMetrics()
    serve.watch_ledger("postgresql://nowhere", lately=timedelta(seconds=30))
    yield from (serve.registry, worker.registry)


def _metrics() -> set[str]:
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for registry in _registries()
        for metric in registry.collect()
    }


def test_every_operation_of_the_api_is_documented() -> None:
    documented = {name: row[1:] for name, row in _documented(_text("api.md"), r"[a-z_]+").items()}
    assert documented == {
        operation.name: [
            f"`{operation.method} {operation.path.replace(':path', '')}`",
            operation.summary,
        ]
        for operation in OPERATIONS
    }


def test_every_metric_is_documented() -> None:
    text = _text("metrics.md")
    assert _documented(text, r"(?:gateway|process)_[a-z_]+").keys() == _metrics()


def test_no_query_uses_a_metric_that_does_not_exist() -> None:
    named = set(re.findall(r"\bgateway_[a-z_]+", _text("metrics.md")))
    parts = {f"{name}{suffix}" for name in _metrics() for suffix in ("", "_bucket")}
    assert named <= parts


PYTHON: Final = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(_blocks(page, "python"), start=1)
]


def test_there_is_python_to_check() -> None:
    assert len(PYTHON) >= 5


@pytest.mark.parametrize("block", PYTHON)
def test_python_in_the_docs_compiles(block: str) -> None:
    compile(block, "<docs>", "exec")


@pytest.mark.parametrize("block", PYTHON)
def test_python_in_the_docs_imports_only_what_there_is(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module == "gateway":
            assert {name.name for name in node.names} <= set(gateway.__all__)


@pytest.mark.parametrize("block", PYTHON)
def test_python_in_the_docs_runs_up_to_its_handlers(block: str) -> None:
    exec(compile(block, "<docs>", "exec"), {"__name__": "docs"})  # noqa: S102 (our own docs)


ROUTES: Final = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in (PROJECT / "README.md", DOCS / "routes.md")
    for number, block in enumerate(_blocks(page, "yaml"), start=1)
    if re.search("^routes:", block, flags=re.MULTILINE)
]


def test_there_are_routes_to_check() -> None:
    assert ROUTES


@pytest.mark.parametrize("block", ROUTES)
def test_routes_in_the_docs_are_valid(block: str, tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(block, encoding="utf-8")
    assert load_config(file).routes
