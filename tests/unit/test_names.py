"""Names and identities: what people see, and what the ledger keeps."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import CollectorRegistry, Gauge

from gateway.base.errors import Problem
from gateway.base.model import Outcome
from gateway.base.names import NO_NAMES, Aliases, Declared, NameKind, Names, guess_names
from gateway.telemetry.logs import configure_logs, show_names
from gateway.worker.metrics import WorkerMetrics
from tests.support.scraping import Scraped

NAMES = Names(
    routes=Aliases(identities={"payments": "stripe"}, labels={"stripe": "payments"}),
    handlers=Aliases(
        identities={"shop.fulfil": "billing.paid", "billing.fulfil": "billing.paid"},
        labels={"billing.paid": "shop.fulfil"},
    ),
)


@pytest.fixture
def logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    show_names(NAMES)
    yield
    show_names(NO_NAMES)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_an_identity_stands_for_itself() -> None:
    for name in ("billing.paid", "billing.fulfil", "shop.fulfil"):
        assert NAMES.handlers.identity(name) == "billing.paid"
    assert NAMES.handlers.label("billing.paid") == "shop.fulfil"
    assert NAMES.handlers.identity("other") == NAMES.handlers.label("other") == "other"


def test_documents_are_labelled_wherever_a_route_or_handler_is_named() -> None:
    shown = NAMES.labelled(
        {
            "items": [{"route": "stripe", "handler": "billing.paid", "note": "stripe"}],
            "filter": {"handler": "billing.paid"},
            "workers": [{"handlers": ["stripe billing.paid", "github other"]}],
            "handlers": [{"route": "stripe", "handler": None}],
            "headers": {"route": "stripe"},
        }
    )
    assert shown == {
        "items": [{"route": "payments", "handler": "shop.fulfil", "note": "stripe"}],
        "filter": {"handler": "shop.fulfil"},
        "workers": [{"handlers": ["payments shop.fulfil", "github other"]}],
        "handlers": [{"route": "payments", "handler": None}],
        "headers": {"route": "stripe"},
    }
    assert NAMES.labelled(shown) == shown


def test_without_the_ledger_the_oldest_declared_name_is_the_identity() -> None:
    def problem(found: str, expected: str) -> Problem:
        return Problem(file="", key="", found=found, expected=expected)

    names = guess_names(
        [
            Declared(kind=NameKind.ROUTE, name="c", formerly=("b", "a"), problem=problem),
            Declared(kind=NameKind.HANDLER, name="x", formerly=(), problem=problem),
        ]
    )
    assert [names.routes.identity(name) for name in "abc"] == ["a", "a", "a"]
    assert names.routes.label("a") == "c"
    assert names.handlers == Aliases()


@pytest.mark.usefixtures("logs")
def test_log_lines_show_current_names(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for format in ("json", "console"):
        configure_logs(format, "info")
        structlog.get_logger().bind(route="stripe").info("done", handler="billing.paid", n="stripe")
    first, second = capfdbinary.readouterr().err.splitlines()
    line = json.loads(first)
    assert (line["route"], line["handler"], line["n"]) == ("payments", "shop.fulfil", "stripe")
    assert b"payments" in second


async def test_metrics_show_current_names() -> None:
    metrics = WorkerMetrics()
    metrics.names = NAMES
    metrics.ended("stripe", "billing.paid", Outcome.DONE)
    own = CollectorRegistry()
    Gauge("shop_orders", "What a handler counts.", ["route"], registry=own).labels("stripe").set(1)
    metrics.registry.register(own)
    scraped = Scraped((await metrics.show()).decode())
    labels = {"route": "payments", "handler": "shop.fulfil", "outcome": "done"}
    assert scraped.values("gateway_attempts_total", **labels) == [1.0]
    assert "billing.paid" not in scraped.labels()
    assert scraped.values("shop_orders", route="stripe") == [1.0]
