"""Files of a running `gateway up` in the data directory, for its children and other commands."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.secrets import SecretMissing, SecretRef, SecretUnusable, resolve

UP_FILE: Final = "up.json"
SECRETS_FILE: Final = "secrets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUp:
    """The addresses of the processes of a `gateway up`."""

    pid: int
    url: str
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    dev_secrets: str | None = None
    """The file with the made-up secrets, if there are any."""


RUNNING_UP: Final = TypeAdapter(RunningUp)
SECRETS: Final = TypeAdapter(dict[str, str])


def read_up(data_dir: Path) -> RunningUp | None:
    """Return the running `gateway up`, or None if there is none or if its file cannot be read."""
    try:
        return RUNNING_UP.validate_json((data_dir / UP_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_up(data_dir: Path, up: RunningUp) -> None:
    """Store the addresses. The URLs may contain passwords, so only the owner can read the file."""
    _write_private(data_dir / UP_FILE, asdict(up))


def clear_up(data_dir: Path) -> None:
    """Delete the file of the `gateway up` that ends now."""
    (data_dir / UP_FILE).unlink(missing_ok=True)


def development_secrets(
    data_dir: Path,
    references: Iterable[str],
    environ: Mapping[str, str],
    *,
    make: Callable[[], str],
) -> dict[str, str]:
    """Return a secret for each reference that does not resolve.

    It is made up once and then kept.
    """
    file = data_dir / SECRETS_FILE
    kept = read_secrets(file)
    needed = [reference for reference in references if _is_missing(reference, environ)]
    made = {ref: kept.get(ref) or make() for ref in needed}
    if made.items() - kept.items():
        _write_private(file, kept | made)
    return made


def stand_ins(
    file: Path | None, references: Iterable[str], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the references for which a made-up secret is used."""
    kept = read_secrets(file)
    return tuple(ref for ref in references if ref in kept and _is_missing(ref, environ))


def read_secrets(file: Path | None) -> dict[str, str]:
    """Return the secrets that `gateway up` made up, by reference. Empty if there is no file."""
    if file is None or not file.exists():
        return {}
    try:
        return SECRETS.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        expected = "the JSON that `gateway up` wrote; delete the file to have new secrets made"
        problem = Problem(
            file=str(file), key="(document)", found="something else", expected=expected
        )
    raise ConfigInvalid([problem])


def _is_missing(reference: str, environ: Mapping[str, str]) -> bool:
    """Return whether the secret does not exist.

    An existing but unusable secret is not missing: its error must be shown, not hidden.
    """
    try:
        resolve(SecretRef.parse(reference), environ, {})
    except SecretUnusable as error:
        return isinstance(error, SecretMissing)
    return False


def _write_private(file: Path, content: Mapping[str, object]) -> None:
    """Replace the file atomically, readable only by its owner."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
