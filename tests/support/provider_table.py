"""The tables of docs/providers.md, from the data: `python -m tests.support.provider_table`."""

from pathlib import Path

from gateway.base.units import format_duration
from gateway.config.routes.checks import shortest_key_retention
from gateway.providers import PROVIDERS, Provider
from gateway.providers.github import UNIQUE
from gateway.providers.provider import Facts

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
HEADING = "## The catalogue\n"
HEAD = "| provider | verified | integrity | id | retries | vector |\n|---|---|---|---|---|---|\n"


GITHUB_HEADING = "### GitHub: the types whose repeats are refused\n"
GITHUB_HEAD = "| field that two events cannot share | types |\n|---|---|\n"


def make_github_table() -> str:
    """One row per field because of which bodies cannot repeat."""
    rows: dict[str, list[str]] = {}
    for type, field in sorted(UNIQUE.items()):
        rows.setdefault(field, []).append(f"`{type}`")
    return GITHUB_HEAD + "".join(
        f"| `{field}` | {', '.join(types)} |\n" for field, types in sorted(rows.items())
    )


WINDOW_HEAD = (
    "| provider | id | can deliver again for | an identical body is a duplicate for |\n"
    "|---|---|---|---|\n"
)


def make_window_table() -> str:
    """One row per provider for which the digest of the body tells events apart."""
    found = (PROVIDERS[name] for name in sorted(PROVIDERS))
    return WINDOW_HEAD + "".join(
        _window_row(one, one.facts) for one in found if one.keyed_by_digest and one.facts
    )


def _window_row(provider: Provider, facts: Facts) -> str:
    window = "`retention.key`"
    if provider.bodies_repeat:
        window = format_duration(shortest_key_retention(provider))
    digest = "always the digest" if " or " not in facts.id else "the digest if it has no other"
    again = format_duration(provider.redelivery)
    return f"| `{provider.name}` | {digest} | {again} | {window} |\n"


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
    above, github_heading, below = before.partition(GITHUB_HEADING)
    below = below.partition("\n### ")[2]
    before = f"{above}{github_heading}\n{make_github_table()}\n### {below}"
    above, _, below = before.partition(WINDOW_HEAD)
    below = below.partition("\n## ")[2]
    before = f"{above}{make_window_table()}\n## {below}"
    PAGE.write_text(f"{before}{heading}\n{make_table()}", encoding="utf-8")


if __name__ == "__main__":
    main()
