"""Offers the fixtures of `gateway.testing` in projects that have routes.

pytest imports this in every run of an environment in which the gateway is installed, so it imports
nothing of ours until there is a project. It has no assertions: PYTEST_DONT_REWRITE
"""

import importlib
import os
import sys
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "gateway_dir",
        "The directory in which `gateway` is started, seen from pytest's rootdir: handlers are"
        " imported from there.",
        default=".",
    )
    parser.addini(
        "gateway_config",
        "The file with the routes, seen from gateway_dir. Default: GATEWAY_CONFIG, or"
        " config/routes.yaml.",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    directory = config.rootpath / str(config.getini("gateway_dir"))
    if not (directory / config_file(config)).is_file():
        return
    if str(directory) not in sys.path:  # so that tests can import the handlers
        sys.path.insert(0, str(directory))
    _register(config, "gateway.testing.plugin")
    if not config.pluginmanager.has_plugin("django"):  # which has a fixture `db`
        _register(config, "gateway.testing.short_names")


def config_file(config: pytest.Config) -> Path:
    """The file with the routes, seen from the project's directory."""
    given = str(config.getini("gateway_config")) or os.environ.get("GATEWAY_CONFIG")
    return Path(given or "config/routes.yaml")


def _register(config: pytest.Config, module: str) -> None:
    config.pluginmanager.register(importlib.import_module(module), module)
