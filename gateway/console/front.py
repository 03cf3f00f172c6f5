"""The console of a `serve` process, where somebody may come in."""

from importlib.metadata import version
from ipaddress import ip_address
from typing import Final

from starlette.routing import BaseRoute

from gateway.api.front import FrontOffice
from gateway.console.access import Access
from gateway.console.site import Site
from gateway.console.visit import PREFIX
from gateway.receive.address import Addresses
from gateway.receive.guard import secret_of
from gateway.settings import Settings

PAGES: Final = (
    (f"{PREFIX}/", "Overview"),
    (f"{PREFIX}/events", "Events"),
    (f"{PREFIX}/dead", "Dead letters"),
    (f"{PREFIX}/effects", "Unknown effects"),
    (f"{PREFIX}/orders", "Bulk orders"),
    (f"{PREFIX}/rejected", "Refused"),
    (f"{PREFIX}/handlers", "Handlers"),
    (f"{PREFIX}/routes", "Routes"),
    (f"{PREFIX}/reconcile", "Reconcile"),
    (f"{PREFIX}/system", "System"),
)


def console_access(settings: Settings) -> Access:
    """Nobody without a token, but on the loopback of a `gateway up`."""
    return Access(
        admin=secret_of(settings.admin_token),
        reader=secret_of(settings.read_token),
        is_open=settings.dev_secrets is not None and _is_loopback(settings.host),
    )


def console_routes(
    settings: Settings, access: Access, front: FrontOffice, addresses: Addresses
) -> list[BaseRoute]:
    """Its pages; none where nobody may come."""
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
