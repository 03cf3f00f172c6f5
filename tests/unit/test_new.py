"""The parts of `gateway init` and `gateway new handler`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from gateway.base.errors import CommandFailed
from gateway.cli import app
from gateway.config.settings import VARIABLES
from gateway.dev.known_types import check_known, suggest
from gateway.dev.new_handler import HandlerRequest, write_handler
from gateway.dev.new_project import STARTERS, plan_project, write_files
from gateway.dev.sample_row import choose_table, read_row
from gateway.providers.samples import sample_types


def test_a_file_that_cannot_be_written_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    old, blocked = tmp_path / "old.txt", tmp_path / "blocked"
    old.write_text("before")
    blocked.mkdir()
    with pytest.raises(CommandFailed, match="blocked: cannot be written: Is a directory"):
        write_files({old: "after", tmp_path / "new.txt": "new", blocked: "no file"})
    assert old.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocked", "old.txt"]


def test_a_changed_file_keeps_its_mode(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    old.write_text("before")
    old.chmod(0o640)
    write_files({old: "after", tmp_path / "a" / "b.txt": "new"})
    assert (old.read_text(), old.stat().st_mode & 0o777) == ("after", 0o640)
    assert (tmp_path / "a" / "b.txt").read_text() == "new"


MODULE = """
from gateway import handler

