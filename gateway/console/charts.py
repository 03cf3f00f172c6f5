"""Charts as inline SVG: stacked bars over time, with the values as tooltips."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup, escape

WIDTH: Final = 640
HEIGHT: Final = 120
TOP: Final = 6
BOTTOM: Final = 16
GAP: Final = 1
TICKS: Final = 4

NICE: Final = (1, 2, 5)
"""The upper end of a scale is one of these numbers times a power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One stacked series of a chart."""

    name: str
    kind: str
    """The CSS class with its color and pattern."""
    values: Sequence[int]

    @property
    def total(self) -> int:
        return sum(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A stacked bar chart over time."""

    title: str
    start: datetime
    step: timedelta
    series: Sequence[Series]

    @property
    def is_empty(self) -> bool:
        return not any(series.total for series in self.series)

    @property
    def svg(self) -> Markup:
        bars = len(self.series[0].values)
        sums = [sum(series.values[n] for series in self.series) for n in range(bars)]
        most = _scale(max(sums, default=0))
        wide = WIDTH / bars
        drawn = "".join(self._bar(n, wide, most) for n in range(bars) if sums[n])
        told = ", ".join(f"{series.name} {series.total:,}" for series in self.series)
        return Markup(
            '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
            '<line class="axis" x1="0" x2="{w}" y1="{floor}" y2="{floor}"/>'
            '<line class="grid" x1="0" x2="{w}" y1="{top}" y2="{top}"/>'
            '<text class="scale" x="{w}" y="{top}" dy="-1">{most}</text>{ticks}{bars}</svg>'
        ).format(
            w=WIDTH,
            h=HEIGHT,
            label=f"{self.title}: {told}",
            floor=HEIGHT - BOTTOM,
            top=TOP + 6,
            most=f"{most:,}",
            ticks=self._ticks(bars, wide),
            bars=Markup(drawn),  # noqa: S704 (generated here, from numbers and our labels)
        )

    def _bar(self, n: int, wide: float, most: int) -> str:
        floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP - 6
        y, pieces, told = float(floor), [], []
        for series in self.series:
            value = series.values[n]
            if not value:
                continue
            tall = max(room * value / most, 1.0)
            y -= tall
            # Plain strings without escaping: all values are our own, and there
            # are a thousand of them.
            pieces.append(
                f'<rect class="{series.kind}" x="{n * wide:.2f}" y="{y:.2f}"'
                f' width="{max(wide - GAP, 1):.2f}" height="{tall:.2f}"/>'
            )
            told.append(f"{series.name} {value:,}")
        at = (self.start + n * self.step).astimezone(UTC)
        title = f"{at:%Y-%m-%d %H:%M} UTC: {', '.join(told)}"
        return f"<g><title>{escape(title)}</title>{''.join(pieces)}</g>"

    def _ticks(self, bars: int, wide: float) -> Markup:
        every = max(bars // TICKS, 1)
        shown = "%H:%M" if self.step * bars <= timedelta(days=1, hours=1) else "%d %b"
        return Markup("").join(
            Markup('<text class="tick" x="{}" y="{}" data-at="{}">{}</text>').format(
                f"{n * wide:.1f}",
                HEIGHT - 4,
                (self.start + n * self.step).isoformat(),
                (self.start + n * self.step).astimezone(UTC).strftime(shown),
            )
            for n in range(0, bars, every)
        )


def fill(
    rows: Sequence[Mapping[str, int]], names: Mapping[str, tuple[str, Sequence[str]]]
) -> list[Series]:
    """Build the series from the counts of each step.

    `names` maps each series to its CSS class and its outcomes.
    """
    return [
        Series(
            name=name,
            kind=kind,
            values=[sum(row.get(outcome, 0) for outcome in outcomes) for row in rows],
        )
        for name, (kind, outcomes) in names.items()
    ]


def _scale(most: int) -> int:
    power = 1
    while True:
        for nice in NICE:
            if most <= nice * power:
                return nice * power
        power *= 10
