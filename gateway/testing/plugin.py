"""The fixtures for tests of handlers. `gateway.pytest_plugin` registers this module."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.base.errors import GatewayError
from gateway.config.project import Project, load_project
from gateway.config.settings import load_settings
from gateway.ledger.migrate import SchemaFile, read_schema
from gateway.pytest_plugin import config_file
from gateway.testing.deliver import CrashAfter, Deliver, DeliverTwice
from gateway.testing.events import MakeEvent
from gateway.testing.fixtures import ALLOW, Background, Connections, Database, Resources
from gateway.testing.guard import GuardedLoop
from gateway.testing.outgoing import Outgoing
from gateway.testing.runner import DeliveryRunner
from gateway.testing.throwaway import Throwaway


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedProject:
    """The user's project: its routes, its handlers, its schema."""

    __test__ = False

    directory: Path
    project: Project
    schema: tuple[SchemaFile, ...]


@pytest.fixture(scope="session")
def gateway_project(pytestconfig: pytest.Config) -> TestedProject:
    """The project in whose directory pytest runs. It is read once per session."""
    directory = (pytestconfig.rootpath / str(pytestconfig.getini("gateway_dir"))).resolve()
    try:
        with contextlib.chdir(directory):  # relative file and module names are resolved from there
            settings = load_settings().model_copy(update={"config": config_file(pytestconfig)})
            project = load_project(settings)
            schema = read_schema(project.config.schema)
    except GatewayError as error:
        _refuse(error)
    return TestedProject(directory=directory, project=project, schema=schema)


@pytest.fixture(scope="session")
def gateway_databases(gateway_project: TestedProject) -> Iterator[Throwaway]:
    """A Postgres server for the whole session, from which every test gets a fresh database."""
    settings = gateway_project.project.settings
    url = settings.test_database_url
    throwaway = Throwaway(
        gateway_project.schema,
        server_url=None if url is None else url.get_secret_value(),
        engines=settings.engines,
    )
    try:
        throwaway.start()
    except GatewayError as error:
        _refuse(error)
    yield throwaway
    throwaway.stop()


@pytest.fixture(scope="session")
def gateway_background(gateway_project: TestedProject) -> Iterator[Background]:
    """The event loop in which handlers run."""
    loop = GuardedLoop()
    loop.root = gateway_project.directory
    background = Background(loop)
    yield background
    background.stop()


@pytest.fixture
def gateway_db(gateway_databases: Throwaway, gateway_background: Background) -> Iterator[Database]:
    """The test's own database, with the ledger and the project's tables, empty."""
    url = gateway_background.run(gateway_databases.clone())
    database = Database(url, gateway_background)
    yield database
    database.close()
    gateway_background.run(gateway_databases.drop(url))


@pytest.fixture
def outgoing(gateway_project: TestedProject) -> Outgoing:
    """The requests of `ctx.http` and `ctx.stripe`.

    They are recorded and answered, but never sent.
    """
    return Outgoing(gateway_project.directory)


@pytest.fixture
def resources(
    gateway_project: TestedProject, gateway_background: Background
) -> Iterator[Resources]:
    """Stand-ins for the `@resource` functions: `resources["mailer"] = ...`."""
    resources = Resources(gateway_project.project.registry, gateway_background)
    yield resources
    resources.close()


@pytest.fixture
def gateway_runner(
    request: pytest.FixtureRequest,
    gateway_project: TestedProject,
    gateway_db: Database,
    outgoing: Outgoing,
    resources: Resources,
    gateway_background: Background,
) -> Iterator[DeliveryRunner]:
    """The environment that runs the handlers on the test's database."""
    hosts = [*map(str, request.config.getini(ALLOW))]
    hosts += [host for mark in request.node.iter_markers(ALLOW) for host in mark.args]
    connections = Connections(gateway_project.directory, resources, hosts)
    opening = DeliveryRunner.open(
        gateway_project.project, gateway_db.url, outgoing, resources, connections
    )
    runner = gateway_background.run(opening)
    yield runner
    gateway_background.run(runner.close())


@pytest.fixture
def make_event(gateway_project: TestedProject) -> MakeEvent:
    """Create events: `make_event("stripe", "invoice.paid", amount_paid=500)`."""
    return MakeEvent(gateway_project.project.config, gateway_project.directory)


@pytest.fixture
def deliver(
    gateway_project: TestedProject, gateway_runner: DeliveryRunner, gateway_background: Background
) -> Deliver:
    """Deliver an event to a handler: `deliver(fulfil_order, event)`."""
    return Deliver(gateway_project.project, gateway_runner, gateway_background)


@pytest.fixture
def deliver_twice(deliver: Deliver) -> DeliverTwice:
    """Run a handler twice on one event: `deliver_twice(fulfil_order, event)`."""
    return DeliverTwice(deliver)


@pytest.fixture
def crash_after(gateway_runner: DeliveryRunner) -> CrashAfter:
    """Make a run crash: `with crash_after(2): deliver(fulfil_order, event)`."""
    return CrashAfter(gateway_runner)


class ShortNames:
    """A plugin of fixtures with short names, which other plugins may use too."""

    @pytest.fixture
    def db(self, gateway_db: Database) -> Database:
        """The test's own database: `db.fetchval("select count(*) from orders")`."""
        return gateway_db


def _refuse(error: GatewayError) -> NoReturn:
    """Fail the test with the error in the project, without a traceback."""
    pytest.fail(str(error), pytrace=False)
