"""What of an edited routes.yaml a running process can take over, and what it cannot."""

from typing import Any

import pytest

from gateway.config.routes import find_changes

BEFORE: dict[str, Any] = {
    "defaults": {"timeout": "60s"},
    "routes": {
        "one": {"provider": "stripe", "secrets": ["env:A"], "handlers": ["a", "b"]},
        "jobs": {"provider": "publish", "tokens": ["env:T"]},
    },
}


def edited(**routes: dict[str, Any] | None) -> dict[str, Any]:
    changed = {**BEFORE["routes"], **routes}
    return {**BEFORE, "routes": {name: route for name, route in changed.items() if route}}


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (BEFORE, []),
        (edited(one={**BEFORE["routes"]["one"], "secrets": ["env:B", {"secret": "env:A"}]}), []),
        (edited(jobs={"provider": "publish", "tokens": ["file:/t"]}), []),
        (edited(jobs={"provider": "publish"}), ["routes.jobs.tokens"]),
        (edited(one={**BEFORE["routes"]["one"], "handlers": ["a"]}), ["routes.one.handlers"]),
        (edited(one={**BEFORE["routes"]["one"], "path": "/x"}), ["routes.one.path"]),
        (edited(one=None), ["routes.one"]),
        (edited(two={"provider": "github", "secrets": ["env:G"]}), ["routes.two"]),
        (
            {"defaults": {"timeout": "1s"}, "schema": ["a.sql"], "routes": BEFORE["routes"]},
            ["defaults.timeout", "schema"],
        ),
    ],
)
def test_only_lists_of_secrets_can_change(after: dict[str, Any], changes: list[str]) -> None:
    assert find_changes(BEFORE, after) == changes
    assert find_changes(after, BEFORE) == changes
