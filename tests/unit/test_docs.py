"""The documentation says what is there: no less, and nothing else."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import gateway
from gateway.api.operations import OPERATIONS
from gateway.cli import app
from gateway.receive.metrics import Metrics
from gateway.routes import json_schema, load_config
from gateway.settings import VARIABLES, Settings

PROJECT: Final = Path(__file__).parents[2]
DOCS: Final = PROJECT / "docs"
PAGES: Final = (PROJECT / "README.md", *sorted(DOCS.glob("*.md")))
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


def _keys(schema: dict[str, Any], node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Every key of the file with its default, as the JSON Schema has them."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] | node
    for branch in reversed(node.get("anyOf", ())):  # a route, or a queue, which has less
        yield from _keys(schema, branch, path)
    for key, child in node.get("properties", {}).items():
        at = f"{path}.{key}" if path else key
        yield at, child.get("default", "required" if key in node.get("required", ()) else None)
        yield from _keys(schema, child, at)
    for child in node.get("patternProperties", {}).values():
        yield from _keys(schema, child, f"{path}.<name>")
    if "items" in node:
        yield from _keys(schema, node["items"], f"{path}[]")


def test_every_key_of_the_routes_is_documented_with_its_default() -> None:
    documented = _documented(_text("routes.md"), r"[a-z_.<>\[\]]+")
    schema = json_schema()
    keys = dict(_keys(schema, schema, ""))
    assert documented.keys() == keys.keys()
    for key, default in keys.items():
        shown = documented[key][1].strip("`")
        assert shown, key
        if default is not None:
            assert shown == (json.dumps(default) if isinstance(default, bool) else str(default)), (
                key
            )


def test_keys_are_found_at_every_level_of_the_schema() -> None:
    schema = json_schema()
    assert {
        "schema",
        "defaults.retry.cap",
        "routes.<name>.retention.dead",
        "routes.<name>.forward[].retry.cap",
    } <= dict(_keys(schema, schema, "")).keys()


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


def _metrics() -> set[str]:
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in Metrics().registry.collect()
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
    assert _documented(text, r"gateway_[a-z_]+").keys() == _metrics()


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        file = page.parent / target.partition("#")[0]
        assert file.exists(), f"{page.name} links to {target}"
