"""What a process tells Prometheus, read as Prometheus reads it."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import PATIENCE_S


class Scraped:
    """The samples of one scrape, or of several."""

    def __init__(self, *texts: str) -> None:
        self.samples = [
            sample
            for text in texts
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """Of every series that has these labels."""
        return [value for _, value in self._found(name, labels)]

    def sum(self, name: str, **labels: str) -> float:
        """Over all series, and all processes that were scraped."""
        return sum(self.values(name, **labels))

    def labels(self) -> set[str]:
        """Every value that any label has."""
        return {value for sample in self.samples for value in sample.labels.values()}

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def _found(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Any, float]]:
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample, sample.value


async def scrape(*urls: str) -> Scraped:
    """Asks each process."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answers = [await client.get(f"{url}/metrics") for url in urls]
    assert {answer.status_code for answer in answers} == {200}
    return Scraped(*(answer.text for answer in answers))
