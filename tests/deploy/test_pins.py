"""The pins of pyproject.toml and of deploy/constraints.txt agree."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.files import PROJECT, text_of


def _pins() -> dict[str, str]:
    requirements = [Requirement(line) for line in text_of("constraints.txt").split()]
    return {canonicalize_name(item.name): str(item.specifier) for item in requirements}


def _required() -> list[Requirement]:
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    groups = [*project["optional-dependencies"].values(), *document["dependency-groups"].values()]
    return [Requirement(text) for group in (project["dependencies"], *groups) for text in group]


def test_constraints_pin_exactly() -> None:
    assert [pin for pin in _pins().values() if not re.fullmatch(r"==[^*,]+", pin)] == []


@pytest.mark.parametrize("requirement", _required(), ids=lambda item: item.name)
def test_dependencies_are_pinned_alike_in_the_constraints(requirement: Requirement) -> None:
    assert str(requirement.specifier).startswith("==")
    assert _pins().get(canonicalize_name(requirement.name)) == str(requirement.specifier)
