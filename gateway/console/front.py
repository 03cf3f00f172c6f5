"""The console routes of a `serve` process, if access to the console is configured."""

from importlib.metadata import version
from ipaddress import ip_address
from typing import Final

from starlette.routing import BaseRoute

from gateway.api.admin_api import AdminApi
from gateway.config.settings import Settings
from gateway.console.request import PREFIX
from gateway.console.sessions import Access
from gateway.console.site import Site
from gateway.http.client_address import Addresses
from gateway.receive.guard import secret_of

PAGES: Final = (
    (f"{PREFIX}/", "Overview"),
    (f"{PREFIX}/events", "Events"),
    (f"{PREFIX}/dead", "Dead letters"),
    (f"{PREFIX}/effects", "Unknown effects"),
    (f"{PREFIX}/bulk", "Bulk operations"),
    (f"{PREFIX}/rejected", "Refused"),
    (f"{PREFIX}/handlers", "Handlers"),
    (f"{PREFIX}/routes", "Routes"),
    (f"{PREFIX}/reconcile", "Reconcile"),
    (f"{PREFIX}/system", "System"),
)


def console_access(settings: Settings) -> Access:
    """Return the access rules.

    Without a token only a `gateway up` on a loopback address is open.
    """
    return Access(
        admin=secret_of(settings.admin_token),
        reader=secret_of(settings.read_token),
        is_open=settings.dev_secrets is not None and _is_loopback(settings.host),
    )


def console_routes(
    settings: Settings, access: Access, front: AdminApi, addresses: Addresses
) -> list[BaseRoute]:
    """Return the routes of the console, or no routes if it is off."""
    site = Site(
        access,
        addresses=addresses,
        open_office=front.office,
        is_secure=(settings.public_url or "").startswith("https://"),
        shared={
            "pages": PAGES,
            "version": version("webhook-gateway-server"),
            "has_login": not access.is_open,
            "base_url": _base_url(settings),
        },
    )
    return site.routes


def _base_url(settings: Settings) -> str:
    return settings.public_url or f"http://{settings.host}:{settings.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
