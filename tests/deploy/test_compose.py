"""compose.yaml: valid by the schema of compose files, and true to the code, the image and Caddy."""

import importlib.resources
import ipaddress
import json
import re
from typing import Any, Final

import asyncpg
import jsonschema
import pytest
import typer
import yaml
from typer.core import TyperGroup

from gateway.cli import app
from gateway.config.routes import load_config
from gateway.config.settings import VARIABLES, Settings, load_settings
from tests.deploy.dockerfile import ENVIRONMENT
from tests.deploy.files import DEPLOY, PROJECT, text_of
from tests.deploy.reach import Reach
from tests.deploy.roles import run_roles

OURS: Final = ("migrate", "serve", "worker")
ONCE: Final = ("migrate", "roles")
Service = dict[str, Any]


@pytest.fixture
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(text_of("compose.yaml"))
    return document


@pytest.fixture
def services(compose: dict[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


def _commands() -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return set(group.commands)


def test_it_is_valid_by_the_schema_of_compose_files(compose: dict[str, Any]) -> None:
    folder = importlib.resources.files("check_jsonschema.builtin_schemas.vendor")
    schema = json.loads((folder / "compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert list(validator.iter_errors(compose)) == []
    wrong = {**compose, "services": {"serve": {"imagine": "x"}}}
    assert list(validator.iter_errors(wrong)) != []


def test_the_default_schema_of_the_owner_is_not_the_ledger(services: dict[str, Service]) -> None:
    """Else Alembic or Django, run as the role gateway, would drop or create tables there."""
    assert services["postgres"]["command"] == ["postgres", "-c", "search_path=public"]


def test_it_has_every_service_and_no_version(compose: dict[str, Any]) -> None:
    assert "version" not in compose
    assert compose["services"].keys() == {"caddy", "postgres", "valkey", "roles", *OURS}


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
def test_settings_of_the_services_are_valid(services: dict[str, Service], name: str) -> None:
    given = {k: _filled(v) for k, v in services[name]["environment"].items()}
    settings = load_settings({**ENVIRONMENT, **given})
    assert settings.database_url is not None
    assert settings.redis_url is not None


def _filled(text: str) -> str:
    return re.sub(r"\$\{[^}]*\}", "hooks.example.com", text)


@pytest.mark.parametrize("file", ["compose.yaml", "Dockerfile", ".env.example"])
def test_settings_named_in_files_exist(file: str) -> None:
    assert set(re.findall(r"\bGATEWAY_[A-Z_]*[A-Z]\b", text_of(file))) <= VARIABLES.keys()


def test_serve_gets_every_secret_of_the_routes_and_the_others_none(
    services: dict[str, Service],
) -> None:
    config = load_config(PROJECT / "config" / "routes.yaml")
    secrets = {ref.target for route in config.routes for ref in route.secrets if ref.kind == "env"}
    assert secrets
    having = {n for n, s in services.items() if secrets & s.get("environment", {}).keys()}
    assert having == {"serve"}
    assert secrets <= services["serve"]["environment"].keys()


def test_every_variable_is_in_the_example_and_the_other_way_round() -> None:
    wanted = set(re.findall(r"\$\{([A-Z_]+)", text_of("compose.yaml")))
    given = re.findall(r"^([A-Z_]+)=(.*)$", text_of(".env.example"), flags=re.MULTILINE)
    assert {name for name, _ in given} == wanted
    assert not any(value for _, value in given), "an example holds no secret"


def test_a_missing_secret_stops_compose() -> None:
    assert re.findall(r"\$\{[A-Z_]+(?!:\?)[^A-Z_}]*\}", text_of("compose.yaml")) == []


def test_what_starts_waits_for_the_migration_and_the_roles(services: dict[str, Service]) -> None:
    done = {"condition": "service_completed_successfully"}
    for name in ("serve", "worker"):
        assert services[name]["depends_on"]["roles"] == done
    assert services["roles"]["depends_on"]["migrate"] == done
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert {services[name]["restart"] for name in ONCE} == {"no"}


def test_the_queue_keeps_what_it_has(services: dict[str, Service]) -> None:
    command = services["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"


def test_everything_that_stays_has_a_health_check(services: dict[str, Service]) -> None:
    for name in ("caddy", "postgres", "valkey"):
        assert services[name]["healthcheck"]["test"][0] == "CMD"
    assert services["worker"]["environment"]["GATEWAY_WORKER_PORT"]  # what the image's check asks
    assert "GATEWAY_WORKER_PORT" not in services["serve"]["environment"]
    disabled = {n for n, s in services.items() if s.get("healthcheck") == {"disable": True}}
    assert disabled == set(ONCE)


def test_nothing_can_be_written_but_volumes_and_memory(services: dict[str, Service]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert "/tmp" in service["tmpfs"], name  # noqa: S108 - a container's own
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_rights_are_dropped_wherever_the_image_lets_us(services: dict[str, Service]) -> None:
    kept = {n: s.get("cap_add", []) for n, s in services.items() if s.get("cap_drop") == ["ALL"]}
    # The images of Postgres and Valkey start as root, and step down themselves.
    assert services.keys() - kept.keys() == {"postgres", "valkey"}
    assert {n: rights for n, rights in kept.items() if rights} == {"caddy": ["NET_BIND_SERVICE"]}


def test_everything_that_stays_has_a_limit(services: dict[str, Service]) -> None:
    for name in services.keys() - set(ONCE):
        assert services[name]["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}


def test_the_memory_of_serve_holds_what_it_may_buffer(services: dict[str, Service]) -> None:
    limits = services["serve"]["deploy"]["resources"]["limits"]
    assert limits["memory"] == "1G"
    assert 2 * Settings().max_buffered < 1024**3
    assert services["serve"]["ulimits"]["nofile"] > Settings().max_connections


def test_the_memory_of_a_worker_holds_what_it_may_lease(services: dict[str, Service]) -> None:
    assert services["worker"]["deploy"]["resources"]["limits"]["memory"] == "1G"
    largest_body = 25 * 1024**2
    assert 4 * (Settings().max_leased + largest_body) < 1024**3 // 2


def test_only_caddy_can_be_reached_from_outside(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    assert {name for name, service in services.items() if "ports" in service} == {"caddy"}
    assert all("network_mode" not in service for service in services.values())
    members = {
        n: {s for s in services if n in services[s]["networks"]} for n in compose["networks"]
    }
    assert members["front"] == {"caddy", "serve"}
    assert members["out"] == {"worker"}
    assert compose["networks"]["back"] == {"internal": True}


def test_serve_believes_caddy_and_nobody_else(
    compose: dict[str, Any], services: dict[str, Service]
) -> None:
    [subnet] = compose["networks"]["front"]["ipam"]["config"]
    assert services["serve"]["environment"]["GATEWAY_TRUSTED_PROXIES"] == subnet["subnet"]
    assert ipaddress.ip_network(subnet["subnet"]).is_private


def test_caddy_is_given_what_its_file_reads(services: dict[str, Service]) -> None:
    read = dict(re.findall(r"\{\$([A-Z_]+):([^}]*)\}", text_of("caddy/Caddyfile")))
    given = services["caddy"]["environment"]
    assert read.keys() - given.keys() == {"HTTP_PORT", "HTTPS_PORT"}
    assert given.keys() <= read.keys()
    port = ENVIRONMENT["GATEWAY_PORT"]
    assert given["UPSTREAM"] == f"serve:{port}"
    published = {entry.split(":")[1] for entry in services["caddy"]["ports"]}
    assert published == {read["HTTP_PORT"], read["HTTPS_PORT"]}


def test_what_is_mounted_from_here_is_here_and_cannot_be_changed(
    services: dict[str, Service],
) -> None:
    mounts = [v for s in services.values() for v in s.get("volumes", []) if v.startswith(".")]
    assert len(mounts) == 3
    for mount in mounts:
        source, _, mode = mount.split(":")
        assert (DEPLOY / source).is_file()
        assert mode == "ro"


def test_what_must_stay_is_in_named_volumes(compose: dict[str, Any]) -> None:
    mounts = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert mounts == compose["volumes"].keys()
    spool = f"spool:{ENVIRONMENT['GATEWAY_DATA_DIR']}"
    assert spool in compose["services"]["serve"]["volumes"]


# Roles


async def test_each_process_logs_in_as_a_role_with_no_more_than_it_needs(
    reach: Reach, services: dict[str, Service]
) -> None:
    for _ in range(2):  # it runs whenever everything is started
        run_roles(reach)
    for name in ("serve", "worker"):
        user = re.search(r"//(\w+):", services[name]["environment"]["GATEWAY_DATABASE_URL"])
        assert user is not None
        connection = await asyncpg.connect(reach.as_role(user[1], "unused"))
        try:
            member = await connection.fetch(
                "select rolname::text from pg_roles where pg_has_role(oid, 'member')"
            )
            assert {row["rolname"] for row in member} == {name, f"gateway_{name}"}
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("drop table gateway.deliveries")
        finally:
            await connection.close()
