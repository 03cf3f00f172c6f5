"""One file per target."""

from importlib import import_module
from typing import Final

from tests.fuzz.target import Target

NAMES: Final = (
    *(
        "heads",
        "signatures",
        "greetings",
        "bodies",
        "forms",
        "jobs",
        "tokens",
        "order_keys",
        "times",
    ),
    *("forwarded", "api", "spool", "routes", "recorded", "wire"),
)


def load(name: str) -> Target:
    """The target of this name. Imported late: what is fuzzed is instrumented at its import."""
    target: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return target
