"""The table of docs/providers.md, from the data: `python -m tests.support.provider_table`."""

from pathlib import Path

from gateway.providers import PROVIDERS, Provider
from gateway.providers.provider import Facts

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
HEADING = "## The catalogue\n"
HEAD = "| provider | verified | integrity | id | retries | vector |\n|---|---|---|---|---|---|\n"


def make_table() -> str:
    """One row per provider that has a sender."""
    found = {name: PROVIDERS[name] for name in sorted(PROVIDERS)}
    rows = [_row(one, one.facts) for one in found.values() if one.facts is not None]
    return HEAD + "".join(rows)


def _row(provider: Provider, facts: Facts) -> str:
    unsigned = " (not signed)" if "id" in facts.unsigned else ""
    cells = [
        f"[`{provider.name}`]({facts.docs[0]})",
        facts.scheme,
        provider.integrity.value,
        facts.id + unsigned,
        "yes" if provider.retries else "no",
        facts.vector,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    """Writes it."""
    text = PAGE.read_text(encoding="utf-8")
    before, heading, _ = text.partition(HEADING)
    PAGE.write_text(f"{before}{heading}\n{make_table()}", encoding="utf-8")


if __name__ == "__main__":
    main()
