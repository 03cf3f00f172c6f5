"""The files under deploy/ fit the code: commands, settings, pins."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.core import TyperGroup

from gateway.cli import app
from gateway.routes import load_config
from gateway.settings import VARIABLES, Settings

PROJECT: Final = Path(__file__).parents[2]
DEPLOY: Final = PROJECT / "deploy"
OURS: Final = ("migrate", "serve", "worker")

Instruction = tuple[str, str]
Service = dict[str, Any]


def _text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


@pytest.fixture
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(_text("compose.yaml"))
    return document


@pytest.fixture
def services(compose: dict[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


@pytest.fixture
def dockerfile() -> list[Instruction]:
    """The instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", _text("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, argument) for name, argument in lines]


def _commands() -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return set(group.commands)


def _arguments(dockerfile: list[Instruction], name: str) -> list[str]:
    return [argument for instruction, argument in dockerfile if instruction == name]


def test_compose_has_every_service_and_no_version(compose: dict[str, Any]) -> None:
    assert "version" not in compose
    assert compose["services"].keys() == {"postgres", "valkey", *OURS}


@pytest.mark.parametrize("name", OURS)
def test_services_run_commands_that_exist(services: dict[str, Service], name: str) -> None:
    assert services[name]["command"] == ["gateway", name]
    assert name in _commands()


