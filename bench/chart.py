"""The results as a picture: bars in an SVG that fits a light page and a dark one."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench import contest, effect, processing
from bench.figures import Results, Sample

WIDTH = 720
EDGE = 24
LABELS = 252
BARS = 330
"""The longest bar; what is right of it belongs to its number."""
BAR, PAIR_BAR, GAP = 16, 12, 12
BETWEEN, HEADING, PANEL_GAP = 2, 50, 26
OURS = ("gateway", "gateway x 2")

STYLE = """
  svg { --page: #ffffff; --ink: #1f2328; --muted: #59636e; --line: #d1d9e0;
        --ours: #0969da; --ours-soft: #8fc1f7; --theirs: #818b98; --theirs-soft: #c8d1da; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #0d1117; --ink: #f0f6fc; --muted: #9198a1; --line: #3d444d;
          --ours: #4493f8; --ours-soft: #1f5fad; --theirs: #7d8590; --theirs-soft: #454c55; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }
  .page { fill: var(--page); stroke: var(--line); }
  .title { font-size: 15px; font-weight: 600; }
  .note, .small { fill: var(--muted); font-size: 12px; }
  .strong { font-weight: 600; }
  .axis { stroke: var(--line); }
  .ours { fill: var(--ours); } .ours-soft { fill: var(--ours-soft); }
  .theirs { fill: var(--theirs); } .theirs-soft { fill: var(--theirs-soft); }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One contestant: its name, and a bar for each figure with what is written beside it."""

    label: str
    ours: bool
    bars: tuple[tuple[float, str], ...]

    @property
    def height(self) -> int:
        return BAR if len(self.bars) == 1 else PAIR_BAR * len(self.bars) + BETWEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    note: str
    groups: tuple[Group, ...]

    @property
    def height(self) -> int:
        return HEADING + sum(group.height + GAP for group in self.groups)


def draw(document: Results) -> str:
    """The panels of those stages that were run, one below the other."""
    panels = _panels(document["stages"])
    height = EDGE + sum(panel.height + PANEL_GAP for panel in panels) + EDGE
    parts, top = [], EDGE
    for panel in panels:
        parts += _draw_panel(panel, top)
        top += panel.height + PANEL_GAP
    machine = document["machine"]
    foot = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['postgres']} with fsync on, "
        f"{document['date'][:10]}, {document['mode']} run"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="Benchmark results">',
            f"<style>{STYLE}</style>",
            '<rect class="page" x="0.5" y="0.5" rx="8" '
            f'width="{WIDTH - 1}" height="{height - 1}"/>',
            *parts,
            _text(EDGE, height - EDGE + 4, foot, "note"),
            "</svg>\n",
        ]
    )


def _panels(stages: dict[str, Results]) -> list[Panel]:
    makers = {
        "ingest": _ingest_panel,
        "latency": _latency_panel,
        "processing": _processing_panel,
        "effect": _effect_panel,
    }
    return [make(stages[stage]) for stage, make in makers.items() if stage in stages]


def _ingest_panel(results: Results) -> Panel:
    summary = results["summary"]
    return Panel(
        title="Ingest: requests a second",
        note="closed loop, signed 3 KB events, all ids new",
        groups=tuple(
            _single(contest.TITLES[name], name, row["per_second"], "/s")
            for name, row in summary.items()
            if name != contest.AGAIN
        ),
    )


def _latency_panel(results: Results) -> Panel:
    return Panel(
        title="Acknowledgement: latency in ms",
        note=f"open loop at {results['share']:.0%} of each one's own maximum",
        groups=_paired(results["summary"], contest.TITLES),
    )


def _processing_panel(results: Results) -> Panel:
    ranked = sorted(results["summary"].items(), key=lambda item: -item[1]["per_second"])
    return Panel(
        title="Processing: deliveries a second",
        note="one worker process, a handler that upserts one row",
        groups=tuple(
            _single(processing.TITLES[name], name, row["per_second"], "/s") for name, row in ranked
        ),
    )


def _effect_panel(results: Results) -> Panel:
    return Panel(
        title="From acknowledgement to committed effect: latency in ms",
        note=f"{results['rate']} events a second",
        groups=_paired(results["summary"], effect.TITLES),
    )


def _single(label: str, name: str, value: float, unit: str) -> Group:
    return Group(label=label, ours=name in OURS, bars=((value, f"{value:,.0f}{unit}"),))


def _paired(summary: dict[str, Sample], titles: dict[str, str]) -> tuple[Group, ...]:
    return tuple(
        Group(
            label=titles[name],
            ours=name in OURS,
            bars=(
                (row["p50_ms"], f"p50 {row['p50_ms']:.1f}"),
                (row["p99_ms"], f"p99 {row['p99_ms']:.1f}"),
            ),
        )
        for name, row in summary.items()
    )


def _draw_panel(panel: Panel, top: int) -> list[str]:
    left = EDGE + LABELS
    longest = max(value for group in panel.groups for value, _ in group.bars)
    parts = [
        _text(EDGE, top + 14, panel.title, "title"),
        _text(EDGE, top + 32, panel.note, "note"),
    ]
    y = top + HEADING
    for group in panel.groups:
        parts += _draw_group(group, y, longest)
        y += group.height + GAP
    parts.append(
        f'<line class="axis" x1="{left}" x2="{left}" y1="{top + HEADING - 4}" y2="{y - GAP + 4}"/>'
    )
    return parts


def _draw_group(group: Group, top: int, longest: float) -> list[str]:
    left = EDGE + LABELS
    emphasis = "strong" if group.ours else ""
    parts = [_text(EDGE, top + group.height / 2 + 4.5, group.label, emphasis)]
    kinds: Sequence[str] = ("", "-soft")
    thick = BAR if len(group.bars) == 1 else PAIR_BAR
    for number, (value, shown) in enumerate(group.bars):
        width = max(value / longest * BARS, 1.5)
        y = top + number * (thick + BETWEEN)
        kind = ("ours" if group.ours else "theirs") + kinds[number]
        parts.append(
            f'<rect class="{kind}" x="{left}" y="{y}" width="{width:.1f}" height="{thick}" rx="2"/>'
        )
        style = emphasis if thick == BAR else f"small {emphasis}"
        parts.append(_text(left + width + 7, y + thick / 2 + 4.5, shown, style.strip()))
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
