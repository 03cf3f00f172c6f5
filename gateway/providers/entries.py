"""The catalogue: one YAML file per sender, loaded on first use."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError

from gateway.base.errors import ConfigInvalid, Problem
from gateway.base.problems import Location, Refusal, Unexpected, one_of, refusals
from gateway.base.units import Size, holding
from gateway.base.yaml_source import Document, Section, read_document
from gateway.providers.provider import Provider
from gateway.providers.schemes.build import MAX_BODY, make_provider
from gateway.providers.schemes.sections import KINDS, SenderSection
from gateway.providers.schemes.words import describe_facts

FOLDER: Final = Path(__file__).parent / "catalogue"
SUFFIX: Final = ".yaml"
INHERITED: Final = frozenset({"provider", "max_body"})
LARGEST_BODY: Final = 256 * 1024**2

Listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Texts = Annotated[list[str], Listed, Field(max_length=16)]


class EntrySection(Section):
    """A named sender of the catalogue."""

    title: str = Field(min_length=1, max_length=60, description="What its makers call it.")
    docs: Annotated[list[str], Listed, Field(min_length=1, max_length=8)] = Field(
        description="The vendor's pages that say so."
    )
    extends: str | None = Field(default=None, description="An entry whose scheme this one has too.")
    provider: str = Field(description="The kind of scheme, as a route would say it.")
    scheme: dict[str, Any] = Field(
        default_factory=dict, description="How it signs, and what it does."
    )
    max_body: Annotated[Size, holding(1, LARGEST_BODY)] = Field(
        default=MAX_BODY, description="The largest body that it sends."
    )
    notes: Texts = Field(default_factory=list, description="What is not signed, and what is odd.")
    vector: str = Field(
        min_length=1, description="Whose code made its vector; or `none: ` and why not."
    )


def entry_names() -> tuple[str, ...]:
    """Return the names of all entries. Only lists the folder, reads no file."""
    return _names()


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in FOLDER.glob(f"*{SUFFIX}")))


@cache
def load_entry(name: str) -> Provider:
    """Return the provider of this name. Raises ConfigInvalid if its file is invalid."""
    return read_entry(FOLDER / f"{name}{SUFFIX}")


def read_entry(file: Path) -> Provider:
    """Read an entry. Its `extends` is resolved in the same folder."""
    document = read_document(file)
    at: Location = ()
    problems = [*document.problems]
    try:
        entry = EntrySection.model_validate(_with_parent(file, document.value))
        at = ("scheme",)
        return _provider(file.stem, entry, _scheme(entry))
    except ValidationError as error:
        problems += [_problem(document, at, refusal) for refusal in refusals(error)]
    except Unexpected as error:
        problems.append(document.lines.problem(at, found=error.found, expected=error.expected))
    raise ConfigInvalid(problems)


def read_scheme(name: str) -> SenderSection:
    """Return the scheme of an entry, for callers that need more than its provider exposes."""
    file = FOLDER / f"{name}{SUFFIX}"
    return _scheme(EntrySection.model_validate(_with_parent(file, read_document(file).value)))


def _with_parent(file: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    parent = raw.get("extends")
    if parent is None:
        return dict(raw)
    path = file.with_name(f"{parent}{SUFFIX}")
    if not path.is_file():
        raise Unexpected(found=f"extends: {parent}", expected=one_of(entry_names()))
    inherited = _with_parent(path, read_document(path).value)
    own = raw.get("scheme", {})
    scheme = {**inherited["scheme"], **own} if isinstance(own, dict) else own
    kept = {key: value for key, value in inherited.items() if key in INHERITED}
    return {**kept, **raw, "scheme": scheme}


def _scheme(entry: EntrySection) -> SenderSection:
    kind = KINDS.get(entry.provider)
    if kind is None:
        raise Unexpected(found=f"provider: {entry.provider}", expected=one_of(KINDS))
    return kind.model_validate(entry.scheme)


def _provider(name: str, entry: EntrySection, section: SenderSection) -> Provider:
    told = describe_facts(entry.provider, section, title=entry.title)
    facts = replace(told, docs=tuple(entry.docs), notes=tuple(entry.notes), vector=entry.vector)
    return make_provider(name, entry.provider, section, max_body=entry.max_body, facts=facts)


def _problem(document: Document, at: Location, refusal: Refusal) -> Problem:
    expected = refusal.expected
    if refusal.unknown:
        known = EntrySection.model_fields if not at else ()
        expected = one_of(known, like=str(refusal.location[-1])) if known else "a key of a scheme"
    return document.lines.problem((*at, *refusal.location), found=refusal.found, expected=expected)
