"""The pages of the console, and the actions of their forms."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response

from gateway.console.pages.bulk import list_bulk, resume_bulk, show_bulk, stop_bulk
from gateway.console.pages.dead import act_on_all, act_on_ticked, show_all, show_dead
from gateway.console.pages.effects import (
    resolve_all_effects,
    resolve_effect,
    resolve_ticked_effects,
    show_all_effects,
    show_effects,
)
from gateway.console.pages.events import (
    discard_delivery,
    replay_delivery,
    reveal_event,
    save_event,
    show_event,
    show_events,
)
from gateway.console.pages.handlers import pause_handler, resume_handler, show_handlers
from gateway.console.pages.overview import show_overview
from gateway.console.pages.reconcile import run_reconcile, show_reconcile, show_reconciliation
from gateway.console.pages.rejected import (
    release_rejected,
    show_one_rejected,
    show_rejected,
)
from gateway.console.pages.routes import send_test, show_routes
from gateway.console.pages.system import show_doctor, show_system
from gateway.console.request import ConsoleRequest

Page = Callable[[ConsoleRequest], Awaitable[Response]]

PAGES: Final[Mapping[str, Page]] = {
    "/": show_overview,
    "/events": show_events,
    "/event": show_event,
    "/event/fixture.json": save_event,
    "/dead": show_dead,
    "/dead/all": show_all,
    "/effects": show_effects,
    "/effects/all": show_all_effects,
    "/bulk": list_bulk,
    "/bulk/{bulk_id}": show_bulk,
    "/handlers": show_handlers,
    "/rejected": show_rejected,
    "/rejected/{id}": show_one_rejected,
    "/routes": show_routes,
    "/reconcile": show_reconcile,
    "/reconcile/{id}": show_reconciliation,
    "/system": show_system,
    "/system/doctor": show_doctor,
}
ACTIONS: Final[Mapping[str, Page]] = {
    "/event/reveal": reveal_event,
    "/routes/{route}/test": send_test,
    "/deliveries/{delivery_id}/replay": replay_delivery,
    "/deliveries/{delivery_id}/discard": discard_delivery,
    "/deliveries/{delivery_id}/effects": resolve_effect,
    "/effects/ticked": resolve_ticked_effects,
    "/effects/all": resolve_all_effects,
    "/dead/ticked": act_on_ticked,
    "/dead/all": act_on_all,
    "/bulk/{bulk_id}/stop": stop_bulk,
    "/bulk/{bulk_id}/resume": resume_bulk,
    "/handlers/pause": pause_handler,
    "/handlers/resume": resume_handler,
    "/reconcile": run_reconcile,
    "/rejected/release": release_rejected,
}
