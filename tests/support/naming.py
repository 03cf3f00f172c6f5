"""Projects of before and after a rename, on one ledger."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.api.operation_client import LocalOperationClient
from gateway.base.names import Names
from gateway.config.project import Project
from gateway.config.registry import Registry, Subscription
from gateway.config.routes import Config
from gateway.ledger.claims import Claimer
from gateway.ledger.connection import connect
from gateway.ledger.encryption import ClaimCodec, vault_of
from gateway.ledger.names import load_names, settle_names
from gateway.operations.context import OperationContext
from gateway.privacy.encryption import KeyRing
from tests.support.workers import make_config, make_settings


def make_project(
    url: str,
    *subscriptions: Subscription,
    config: Config | None = None,
    ring: KeyRing | None = None,
) -> Project:
    """What a process of this code would load."""
    return Project(
        settings=make_settings(url),
        config=config or make_config(),
        registry=Registry(subscriptions),
        secrets={},
        api_keys={},
        ring=ring or KeyRing(),
    )


async def settle(project: Project, *, keep: bool = True) -> Names:
    """Resolve the names of a project, as a process does when it starts."""
    url = project.settings.database_url
    assert url is not None
    connection = await connect(url.get_secret_value(), name="test")
    try:
        return await settle_names(connection, project.declared_names(), keep=keep)
    finally:
        await connection.close()


async def read_names(url: str) -> Names:
    """Return what the ledger knows of names."""
    connection = await connect(url, name="test")
    try:
        return await load_names(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def claiming_as(project: Project) -> AsyncIterator[Claimer]:
    """A claimer of a `serve` of this project."""
    identified = project.identified(await settle(project))
    codec = ClaimCodec(vault_of(identified.config, identified.ring), identified.names)
    url = project.settings.database_url
    assert url is not None
    claimer = Claimer(url.get_secret_value(), on_accepted=lambda _: None, codec=codec)
    await claimer.start()
    try:
        yield claimer
    finally:
        await claimer.stop()


@asynccontextmanager
async def desk_of(project: Project) -> AsyncIterator[LocalOperationClient]:
    """Where a person of this project gives orders."""
    url = project.settings.database_url
    assert url is not None
    connection = await connect(url.get_secret_value(), name="test")

    async def wake(_: Sequence[int]) -> None:
        pass

    try:
        yield LocalOperationClient(
            OperationContext(
                settings=project.settings,
                ledger=connection,
                actor="ann",
                wake=wake,
                loaded=project,
            )
        )
    finally:
        await connection.close()


def counts(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    """Rows as tuples, in order."""
    return sorted(tuple(row[column] for column in columns) for row in rows)
