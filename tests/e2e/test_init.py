"""`gateway init` and `gateway new handler`: what they write works, or they write nothing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import gateway
from gateway.dev.embedded import Postgres
from gateway.providers.samples import Recorded, dump_recorded
from tests.support.forked import Forked
from tests.support.waiting import PATIENCE_S

ROOT = Path(gateway.__file__).parents[1]
EVENT = "tests/events/comment.json"


def run(
    directory: Path, arguments: Sequence[str], **environ: str
) -> subprocess.CompletedProcess[str]:
    """A `gateway` command where nothing is set."""
    logs = [directory.parent / f"{directory.name}.{name}" for name in ("out", "err")]
    for log in logs:
        log.unlink(missing_ok=True)
    known = {k: v for k, v in os.environ.items() if not k.startswith(("GATEWAY_", "STRIPE_"))}
    process = Forked(
        arguments,
        directory=directory,
        environ={**known, **environ},
        output=logs[0],
        errors=logs[1],
    )
    try:
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, code, *(log.read_text() for log in logs))


def done(directory: Path, *arguments: str) -> str:
    """The output of a command that succeeds."""
    result = run(directory, arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(directory: Path, *arguments: str) -> str:
    """The complaint of a command that fails and leaves everything as it was."""
    before = content(directory)
    result = run(directory, arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert content(directory) == before
    return result.stderr


def content(directory: Path) -> dict[str, bytes]:
    """Every file but what Python and tests leave behind."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache"} & set(path.parts)
    }


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with both providers, and some handlers more."""
    directory = tmp_path_factory.mktemp("projects")
    told = done(directory, "init", "shop", "--provider", "stripe", "--provider", "github")
    assert "cd shop" in told
    shop = directory / "shop"
    told = done(shop, "new", "handler", "stripe", "invoice.paid")
    assert "put into" not in told
    assert "pytest tests/test_on_invoice_paid.py\n" in told
    assert "gateway rehearse handlers.invoice_paid.on_invoice_paid\n" in told
    done(shop, "new", "handler", "stripe", "invoice.payment_failed", "--name", "note_failure")
    done(shop, "new", "handler", "github", "push", "--module", "handlers.branches")
    event = shop / EVENT
    event.parent.mkdir()
    event.write_bytes(dump_recorded(COMMENT))
    done(shop, "new", "handler", "github", "issue_comment.created", "--event", EVENT)
    return shop


COMMENT = Recorded(
    provider="github",
    type="issue_comment.created",
    id="guid-1",
    headers={},
    body=b'{"action":"created","comment":'
    b'{"id":7,"author_association":"OWNER","updated_at":"2026-11-16T12:00:00Z"}}',
)


def test_a_new_project_is_in_order_at_once(shop: Path) -> None:
    told = done(shop, "check")
    assert "env:STRIPE_WEBHOOK_SECRET is not set: a development secret is used" in told
    assert "2 routes, 6 handlers, all in order" in told


def test_its_tests_pass_at_once(shop: Path, postgres: Postgres) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "gateway.pytest_plugin", "-q"],
        cwd=shop,
        env=os.environ
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GATEWAY_TEST_DATABASE_URL": postgres.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "9 passed" in result.stdout


def test_its_handlers_may_run_twice(shop: Path, postgres: Postgres) -> None:
    result = run(shop, ["rehearse"], GATEWAY_TEST_DATABASE_URL=postgres.url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 handlers: 6 safe to run again; " in result.stdout


def test_its_code_pleases_the_formatter_the_linter_and_the_type_checker(shop: Path) -> None:
    for command in (
        ["ruff", "format", "--isolated", "--check", "."],
        ["ruff", "check", "--isolated", "--select", "E,F,I,B,UP,SIM,RUF", "."],
        ["mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "handlers", "tests"],
    ):
        result = subprocess.run(
            [sys.executable, "-m", *command], cwd=shop, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_second_handler_of_a_kind_shares_the_table_of_the_first(shop: Path) -> None:
    schema = (shop / "handlers" / "schema.sql").read_text()
    assert schema.count("create table if not exists invoices (") == 1
    for name in ("invoice_paid", "note_failure"):
        assert '"invoices",' in (shop / "handlers" / f"{name}.py").read_text()


def test_a_handler_made_from_a_recorded_event_reads_its_fields(shop: Path) -> None:
    module = (shop / "handlers" / "issue_comment_created.py").read_text()
    assert '"author_association": comment["author_association"]' in module
    assert "repository" not in module
    assert EVENT in (shop / "tests" / "test_on_issue_comment_created.py").read_text()


def test_init_again_changes_nothing_and_a_changed_file_is_named(tmp_path: Path) -> None:
    done(tmp_path, "init")
    before = content(tmp_path)
    assert "there already" in done(tmp_path, "init", ".")
    assert content(tmp_path) == before
    (tmp_path / "README.md").write_text("Mine.")
    (tmp_path / "handlers" / "billing.py").unlink()
    told = refused(tmp_path, "init")
    assert "error: README.md is there already, with other content\n" in told
    assert "nothing was written" in told


def test_a_type_that_is_probably_a_typing_error_is_told_by_check(tmp_path: Path) -> None:
    done(tmp_path, "init")
    billing = tmp_path / "handlers" / "billing.py"
    types = '@handler("invoice.payed", "invoice.sent", "invoice.*d", "anything.else")'
    billing.write_text(f"from gateway import handler\n\n\n{types}\nasync def f(event, ctx): ...\n")
    told = [line for line in done(tmp_path, "check").splitlines() if "takes" in line]
    assert told == [
        "notice: handlers.billing.f takes invoice.payed, which Stripe is not known to send: "
        "did you mean invoice.paid?"
    ]


def test_the_schema_line_of_the_routes_leads_to_the_schema(tmp_path: Path) -> None:
    done(tmp_path, "init")
    first = (tmp_path / "config" / "routes.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=routes.schema.json"
    assert (tmp_path / "config/routes.schema.json").read_text() == done(tmp_path, "schema")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["strip", "invoice.paid"], "there is no route 'strip' in config/routes.yaml: it has"),
        (["stripe", "Invoice paid"], "type: found 'Invoice paid'; expected words joined by dots"),
        (["stripe", "invoice.payed"], "did you mean invoice.paid?"),
        (["stripe", "issues.opened", "--force"], "found issues.opened, of GitHub"),
        (["stripe", "invoice.paid"], "handlers/invoice_paid.py is there already"),
        (
            ["github", "fork", "--module", "handlers.x", "--name", "note_failure"],
            "tests/test_note_failure.py is there",
        ),
        (["github", "fork", "--module", "handlers.billing.x"], "handlers/billing.py is there"),
        (["stripe", "price.updated", "--module", "json"], "json is a module of another package"),
        (["stripe", "price.updated", "--module", "handlers.class"], "--module: found"),
        (["stripe", "price.updated", "--name", "a-b"], "--name: found 'a-b'"),
        (["stripe", "price.updated", "--event", "/etc/passwd"], "a file of this project"),
        (["stripe", "price.updated", "--event", EVENT], "provider: found 'github' in the file"),
    ],
)
def test_what_cannot_be_made_is_told_and_nothing_is_written(
    shop: Path, arguments: list[str], complaint: str
) -> None:
    assert complaint in refused(shop, "new", "handler", *arguments)


def test_a_project_that_would_not_load_is_left_as_it_was(tmp_path: Path) -> None:
    done(tmp_path, "init")
    billing = tmp_path / "handlers" / "billing.py"
    billing.write_text("import no_such_module\n")
    arguments = ["new", "handler", "stripe", "price.updated", "--module", "handlers.prices.all"]
    told = refused(tmp_path, *arguments)
    assert "ModuleNotFoundError" in told
    assert "nothing was written" in told
    assert not (tmp_path / "handlers" / "prices").exists()


def test_a_module_that_a_route_names_and_that_is_missing_is_written(tmp_path: Path) -> None:
    done(tmp_path, "init")
    routes = tmp_path / "config" / "routes.yaml"
    head, tail = routes.read_text().split("  # github:", 1)
    routes.write_text(f"{head}  github:{tail.replace('  #   ', '    ')}")
    before = routes.read_bytes()
    done(tmp_path, "new", "handler", "github", "issues.opened")
    assert "async def on_issues_opened(" in (tmp_path / "handlers" / "repos.py").read_text()
    assert routes.read_bytes() == before


def test_what_cannot_be_put_into_the_routes_is_shown(tmp_path: Path) -> None:
    done(tmp_path, "init")
    routes = tmp_path / "config" / "routes.yaml"
    listed = "\n      - handlers.billing\n"
    routes.write_text(routes.read_text().replace(" [handlers.billing]\n", listed))
    told = done(tmp_path, "new", "handler", "stripe", "price.updated")
    line = "handlers: [handlers.billing, handlers.price_updated]   # of the route stripe"
    assert f"put into config/routes.yaml:  {line}\n" in told
    assert listed in routes.read_text()


def test_a_type_that_the_route_does_not_take_is_refused(tmp_path: Path) -> None:
    done(tmp_path, "init")
    routes = tmp_path / "config" / "routes.yaml"
    routes.write_text(routes.read_text().replace("# types:", "types:"))
    told = refused(tmp_path, "new", "handler", "stripe", "price.updated")
    assert "the route stripe does not take price.updated" in told