@handler("*")
async def on_any(event, ctx): ...
"""
LIST = "\n      - mine.b  # ours\n      - mine.c"
LINE = "handlers: [mine.b, fresh.plan]   # of the route stripe"


@pytest.mark.parametrize(
    ("before", "after", "to_add"),
    [
        ("handlers: [mine.b]  # ours", "handlers: [mine.b, fresh.plan]  # ours", ()),
        ("handlers: []", "handlers: [fresh.plan]", ()),
        ("handlers: [mine.b]\r", "handlers: [mine.b, fresh.plan]\r", ()),
        ("handlers: [\n      mine.b\n    ]", None, (LINE,)),
        (f"handlers:{LIST}", None, (LINE.replace("mine.b", "mine.b, mine.c"),)),
        ("tolerance: 5m", None, (LINE.replace("mine.b, ", ""),)),
    ],
)
def test_a_module_is_put_into_a_list_on_one_line_and_else_the_line_is_shown(
    before: str,
    after: str | None,
    to_add: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine/__init__.py", "mine/b.py", "mine/c.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(MODULE)
    head = "# Mine.\nroutes:\n  github: {provider: github, secrets: [env:G]}\n  stripe:\n"
    top, tail = "    provider: stripe  # them\n", "\n    secrets: [env:S]\n\n# The end."
    file = Path("routes.yaml")
    file.write_bytes(f"{head}{top}    {before}{tail}".encode())
    request = HandlerRequest(route="stripe", type="plan.created", module="fresh.plan")
    made = write_handler(file, request)
    assert file.read_bytes().decode() == f"{head}{top}    {after or before}{tail}"
    assert made.to_add == ("schema: [handlers/schema.sql]", *to_add)
    assert made.name == "fresh.plan.on_plan_created"


def _stripe(**fields: Any) -> dict[str, Any]:
    return {"data": {"object": {"id": "in_1", "object": "invoice", **fields}}}


def test_a_second_handler_of_a_kind_writes_the_columns_of_the_first() -> None:
    first = read_row("stripe", "invoice.paid", _stripe(status="paid", customer="cus_1"))
    second = read_row("stripe", "invoice.sent", _stripe(status="open", customer=None, paid=True))
    table = choose_table(first, "on_paid", [])
    shared = choose_table(second, "on_sent", [table.sql])
    assert (shared.name, shared.sql) == ("invoices", "")
    assert [column.name for column in shared.values] == ["status", "customer"]


def test_a_table_with_other_columns_is_left_alone() -> None:
    subject = read_row("stripe", "invoice.paid", _stripe(status="paid"))
    others = "create table invoices (\n    id text primary key,\n    total numeric not null\n);\n"
    table = choose_table(subject, "on_paid", [others])
    assert (table.name, "create table if not exists on_paid (" in table.sql) == ("on_paid", True)
    with pytest.raises(CommandFailed, match="invoices and on_paid already"):
        choose_table(subject, "on_paid", [others, table.sql])


def test_secrets_and_peoples_data_of_an_event_get_no_column() -> None:
    payload = _stripe(client_secret="s", customer_email="a@b.c", hosted_invoice_url="u", plan="x")
    subject = read_row("stripe", "invoice.paid", payload)
    assert [column.name for column in subject.values] == ["plan"]


def test_a_reserved_word_of_sql_is_quoted() -> None:
    subject = read_row("stripe", "invoice.paid", _stripe(default=True))
    assert '"default" boolean' in choose_table(subject, "f", []).sql


def test_an_event_without_an_object_is_a_row_of_its_own() -> None:
    subject = read_row("github", "push", {"ref": "main", "repository": {"full_name": "a/b"}})
    assert [column.source for column in subject.key] == ["event.id"]
    assert subject.version == "event.received_at"


def test_a_member_is_one_row_for_each_repository() -> None:
    payload = {"member": {"id": 7, "login": "ann"}, "repository": {"id": 1, "full_name": "a/b"}}
    subject = read_row("github", "member.added", payload)
    assert [column.name for column in subject.key] == ["repository_id", "member_id"]
    assert "primary key (repository_id, member_id)" in choose_table(subject, "f", []).sql


@pytest.mark.parametrize(
    ("provider", "type"),
    [
        ("stripe", "invoice.sent"),
        ("stripe", "v1.billing.meter.no_meter_found"),
        ("github", "issues.unlocked"),
        ("github", "repository_dispatch.anything at all"),
        ("github", "gollum"),
    ],
)
def test_a_type_without_a_sample_can_be_known(provider: str, type: str) -> None:
    assert type not in sample_types(provider)
    check_known(provider, type, force=False)


@pytest.mark.parametrize(
    ("provider", "type", "meant"),
    [
        ("stripe", "invoice.payed", "invoice.paid"),
        ("stripe", "invoice.snt", "invoice.sent"),
        ("github", "pull.opened", "pull_request.opened"),
        ("github", "issues.unlockd", "issues.unlocked"),
        ("stripe", "mine.b", None),
    ],
)
def test_an_unknown_type_is_refused_with_what_was_meant(
    provider: str, type: str, meant: str | None
) -> None:
    assert suggest(provider, type) == meant
    with pytest.raises(CommandFailed, match=f"mean {meant}" if meant else "one of its types, a"):
        check_known(provider, type, force=False)
    check_known(provider, type, force=True)


def test_a_type_of_another_provider_is_refused_even_by_force() -> None:
    with pytest.raises(CommandFailed, match=r"found issues.opened, of GitHub; expected one of S"):
        check_known("stripe", "issues.opened", force=True)
    with pytest.raises(CommandFailed, match=r"found invoice.sent, of Stripe; expected one of G"):
        check_known("github", "invoice.sent", force=True)


@pytest.mark.parametrize("providers", [["stripe"], ["github"], ["stripe", "github"]])
def test_what_compose_and_the_workflow_name_exists(providers: list[str]) -> None:
    plan = plan_project(providers)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    services = yaml.safe_load(plan["compose.yaml"])["services"]
    steps = yaml.safe_load(plan[".github/workflows/test.yml"])["jobs"]["test"]["steps"]
    commands = [
        s["command"][1] for s in services.values() if s.get("command", [""])[0] == "gateway"
    ]
    commands += [step["run"].split()[1] for step in steps if "gateway " in step.get("run", "")]
    commands += re.findall(r"^gateway (\w+)", plan["README.md"], re.MULTILINE)
    assert {"migrate", "serve", "worker", "check", "rehearse", "send"} <= set(commands)
    assert set(commands) <= set(group.commands)
    named = set(re.findall(r"\bGATEWAY_[A-Z_]*[A-Z]\b", "".join(plan.values())))
    assert named <= VARIABLES.keys()
    wanted = set(re.findall(r"\$\{([A-Z_]+)", plan["compose.yaml"]))
    assert wanted == {"POSTGRES_PASSWORD", *(STARTERS[name].secret for name in providers)}
    assert wanted == set(re.findall(r"^([A-Z_]+)=$", plan[".env.example"], re.MULTILINE))
    assert not [name for name, text in plan.items() if "{{" in text.replace("${{", "")]


def test_the_default_schema_in_compose_is_not_the_ledger() -> None:
    """Else Alembic or Django, run as the role gateway, would drop or create tables there."""
    plan = plan_project(["stripe"])
    postgres = yaml.safe_load(plan["compose.yaml"])["services"]["postgres"]
    assert postgres["command"] == ["postgres", "-c", "search_path=public"]


def test_compose_asks_a_worker_for_its_health_and_not_a_serve_on_the_workers_port() -> None:
    plan = plan_project(["stripe"])
    services = yaml.safe_load(plan["compose.yaml"])["services"]
    assert services["worker"]["environment"]["GATEWAY_WORKER_PORT"] == "8001"
    assert "healthcheck" not in services["worker"]
    assert "GATEWAY_WORKER_PORT" not in services["serve"]["environment"]
    [check] = re.findall(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", plan["Dockerfile"], re.MULTILINE)
    compile(json.loads(check)[2], "<health check>", "exec")
