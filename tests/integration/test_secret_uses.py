"""Which secret was used when: in the ledger, in `gateway status`, and as the doctor says it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config.settings import Settings
from gateway.ledger.connection import open_pool
from gateway.ledger.reloads import DONE, REFUSED, SecretUses, forget_reload, keep_reload
from gateway.ledger.statistics import keeping
from gateway.operations.health.doctor import examine
from gateway.operations.health.findings import read_installation
from gateway.operations.health.reading import read_snapshot_alone
from gateway.operations.health.snapshot import HealthSnapshot, RouteState
from tests.integration.test_status import shown, told
from tests.support.ledger import Reader
from tests.support.workers import make_settings

DAY = timedelta(days=1)
ROUTES = """
routes:
  stripe:
    provider: stripe
    secrets: {secrets}
"""
BOTH = "[env:NEW, env:OLD]"


def now() -> datetime:
    return datetime.now(UTC)


def write_routes(settings: Settings, secrets: str) -> None:
    settings.config.write_text(ROUTES.format(secrets=secrets))


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Settings:
    settings = make_settings(
        database_url,
        redis_url=SecretStr(redis_url),
        data_dir=tmp_path,
        config=tmp_path / "routes.yaml",
    )
    write_routes(settings, BOTH)
    return settings


async def use(url: str, *used: tuple[str, datetime], times: int = 1) -> None:
    """As a serve process that ends at once."""
    uses = SecretUses()
    async with keeping(uses, url=url, every=timedelta(hours=1)):
        for secret, at in used:
            for _ in range(times):
                uses.of("stripe", secret).note(at)


async def put(ledger: Reader, secret: str, last_used: timedelta) -> None:
    await ledger.run(
        "insert into gateway.secret_uses values"
        " ('stripe', $1, now() - interval '90 d', now() - $2::interval, 5)",
        secret,
        last_used,
    )


async def attention(settings: Settings) -> str:
    """What it says of secrets: here nobody works."""
    lines = told(await read_snapshot_alone(settings)).splitlines()
    return "\n".join(line for line in lines if "no worker is alive" not in line)


def only(status: HealthSnapshot) -> RouteState:
    [route] = status.routes
    return route


def lines(status: HealthSnapshot) -> list[str]:
    """What the screen says of secrets."""
    found = [line.partition("Secrets ") for line in shown(status).splitlines()]
    return [text.strip() for _, mark, text in found if mark]


async def test_processes_add_up_and_a_restart_forgets_nothing(
    settings: Settings, database_url: str
) -> None:
    earlier, later = now() - 2 * DAY, now() - DAY
    await asyncio.gather(
        *(use(database_url, ("env:OLD", earlier), ("env:NEW", later), times=5) for _ in range(4))
    )
    await use(database_url, ("env:NEW", earlier), times=2)  # by a process whose clock is behind
    new, old = only(await read_snapshot_alone(settings)).secrets
    assert (new.secret, new.uses, new.last_used_at) == ("env:NEW", 22, later)
    assert (old.secret, old.uses, old.last_used_at) == ("env:OLD", 20, earlier)
    assert new.first_used_at == later


async def test_what_the_ledger_does_not_take_is_added_later(
    settings: Settings, database_url: str
) -> None:
    uses = SecretUses()
    uses.of("stripe", "env:NEW").note(now())
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=5)
    closed = await open_pool(database_url, name="test", size=1, command_timeout_s=5)
    await closed.close()
    with pytest.raises(Exception, match="closed"):
        await uses.flush(closed)
    uses.of("stripe", "env:NEW").note(now())
    await uses.flush(pool)
    await uses.flush(pool)
    await pool.close()
    assert only(await read_snapshot_alone(settings)).secrets[0].uses == 2


async def test_no_clock_can_name_a_time_to_come(settings: Settings, database_url: str) -> None:
    await use(database_url, ("env:NEW", now() + 5 * DAY))
    used_at = only(await read_snapshot_alone(settings)).secrets[0].last_used_at
    assert used_at is not None
    assert used_at <= now()


async def test_what_nothing_uses_is_forgotten_in_the_end(database_url: str, ledger: Reader) -> None:
    await put(ledger, "env:GONE", 401 * DAY)
    await put(ledger, "env:BACK", 401 * DAY)
    await put(ledger, "env:KEPT", 399 * DAY)
    await use(database_url, ("env:BACK", now()))
    rows = await ledger.rows("select secret, uses from gateway.secret_uses order by secret")
    assert [tuple(row.values()) for row in rows] == [("env:BACK", 6), ("env:KEPT", 5)]


async def test_status_says_which_secrets_there_are_and_which_one_can_go(
    settings: Settings, ledger: Reader
) -> None:
    assert lines(await read_snapshot_alone(settings)) == [
        "stripe: env:NEW never used; env:OLD never used"
    ]
    await put(ledger, "env:OLD", 2 * DAY)
    await put(ledger, "env:NEW", timedelta(minutes=3))
    told_then = lines(await read_snapshot_alone(settings))
    assert told_then == ["stripe: env:NEW used 3m ago; env:OLD used 2d ago"]
    await ledger.run(
        "update gateway.secret_uses set last_used_at = now() - interval '4 d 1 h'"
        " where secret = 'env:OLD'"
    )
    told_then = lines(await read_snapshot_alone(settings))
    assert told_then == ["stripe: env:NEW used 3m ago; env:OLD used 4d ago: it can go"]
    assert await attention(settings) == ""


async def test_a_route_at_rest_is_not_told_to_throw_its_secret_away(
    settings: Settings, ledger: Reader
) -> None:
    await put(ledger, "env:NEW", 20 * DAY)
    await put(ledger, "env:OLD", 40 * DAY)
    told_then = lines(await read_snapshot_alone(settings))
    assert told_then == ["stripe: env:NEW used 20d ago; env:OLD used 40d ago: it can go"]


async def test_one_secret_that_lasts_is_in_the_json_only(settings: Settings) -> None:
    write_routes(settings, "[env:ONE]")
    status = await read_snapshot_alone(settings)
    assert only(status).secrets[0].secret == "env:ONE"
    assert lines(status) == []


def expiring(new: str, old: timedelta) -> str:
    return f"[{new}, {{secret: env:OLD, expires_at: {(now() + old).isoformat()}}}]"


async def test_an_expiry_is_told_where_it_matters(settings: Settings, ledger: Reader) -> None:
    hour = timedelta(hours=1)
    write_routes(settings, expiring("env:NEW", 3 * DAY + hour))
    assert await attention(settings) == ""
    [line] = lines(await read_snapshot_alone(settings))
    assert line.endswith("env:OLD never used, expires in 3d")
    await put(ledger, "env:OLD", 2 * hour)
    assert await attention(settings) == (
        "warning: env:OLD of stripe expires in 3d, and was used 2h ago"
        " / the sender still signs with it: change it there, or move `expires_at`"
    )
    write_routes(settings, expiring("env:NEW", 8 * DAY))
    assert await attention(settings) == ""
    write_routes(settings, expiring("env:NEW", -3 * DAY))
    assert await attention(settings) == (
        "warning: env:OLD of stripe expired 3d ago / take it out of routes.yaml"
    )
    [line] = lines(await read_snapshot_alone(settings))
    assert line.endswith("env:OLD used 2h ago, expired 3d ago: it can go")


async def test_that_none_will_be_left_is_a_problem_before_and_after(
    settings: Settings, ledger: Reader
) -> None:
    soon = (now() + DAY + timedelta(hours=3)).isoformat()
    gone = f"{{secret: env:NEW, expires_at: {(now() - DAY).isoformat()}}}"
    write_routes(settings, f"[{gone}, {{secret: env:OLD, expires_at: {soon}}}]")
    assert (await attention(settings)).startswith(
        "problem: env:OLD of stripe expires in 1d2h, and there is no other one then"
    )
    write_routes(settings, expiring(gone, -DAY))
    assert await attention(settings) == (
        "problem: every secret of stripe has expired: all its requests are refused"
        " / put in what the sender signs with now: docs/secrets.md"
    )
    [line] = lines(await read_snapshot_alone(settings))
    assert "it can go" not in line


async def found(settings: Settings, **environ: str) -> list[str]:
    assert settings.database_url is not None
    variables = {
        "GATEWAY_DATABASE_URL": settings.database_url.get_secret_value(),
        "GATEWAY_CONFIG": str(settings.config),
        "GATEWAY_DATA_DIR": str(settings.data_dir),
        **environ,
    }
    installation, findings = read_installation(variables)
    findings += await examine(installation)
    return [
        f"{finding['level']}: {finding['found']}"
        for finding in findings
        if finding["about"] in {"route stripe", "reloads"}
    ]


async def test_the_doctor_tells_what_is_not_used_and_what_expires(
    settings: Settings, ledger: Reader
) -> None:
    environ: dict[str, Any] = {"NEW": "whsec_new_0123456789", "OLD": "whsec_old_0123456789"}
    assert "ok: 2 secrets in order" in await found(settings, **environ)
    await put(ledger, "env:OLD", timedelta(minutes=5))
    never = "warning: env:NEW has never verified a request, while another secret has"
    assert never in await found(settings, **environ)
    await put(ledger, "env:NEW", timedelta(minutes=1))
    await ledger.run(
        "update gateway.secret_uses set last_used_at = now() - interval '5 d'"
        " where secret = 'env:OLD'"
    )
    last = "warning: env:OLD was last used 5d ago, another secret since"
    assert last in await found(settings, **environ)
    write_routes(settings, expiring("env:NEW", -DAY))
    expired = await found(settings, NEW=environ["NEW"])  # the old one is gone, as it may be
    assert "warning: env:OLD of stripe expired 1d ago" in expired
    assert not any(line.startswith("problem") for line in expired)
    write_routes(settings, f"[{{secret: env:NEW, expires_at: {(now() - DAY).isoformat()}}}]")
    assert (
        "problem: every secret of stripe has expired: all its requests are refused"
        in await found(settings)
    )


async def test_a_refused_reload_is_told_until_one_is_done_or_the_process_ends(
    settings: Settings, ledger: Reader, database_url: str
) -> None:
    pool = await open_pool(database_url, name="test", size=1, command_timeout_s=5)
    await ledger.run(
        "insert into gateway.reloads values ('gone', 1, now() - interval '8 d', 'refused', 'x')"
    )
    await keep_reload(pool, REFUSED, "file:/a, which is empty")
    status = await read_snapshot_alone(settings)
    [reload] = status.reloads
    assert (reload.outcome, reload.error) == ("refused", "file:/a, which is empty")
    assert "goes on with the secrets that it had: file:/a, which is empty" in told(status)
    assert any("refused a reload" in line for line in await found(settings))
    await keep_reload(pool, DONE, None)
    assert await attention(settings) == ""
    await forget_reload(pool)
    assert (await read_snapshot_alone(settings)).reloads == []
    await pool.close()
