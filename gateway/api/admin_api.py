"""The Admin API of a `serve` process, which exists if there is a token for it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.routing import BaseRoute

from gateway.api.http import routes
from gateway.api.operations import OPERATIONS
from gateway.config.project import Project, database_url
from gateway.ledger.budget import OFFICE_CONNECTIONS
from gateway.ledger.connection import PREPARED_ONCE, Pool, open_pool
from gateway.operations.context import BackgroundTasks, OperationContext
from gateway.receive.guard import TokenGuard, secret_of

COMMAND_S: Final = 30.0


class AdminApi:
    """Serves operations over HTTP, and continues long ones in the background."""

    def __init__(
        self,
        project: Project,
        *,
        wake: Callable[[Sequence[int]], Awaitable[object]],
        guard: TokenGuard,
        has_console: bool,
    ) -> None:
        self._project = project
        self._wake = wake
        self._has_console = has_console
        self._background = BackgroundTasks()
        self._pool: Pool | None = None
        settings = project.settings
        token, read_token = secret_of(settings.admin_token), secret_of(settings.read_token)
        self.routes: list[BaseRoute] = []
        """Empty if there is no token."""
        if token is not None or read_token is not None:
            queues = [queue.label for queue in project.config.open_queues]
            self.routes = routes(
                OPERATIONS,
                token=token,
                read_token=read_token,
                guard=guard,
                open_office=self.office,
                queues=queues,
            )

    def take(self, project: Project) -> None:
        """Use a project whose secrets were reloaded."""
        self._project = project

    async def open(self) -> None:
        if self.routes or self._has_console:
            self._pool = await open_pool(
                database_url(self._project.settings),
                name="gateway api",
                size=OFFICE_CONNECTIONS,
                command_timeout_s=COMMAND_S,
                **PREPARED_ONCE,
            )

    async def close(self) -> None:
        """Stop background work, and close the connection pool."""
        await self._background.stop()
        if self._pool is not None:
            self._pool.terminate()

    async def _tell(self, delivery_ids: Sequence[int]) -> None:
        if delivery_ids:
            await self._wake(delivery_ids)

    def office(self, actor: str) -> OperationContext:
        """Return the context in which the operations of one caller run."""
        assert self._pool is not None  # noqa: S101 (requests only come after the start)
        return OperationContext(
            settings=self._project.settings,
            ledger=self._pool,
            actor=actor,
            wake=self._tell,
            background=self._background,
            loaded=self._project,
        )
