"""The SQL of docs/uninstall.md and docs/own-tables.md does what these pages say."""

import re
import subprocess
from pathlib import Path
from typing import Final

import asyncpg

from gateway.config.routes import load_config
from gateway.dev.new_project import plan_project
from gateway.ledger.connection import connect
from gateway.ledger.migrate import check_version, migrate
from tests.support.databases import run_sql
from tests.support.ledger import Reader, claim_all, make_claim

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCK: Final = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USERS: Final = "select relname from pg_class where relnamespace = 'public'::regnamespace"


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


async def test_the_schema_is_dropped_and_nothing_else(database_url: str, ledger: Reader) -> None:
    look, drop, _ = blocks("uninstall.md")
    await claim_all(database_url, [make_claim("evt_1")])
    assert await ledger.rows(look) == []
    await ledger.run("create table public.mine (id int primary key)")
    await ledger.run("create table gateway.alembic_version (version_num text)")
    await ledger.run("create view public.paid as select event_id from gateway.events")
    await ledger.run("create table public.notes (worker uuid references gateway.workers (id))")
    assert sorted(row["goes_with_it"] for row in await ledger.rows(look)) == [
        "foreign key notes_worker_fkey of notes",
        "table gateway.alembic_version",
        "view paid",
    ]
    await run_sql(database_url, drop)
    assert await ledger.value("select to_regnamespace('gateway')") is None
    left = {row["relname"] for row in await ledger.rows(f"{USERS} and relkind = 'r'")}
    assert left >= {"effects", "mine", "notes"}
    connection = await connect(database_url, name="test")
    await migrate(connection, [])
    await check_version(connection)
    await connection.close()


def test_the_routes_of_a_test_have_the_schema_of_the_migrations(tmp_path: Path) -> None:
    """The shell line of docs/own-tables.md, on the routes that `gateway init` writes."""
    for name, text in plan_project(["stripe"]).items():
        if name.startswith(("config/", "tests/")):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
    [line] = re.findall(r"^\{ echo .*$", (DOCS / "own-tables.md").read_text("utf-8"), re.MULTILINE)
    subprocess.run(["sh", "-euc", line], cwd=tmp_path, check=True)
    config = load_config(tmp_path / "tests" / "routes.yaml")
    assert config.schema == (Path("tests/schema.sql"),)
    assert [route.name for route in config.routes] == ["stripe"]


async def test_a_role_with_the_name_of_the_schema_has_it_as_its_default(database_url: str) -> None:
    """The trap of docs/own-tables.md. The suite's own role has that name."""
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select current_user") == "gateway"
    assert await connection.fetchval("select current_schema()") == "gateway"
    await connection.close()
    [path] = blocks("own-tables.md")
    setting = path.partition(" set ")[2].strip().rstrip(";").replace(" = ", "=")
    connection = await asyncpg.connect(f"{database_url}&options=-c{setting.replace('=', '%3D')}")
    assert await connection.fetchval("select current_schema()") == "public"
    await connection.close()
