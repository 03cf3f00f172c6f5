"""Routes: inbound URLs with their provider, secrets, handlers and policies."""

from gateway.config.routes.alerts import AlertDestinations, Alerts
from gateway.config.routes.changes import find_changes
from gateway.config.routes.config import (
    Config,
    Route,
    check_alerts,
    check_api_keys,
    check_hook_keys,
    check_secrets,
    check_verify_tokens,
    load_config,
    queue_path,
    valid_references,
)
from gateway.config.routes.destinations import check_destinations
from gateway.config.routes.file import json_schema
from gateway.config.routes.forward import Forward, is_forward
from gateway.config.routes.keys import check_keys, find_open_queues

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
    "is_forward",
    "json_schema",
    "load_config",
    "queue_path",
    "valid_references",
]
