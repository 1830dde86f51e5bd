"""The plots of docs/performance.md: for each engine the duration of each drainer, and the product's API requests.

The same results produce the same file. A digest in the file identifies the results, independent of the library's
version.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.page.limits import DRAINS, OURS, allowed_requests
from bench.results import Results, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT_PER_ROW, MARGIN = 9.0, 0.16, 1.1
"""Inches."""
WRAPPED, ROOM_FOR_FIGURES = 34, 0.1
"""Characters per line of a case's name, and the share of the axis that is left free for the last value."""
STYLES = {
    OURS: ("#0b5cad", "o"),
    "kubectl drain": ("#c2571a", "s"),
    "operator": ("#7a3fa0", "^"),
    "floor": ("#777777", "d"),
}
"""Colour and marker of each drainer, in the order of the legend."""
NEAR: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
"""The position of a value next to its marker."""
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "performance",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.axisbelow": True,
}

Series = Mapping[str, Mapping[str, Sequence[float]]]
"""For each name in the legend and each case: minimum, median, maximum."""


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes:
        name: The file name.
        label: The label of its axis, which is logarithmic.
        series: The values.
    """

    name: str
    title: str
    label: str
    series: Series

    @property
    def digest(self) -> str:
        """Return a digest that identifies the plotted results."""
        return hashlib.sha256(json.dumps([self.title, self.series]).encode()).hexdigest()

    def draw(self, file: Path) -> None:
        """Write the plot as SVG."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        cases = list(dict.fromkeys(case for shown in self.series.values() for case in shown))
        rows = len(cases) * (len(self.series) + 1)
        with mpl.rc_context(SETTINGS):
            figure = Figure(figsize=(WIDTH, MARGIN + HEIGHT_PER_ROW * rows), layout="constrained")
            self._fill(figure.add_subplot(), cases)
            figure.savefig(file, metadata={"Date": None, "Creator": None, "Description": self.digest})

    def _fill(self, axes: Axes, cases: Sequence[str]) -> None:
        from matplotlib.ticker import LogLocator

        step = len(self.series) + 1
        for number, (name, shown) in enumerate(self.series.items()):
            colour, marker = STYLES.get(name, ("#b00020", "|"))
            places = [cases.index(case) * step + number for case in shown]
            lowest, median, highest = (list(values) for values in zip(*shown.values(), strict=True))
            axes.hlines(places, lowest, highest, color=colour, linewidth=2)
            axes.plot(median, places, marker, color=colour, markersize=7, label=name)
            for place, value, end in zip(places, median, highest, strict=True):
                axes.annotate(_short(value), (end, place), **NEAR)
        axes.set_xscale("log")
        lowest_shown, highest_shown = axes.get_xlim()
        axes.set_xlim(lowest_shown, highest_shown * (highest_shown / lowest_shown) ** ROOM_FOR_FIGURES)
        axes.set_ylim(len(cases) * step - 1, -1)
        names = [textwrap.fill(case, WRAPPED) for case in cases]
        axes.set_yticks([number * step + (step - 2) / 2 for number in range(len(cases))], names)
        for number in range(1, len(cases)):
            axes.axhline(number * step - 1, color="#dddddd", linewidth=0.8)
        axes.grid(axis="x", which="both", color="#eeeeee")
        axes.set_xlabel(self.label)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(self.title, loc="left", fontweight="bold", pad=24)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(STYLES), frameon=False, borderaxespad=0.2)


def plots(found: Results) -> list[Plot]:
    """Return the plots of a run: two for each engine with a drain."""
    engines = dict.fromkeys(each.engine for each in found.rounds)
    return [plot for engine in engines for plot in (_times(found, engine), *_requests(found, engine))]


def _short(value: float) -> str:
    """Return a value with three significant digits, or rounded to an integer from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(found: Results, engine: str) -> Plot:
    series: dict[str, dict[str, Sequence[float]]] = {}
    groups = grouped(each for each in found.rounds if each.engine == engine)
    for way in sorted({way for _, _, way in groups}, key=[*STYLES].index):
        series[way] = {
            case: _spread([each.seconds for each in rounds])
            for (_, case, name), rounds in groups.items()
            if name == way
        }
    label = "seconds until done: median and range, logarithmic"
    return Plot(f"times-{engine}.svg", f"{engine}: how long a drain takes", label, series)


def _requests(found: Results, engine: str) -> Iterator[Plot]:
    rounds = grouped(each for each in found.rounds if each.engine == engine and each.costs)
    ours = {case: _spread([sum(each.costs["requests"].values()) for each in of]) for (_, case, _), of in rounds.items()}
    allowed = {case: [allowed_requests(DRAINS[case])] * 3 for case in ours if case in DRAINS}
    if ours:
        label = "requests of ours, from the object until done: median and range, logarithmic"
        title = f"{engine}: what a drain asks of the API server"
        yield Plot(f"requests-{engine}.svg", title, label, {OURS: ours, "at most": allowed})


def _spread(values: Sequence[float]) -> Sequence[float]:
    return [min(values), statistics.median(values), max(values)]


def is_in(text: str, plot: Plot) -> bool:
    """Return whether an SVG shows the same results as the plot."""
    return plot.digest in text
