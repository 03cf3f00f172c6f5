"""What a running `gateway up` leaves in the data directory, for its children and other commands."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gateway.errors import ConfigInvalid, Problem
from gateway.secrets import SecretMissing, SecretRef, SecretUnusable, resolve

UP_FILE: Final = "up.json"
SECRETS_FILE: Final = "secrets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUp:
    """Where the processes of a `gateway up` are to be found."""

    pid: int
    url: str
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    dev_secrets: str | None = None
    """The file with the secrets that were made up, if any were."""


RUNNING_UP: Final = TypeAdapter(RunningUp)
SECRETS: Final = TypeAdapter(dict[str, str])


def read_up(data_dir: Path) -> RunningUp | None:
    """The running `gateway up`, if there is one. A file that cannot be read is as good as none."""
    try:
        return RUNNING_UP.validate_json((data_dir / UP_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_up(data_dir: Path, up: RunningUp) -> None:
    """Say where everything is. The URLs may hold passwords, so only the owner can read them."""
    _write_private(data_dir / UP_FILE, asdict(up))


def clear_up(data_dir: Path) -> None:
    """Forget the `gateway up` that ends now."""
    (data_dir / UP_FILE).unlink(missing_ok=True)


def development_secrets(
    data_dir: Path,
    references: Iterable[str],
    environ: Mapping[str, str],
    *,
    make: Callable[[], str],
) -> dict[str, str]:
    """A secret for each reference that leads nowhere: made up once, then kept."""
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
    """The references for which a made-up secret is used."""
    kept = read_secrets(file)
    return tuple(ref for ref in references if ref in kept and _is_missing(ref, environ))


def read_secrets(file: Path | None) -> dict[str, str]:
    """The secrets that `gateway up` made up, by reference. No file, no secrets."""
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
    """A secret that is there but unusable is not missing: that must be seen, not papered over."""
    try:
        resolve(SecretRef.parse(reference), environ, {})
    except SecretUnusable as error:
        return isinstance(error, SecretMissing)
    return False


def _write_private(file: Path, content: Mapping[str, object]) -> None:
    """Write so that a reader sees the old file or the new one, and no other user sees either."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
