"""Pytest plugin that registers the fixtures of `gateway.testing` in projects that have routes.

pytest imports this module in every run of an environment in which the gateway is installed, so it
imports nothing else of the gateway until it has found a project. It has no assertions:
PYTEST_DONT_REWRITE
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
    parser.addini(
        "gateway_allow_hosts",
        "Servers to which handlers may connect by themselves: host, host:port or a socket's path.",
        type="linelist",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gateway_allow_hosts(*hosts): servers to which the handlers of a test may connect by"
        " themselves: host, host:port or a socket's path; * is any text",
    )
    directory = config.rootpath / str(config.getini("gateway_dir"))
    if not (directory / config_file(config)).is_file():
        return
    if str(directory) not in sys.path:  # so that tests can import the handlers
        sys.path.insert(0, str(directory))
    plugin = importlib.import_module("gateway.testing.plugin")
    config.pluginmanager.register(plugin, plugin.__name__)
    if not config.pluginmanager.has_plugin("django"):  # pytest-django has a fixture `db` too
        config.pluginmanager.register(plugin.ShortNames())


def config_file(config: pytest.Config) -> Path:
    """Return the path of the routes file, relative to the project's directory."""
    given = str(config.getini("gateway_config")) or os.environ.get("GATEWAY_CONFIG")
    return Path(given or "config/routes.yaml")
