"""What deploy/Dockerfile says."""

import json
import re
import shlex
from string import Template
from typing import Final, NamedTuple

from tests.deploy.files import text_of


class Instruction(NamedTuple):
    """One of them, its continued lines joined."""

    name: str
    argument: str


def read_dockerfile() -> list[Instruction]:
    """All instructions in their order, without comments."""
    text = re.sub(r"^#.*\n", "", text_of("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name, argument) for name, argument in lines]


def last_stage() -> list[Instruction]:
    """What makes the image itself."""
    found = read_dockerfile()
    first = max(n for n, instruction in enumerate(found) if instruction.name == "FROM")
    return found[first:]


def arguments(instructions: list[Instruction], name: str) -> list[str]:
    """Those of every instruction of a name."""
    return [instruction.argument for instruction in instructions if instruction.name == name]


def _environment() -> dict[str, str]:
    [argument] = arguments(last_stage(), "ENV")
    return dict(pair.split("=", 1) for pair in shlex.split(argument))


def _command(name: str) -> list[str]:
    [argument] = arguments(last_stage(), name)
    found: list[str] = json.loads(argument.partition("CMD ")[2] or argument)
    return found


def _base_image() -> str:
    """The one image from which every stage is built, with its version filled in."""
    default = dict(argument.split("=", 1) for argument in arguments(read_dockerfile(), "ARG"))
    named = {argument.split()[0] for argument in arguments(read_dockerfile(), "FROM")}
    [image] = {Template(name).substitute(default) for name in named}
    return image


BASE_IMAGE: Final = _base_image()
ENVIRONMENT: Final = _environment()
COMMAND: Final = _command("CMD")
HEALTH_CHECK: Final = _command("HEALTHCHECK")
[_user] = arguments(last_stage(), "USER")
USER_ID, GROUP_ID = _user.split(":")
[DIRECTORY] = arguments(last_stage(), "WORKDIR")
