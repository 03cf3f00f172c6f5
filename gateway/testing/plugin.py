"""The fixtures for tests of handlers. `gateway.pytest_plugin` has pytest load them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.errors import GatewayError
from gateway.ledger.migrate import SchemaFile, read_schema
from gateway.project import Project, load_project
from gateway.pytest_plugin import config_file
from gateway.settings import load_settings
from gateway.testing.background import Background
from gateway.testing.database import Database
from gateway.testing.deliver import CrashAfter, Deliver, DeliverTwice
from gateway.testing.events import MakeEvent
from gateway.testing.outgoing import Outgoing
from gateway.testing.resources import Resources
from gateway.testing.stage import Stage
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
    """The project in whose directory pytest runs, read once."""
    directory = (pytestconfig.rootpath / str(pytestconfig.getini("gateway_dir"))).resolve()
    try:
        with contextlib.chdir(directory):  # files and modules are named from there
            settings = load_settings().model_copy(update={"config": config_file(pytestconfig)})
            project = load_project(settings)
            schema = read_schema(project.config.schema)
    except GatewayError as error:
        _refuse(error)
    return TestedProject(directory=directory, project=project, schema=schema)


@pytest.fixture(scope="session")
def gateway_databases(gateway_project: TestedProject) -> Iterator[Throwaway]:
    """A Postgres for the whole run, from which every test gets a fresh database."""
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
def gateway_background() -> Iterator[Background]:
    """The event loop in which handlers run."""
    background = Background()
    yield background
    background.stop()


@pytest.fixture
def gateway_db(gateway_databases: Throwaway, gateway_background: Background) -> Iterator[Database]:
    """The test's own database: the ledger and the project's tables, empty."""
    url = gateway_background.run(gateway_databases.clone())
    database = Database(url, gateway_background)
    yield database
    database.close()
    gateway_background.run(gateway_databases.drop(url))


@pytest.fixture
def outgoing(gateway_project: TestedProject) -> Outgoing:
    """The requests of `ctx.http` and `ctx.stripe`: kept, answered, never sent."""
    return Outgoing(gateway_project.directory)


@pytest.fixture
def resources(
    gateway_project: TestedProject, gateway_background: Background
) -> Iterator[Resources]:
    """What stands in for the `@resource` functions: `resources["mailer"] = ...`."""
    resources = Resources(gateway_project.project.registry, gateway_background)
    yield resources
    resources.close()


@pytest.fixture
def gateway_stage(
    gateway_project: TestedProject,
    gateway_db: Database,
    outgoing: Outgoing,
    resources: Resources,
    gateway_background: Background,
) -> Iterator[Stage]:
    """What runs the handlers on the test's database."""
    stage = Stage(gateway_project.project, gateway_db.url, outgoing, resources)
    gateway_background.run(stage.open())
    yield stage
    gateway_background.run(stage.close())


@pytest.fixture
def make_event(gateway_project: TestedProject) -> MakeEvent:
    """Makes events: `make_event("stripe", "invoice.paid", amount_paid=500)`."""
    return MakeEvent(gateway_project.project.config, gateway_project.directory)


@pytest.fixture
def deliver(
    gateway_project: TestedProject, gateway_stage: Stage, gateway_background: Background
) -> Deliver:
    """Gives an event to a handler: `deliver(fulfil_order, event)`."""
    return Deliver(gateway_project.project, gateway_stage, gateway_background)


@pytest.fixture
def deliver_twice(deliver: Deliver) -> DeliverTwice:
    """Runs a handler twice on one event: `deliver_twice(fulfil_order, event)`."""
    return DeliverTwice(deliver)


@pytest.fixture
def crash_after(gateway_stage: Stage) -> CrashAfter:
    """Lets a run die: `with crash_after(2): deliver(fulfil_order, event)`."""
    return CrashAfter(gateway_stage)


def _refuse(error: GatewayError) -> NoReturn:
    """What is wrong with the project, without our own code around it."""
    pytest.fail(str(error), pytrace=False)
