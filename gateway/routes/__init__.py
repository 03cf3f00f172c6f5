"""Routes: which URL belongs to which provider, with what secrets, handlers and policy."""

from gateway.routes.alerts import AlertDestinations, Alerts
from gateway.routes.changes import find_changes
from gateway.routes.config import (
    Config,
    Route,
    check_alerts,
    check_api_keys,
    check_hook_keys,
    check_secrets,
    check_verify_tokens,
    load_config,
    valid_references,
)
from gateway.routes.destinations import check_destinations
from gateway.routes.file import json_schema
from gateway.routes.forward import Forward
from gateway.routes.keys import check_keys, find_open_queues

__all__ = [
    "AlertDestinations",
    "Alerts",
    "Config",
    "Forward",
    "Route",
    "check_alerts",
    "check_api_keys",
    "check_destinations",
    "check_hook_keys",
    "check_keys",
    "check_secrets",
    "check_verify_tokens",
    "find_changes",
    "find_open_queues",
    "json_schema",
    "load_config",
    "valid_references",
]