@pytest.mark.parametrize("name", OURS)
def test_services_are_built_from_our_dockerfile(services: dict[str, Service], name: str) -> None:
    build = services[name]["build"]
    context = DEPLOY / build["context"]
    assert context.resolve() == PROJECT
    assert (context / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


@pytest.mark.parametrize("name", OURS)
def test_settings_of_the_services_exist(services: dict[str, Service], name: str) -> None:
    given = {key for key in services[name]["environment"] if key.startswith("GATEWAY_")}
    assert {"GATEWAY_DATABASE_URL", "GATEWAY_REDIS_URL"} <= given <= VARIABLES.keys()


@pytest.mark.parametrize("file", ["compose.yaml", "Dockerfile", ".env.example"])
def test_settings_named_under_deploy_exist(file: str) -> None:
    assert set(re.findall(r"\bGATEWAY_[A-Z_]*[A-Z]\b", _text(file))) <= VARIABLES.keys()


def test_serve_gets_every_secret_of_the_routes_and_the_others_none(
    services: dict[str, Service],
) -> None:
    config = load_config(PROJECT / "config" / "routes.yaml")
    secrets = {ref.target for route in config.routes for ref in route.secrets if ref.kind == "env"}
    assert secrets
    assert secrets <= services["serve"]["environment"].keys()
    assert not secrets & services["worker"]["environment"].keys()
    assert not secrets & services["migrate"]["environment"].keys()


def test_every_variable_of_compose_is_in_the_example_and_the_other_way_round() -> None:
    wanted = set(re.findall(r"\$\{([A-Z_]+)", _text("compose.yaml")))
    given = re.findall(r"^([A-Z_]+)=(.*)$", _text(".env.example"), flags=re.MULTILINE)
    assert {name for name, _ in given} == wanted
    assert not any(value for _, value in given), "an example holds no secret"


def test_a_missing_secret_stops_compose() -> None:
    assert re.findall(r"\$\{[A-Z_]+(?!:\?)[^A-Z_}]*\}", _text("compose.yaml")) == []


def test_serve_and_worker_wait_for_the_migration(services: dict[str, Service]) -> None:
    for name in ("serve", "worker"):
        condition = services[name]["depends_on"]["migrate"]["condition"]
        assert condition == "service_completed_successfully"
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["migrate"]["restart"] == "no"


def test_the_queue_keeps_what_it_has(services: dict[str, Service]) -> None:
    command = services["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"


def test_only_the_worker_and_the_one_shot_have_no_health_check(
    services: dict[str, Service], dockerfile: list[Instruction]
) -> None:
    assert all("test" in services[name]["healthcheck"] for name in ("postgres", "valkey"))
    assert _arguments(dockerfile, "HEALTHCHECK")
    disabled = [name for name in OURS if services[name].get("healthcheck") == {"disable": True}]
    assert disabled == ["migrate", "worker"]


def test_processes_may_end_before_they_are_killed(services: dict[str, Service]) -> None:
    grace_s = Settings().grace.total_seconds()
    for name in ("serve", "worker"):
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > grace_s


def test_data_is_kept_in_named_volumes(compose: dict[str, Any]) -> None:
    mounts = [
        volume.split(":")[0]
        for name in ("postgres", "valkey", "serve")
        for volume in compose["services"][name]["volumes"]
    ]
    assert mounts == list(compose["volumes"])


def test_the_spool_stands_on_a_volume_that_the_image_can_write(
    services: dict[str, Service], dockerfile: list[Instruction]
) -> None:
    [environment] = _arguments(dockerfile, "ENV")
    [directory] = re.findall(r"GATEWAY_DATA_DIR=(\S+)", environment)
    assert f"spool:{directory}" in services["serve"]["volumes"]
    assert any(
        "--owner=gateway" in command and command.endswith(directory)
        for command in _arguments(dockerfile, "RUN")
    )


def test_the_image_does_not_run_as_root(dockerfile: list[Instruction]) -> None:
    names = [name for name, _ in dockerfile]
    last_stage = dockerfile[len(names) - 1 - names[::-1].index("FROM") :]
    users = _arguments(last_stage, "USER")
    assert users
    assert users[-1].split(":")[0] not in {"root", "0"}
    assert any(users[-1] in command for command in _arguments(last_stage, "RUN"))


def test_the_image_serves_by_default(dockerfile: list[Instruction]) -> None:
    (command,) = _arguments(dockerfile, "CMD")
    assert json.loads(command) == ["gateway", "serve"]


def test_the_image_is_checked_by_its_health(dockerfile: list[Instruction]) -> None:
    (check,) = _arguments(dockerfile, "HEALTHCHECK")
    command = json.loads(check.partition(" CMD ")[2])
    assert command[:2] == ["python", "-c"]
    assert "/healthz" in command[2]
    compile(command[2], "HEALTHCHECK", "exec")


def test_the_image_is_built_in_stages_from_the_pins(dockerfile: list[Instruction]) -> None:
    assert len(_arguments(dockerfile, "FROM")) == 2
    assert any("deploy/constraints.txt" in copied for copied in _arguments(dockerfile, "COPY"))
    installs = [run for run in _arguments(dockerfile, "RUN") if "pip install" in run]
    assert installs
    assert all("--constraint deploy/constraints.txt" in install for install in installs)


def test_what_the_image_copies_exists(dockerfile: list[Instruction]) -> None:
    copies = [copy.split() for copy in _arguments(dockerfile, "COPY") if "--from" not in copy]
    sources = {source for copy in copies for source in copy[:-1]}
    assert {"config", "handlers", "gateway"} <= sources
    assert [source for source in sources if not (PROJECT / source).exists()] == []


def _pins() -> dict[str, str]:
    requirements = [Requirement(line) for line in _text("constraints.txt").split()]
    return {canonicalize_name(item.name): str(item.specifier) for item in requirements}


def _required() -> list[Requirement]:
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    groups = [*project["optional-dependencies"].values(), *document["dependency-groups"].values()]
    return [Requirement(text) for group in (project["dependencies"], *groups) for text in group]


def test_constraints_pin_exactly() -> None:
    assert [pin for pin in _pins().values() if not re.fullmatch(r"==[^*,]+", pin)] == []


@pytest.mark.parametrize("requirement", _required(), ids=lambda item: item.name)
def test_dependencies_are_pinned_alike_in_the_constraints(requirement: Requirement) -> None:
    assert str(requirement.specifier).startswith("==")
    assert _pins().get(canonicalize_name(requirement.name)) == str(requirement.specifier)
