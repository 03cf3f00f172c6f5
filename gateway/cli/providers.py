"""The command `providers`: the supported senders and how each is verified."""

from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.base.errors import CommandFailed
from gateway.base.units import format_duration, format_size
from gateway.cli.output import console, print_json, print_rows
from gateway.config.routes.checks import shortest_key_retention
from gateway.providers import PROVIDERS, Provider
from gateway.providers.naming import expected_provider
from gateway.providers.provider import Facts, Integrity
from gateway.providers.schemes.sections import KINDS

INTEGRITY: Final = {
    Integrity.WHOLE: "the whole body is signed",
    Integrity.PART: "only a part of the request is signed: see the notes",
    Integrity.NONE: "nothing is signed: whoever has the secret can send anything",
}
NARROW: Final = 110
"""Terminals with fewer columns have no room for the ids."""
DESCRIBED: Final = (
    "Any other sender: provider: hmac, ed25519, ecdsa, bearer or basic, with a `scheme`"
    " (docs/providers.md: describe your own sender)."
)


def register(app: typer.Typer) -> None:
    app.command()(providers)


def providers(
    name: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array instead of a table.")
    ] = False,
) -> None:
    """List the providers and how their requests are verified; with a name, show that one in full.

    Examples: [bold]gateway providers[/bold], [bold]gateway providers slack[/bold]
    """
    found = {one: facts for one in sorted(PROVIDERS) if (facts := PROVIDERS[one].facts) is not None}
    if name is not None and name not in found:
        raise CommandFailed(_unknown(name))
    names = sorted(found) if name is None else [name]
    if as_json:
        print_json([_row(PROVIDERS[one], found[one]) for one in names])
    elif name is not None:
        _show(console(), PROVIDERS[name], found[name])
    else:
        rows = [_row(PROVIDERS[one], found[one]) for one in names]
        columns = ["provider", "verified", "integrity", "id"]
        is_narrow = console().width < NARROW
        print_rows(columns[:3] if is_narrow else columns, rows, empty="no providers")
        console().print(DESCRIBED, markup=False)


def _unknown(name: str) -> str:
    if name in KINDS:
        return f"{name} is no sender: it is how a route describes one. {DESCRIBED}"
    return f"provider: found {name!r}; expected {expected_provider(name)}"


def _row(provider: Provider, facts: Facts) -> dict[str, Any]:
    wanted = provider.acknowledgement
    return {
        "provider": provider.name,
        "title": facts.title,
        "verified": facts.scheme,
        "integrity": provider.integrity.value,
        "unsigned": list(facts.unsigned),
        "id": facts.id,
        "type": facts.type,
        "tolerance": None if provider.tolerance is None else format_duration(provider.tolerance),
        "repeat_guard": provider.repeats is not None,
        "dedup_window": _dedup_window(provider),
        "signs_url": provider.signs_url,
        "batch": facts.batch,
        "handshake": list(facts.handshake),
        "ack": wanted.status,
        "ack_body": None if wanted.body is None else wanted.body.decode(),
        "refusal": provider.refusal_status,
        "retries": provider.retries,
        "redelivery": format_duration(provider.redelivery),
        "max_body": format_size(provider.max_body),
        "vector": facts.vector,
        "docs": list(facts.docs),
        "notes": list(facts.notes),
    }


def _show(out: Console, provider: Provider, facts: Facts) -> None:
    out.print(f"{facts.title} (provider: {provider.name})", markup=False, style="bold")
    table = Table(box=None, show_header=False, pad_edge=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(provider, facts):
        table.add_row(label, Text(text))
    out.print(table)
    out.print("\nin routes.yaml:\n", style="dim")
    out.print(_snippet(provider), markup=False, soft_wrap=True)


def _lines(provider: Provider, facts: Facts) -> list[tuple[str, str]]:
    lines = [
        ("verified", facts.scheme),
        ("integrity", f"{provider.integrity}: {INTEGRITY[provider.integrity]}"),
        ("id", facts.id + (" (not signed)" if "id" in facts.unsigned else "")),
        ("type", facts.type + (" (not signed)" if "type" in facts.unsigned else "")),
    ]
    if provider.repeats is not None:
        lines.append(("replays", "the same bytes under another id are refused, or flagged"))
    if provider.keyed_by_digest:
        window = _dedup_window(provider) or "as long as its key is kept"
        lines.append(("duplicates", f"an identical body without another id: {window}"))
    if provider.signs_url:
        lines.append(("URL", "is signed: set GATEWAY_PUBLIC_URL to the one that the sender calls"))
    if facts.batch is not None:
        lines.append(("batch", facts.batch))
    lines += [("handshake", one) for one in facts.handshake]
    lines += [
        ("answers", _answers(provider)),
        ("retries", _retries(provider)),
        ("max body", format_size(provider.max_body)),
        ("vector", facts.vector),
        *(("docs", page) for page in facts.docs),
        *(("note", note) for note in facts.notes),
    ]
    return lines


def _dedup_window(provider: Provider) -> str | None:
    """Return the default of a route, if it is shorter than `retention.key`."""
    if not provider.bodies_repeat:
        return None
    return format_duration(shortest_key_retention(provider))


def _answers(provider: Provider) -> str:
    wanted = provider.acknowledgement
    body = "no body" if wanted.body == b"" else "our JSON"
    if wanted.body:
        body = repr(wanted.body.decode())
    return f"{wanted.status} with {body}; {provider.refusal_status} to a wrong signature"


def _retries(provider: Provider) -> str:
    by_itself = "comes back by itself" if provider.retries else "never comes back by itself"
    return f"{by_itself}; can deliver again for {format_duration(provider.redelivery)}"


def _snippet(provider: Provider) -> str:
    variable = provider.name.upper().replace("-", "_")
    lines = [
        "routes:",
        f"  {provider.name}:",
        f"    provider: {provider.name}",
        f"    secrets: [env:{variable}_WEBHOOK_SECRET]",
    ]
    if provider.wants_token:
        lines.append(f"    verify_token: env:{variable}_VERIFY_TOKEN")
    lines.append(f"    handlers: [handlers.{provider.name.replace('-', '_')}]")
    return "\n".join(lines)
