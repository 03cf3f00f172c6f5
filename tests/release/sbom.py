"""The bill of materials: CycloneDX, of what a wheel brings along, from what is installed.

Nothing in it tells on which machine it was made or from which index: names, versions, licences and
who needs whom.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.release.programs import StepFailed

OURS: Final = canonicalize_name("webhook-gateway-server")
LICENSE: Final = "License :: "
LONGEST_NAME: Final = 100
"""Some write the whole text of their licence where its name is expected."""

Needs = dict[NormalizedName, frozenset[NormalizedName]]


def make_sbom(packages: Path, *, wheel_sha256: str, epoch_s: int) -> str:
    """Of our wheel and all that it needs, as installed there. Raises StepFailed where something
    is missing. The same installation gives the same bytes."""
    installed = {
        canonicalize_name(found.name): found for found in distributions(path=[str(packages)])
    }
    needs = find_needs(installed)
    components = {name: _component(installed[name], name) for name in sorted(needs)}
    ours = components.pop(OURS)
    ours.type = ComponentType.APPLICATION
    ours.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=wheel_sha256))
    bom = Bom(
        components=components.values(),
        serial_number=uuid5(NAMESPACE_URL, f"{ours.purl}#{wheel_sha256}"),
        metadata=BomMetaData(component=ours, timestamp=datetime.fromtimestamp(epoch_s, UTC)),
    )
    components[OURS] = ours
    for name, wanted in needs.items():
        bom.register_dependency(components[name], [components[other] for other in sorted(wanted)])
    writer = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return writer.output_as_string(indent=2) + "\n"


def find_needs(installed: Mapping[NormalizedName, Distribution]) -> Needs:
    """Who needs whom, from our distribution on, extras and markers regarded."""
    needs: dict[NormalizedName, set[NormalizedName]] = {}
    seen: set[tuple[NormalizedName, str]] = set()
    waiting = [(OURS, "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name not in installed:
            raise StepFailed(f"{name} is needed and not installed")
        wanted = needs.setdefault(name, set())
        for requirement in _requirements(installed[name], extra):
            other = canonicalize_name(requirement.name)
            wanted.add(other)
            waiting += [(other, each) for each in ("", *requirement.extras)]
    return {name: frozenset(wanted - {name}) for name, wanted in needs.items()}


def _requirements(distribution: Distribution, extra: str) -> Iterator[Requirement]:
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _component(distribution: Distribution, name: NormalizedName) -> Component:
    purl = PackageURL("pypi", name=name, version=distribution.version)
    return Component(
        name=name,
        version=distribution.version,
        bom_ref=str(purl),
        purl=purl,
        description=_field(distribution, "Summary"),
        licenses=list(_licences(distribution)),
    )


def _licences(distribution: Distribution) -> Iterator[LicenseExpression | DisjunctiveLicense]:
    """The expression, or else what the classifiers say, or else the field that may say anything."""
    if expression := _field(distribution, "License-Expression"):
        yield LicenseExpression(expression)
        return
    classifiers: list[str] = distribution.metadata.get_all("Classifier", [])
    names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith(LICENSE)]
    said = _field(distribution, "License")
    if not names and said and len(said) <= LONGEST_NAME:
        names = [said]
    for name in names:
        yield DisjunctiveLicense(name=name)


def _field(distribution: Distribution, name: str) -> str | None:
    """To ask for a field that is not there by its name will be an error, and warns from 3.12 on."""
    values = distribution.metadata.get_all(name)
    return values[0] if values else None
