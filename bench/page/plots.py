"""Draws the plots of docs/performance.md, for each engine: each drainer's duration, and the product's API requests.

The same results produce the same file. A digest in the file identifies the results, whatever matplotlib's version.
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

from bench.page.limits import DRAIN_CASES, PRODUCT_DRAINER, compute_max_requests
from bench.results import Results, group_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, ROW_HEIGHT_INCHES, MARGIN_INCHES = 9.0, 0.16, 1.1
"""Dimensions of a plot: width, height per row, and height of title, legend and axis."""
LABEL_WIDTH_CHARS, VALUE_MARGIN_SHARE = 34, 0.1
"""Maximum characters per line of a case's name, and the share of the axis that stays free for the values' texts."""
DRAINER_STYLES = {
    PRODUCT_DRAINER: ("#0b5cad", "o"),
    "kubectl drain": ("#c2571a", "s"),
    "operator": ("#7a3fa0", "^"),
    "floor": ("#777777", "d"),
}
"""Color and marker of each drainer's points, in the order of the legend."""
ANNOTATION_STYLE: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 7.5}
"""Position and font size of a value's text, relative to the value's marker."""
RC_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "performance",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.axisbelow": True,
}

Series = Mapping[str, Mapping[str, Sequence[float]]]
"""Minimum, median and maximum by case, by name in the legend."""


@dataclass(frozen=True)
class Plot:
    """One plot of docs/performance.md.

    Attributes:
        file_name: The name of the SVG file.
        title: The title above the plot.
        axis_label: The label of the logarithmic value axis.
        series: The plotted values.
    """

    file_name: str
    title: str
    axis_label: str
    series: Series

    @property
    def digest(self) -> str:
        """Return a digest that identifies the plotted results; `draw` writes it to the file."""
        return hashlib.sha256(json.dumps([self.title, self.series]).encode()).hexdigest()

    def draw(self, file: Path) -> None:
        """Write the plot to an SVG file."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        cases = list(dict.fromkeys(case for values_by_case in self.series.values() for case in values_by_case))
        rows = len(cases) * (len(self.series) + 1)
        with mpl.rc_context(RC_SETTINGS):
            figure = Figure(figsize=(WIDTH_INCHES, MARGIN_INCHES + ROW_HEIGHT_INCHES * rows), layout="constrained")
            self._draw_series(figure.add_subplot(), cases)
            figure.savefig(file, metadata={"Date": None, "Creator": None, "Description": self.digest})

    def _draw_series(self, axes: Axes, cases: Sequence[str]) -> None:
        from matplotlib.ticker import LogLocator

        step = len(self.series) + 1
        for number, (name, values_by_case) in enumerate(self.series.items()):
            marker_color, marker = DRAINER_STYLES.get(name, ("#b00020", "|"))
            positions = [cases.index(case) * step + number for case in values_by_case]
            lowest, median, highest = (list(values) for values in zip(*values_by_case.values(), strict=True))
            axes.hlines(positions, lowest, highest, color=marker_color, linewidth=2)
            axes.plot(median, positions, marker, color=marker_color, markersize=7, label=name)
            for position, value, end in zip(positions, median, highest, strict=True):
                axes.annotate(_format_value(value), (end, position), **ANNOTATION_STYLE)
        axes.set_xscale("log")
        lowest_shown, highest_shown = axes.get_xlim()
        axes.set_xlim(lowest_shown, highest_shown * (highest_shown / lowest_shown) ** VALUE_MARGIN_SHARE)
        axes.set_ylim(len(cases) * step - 1, -1)
        names = [textwrap.fill(case, LABEL_WIDTH_CHARS) for case in cases]
        axes.set_yticks([number * step + (step - 2) / 2 for number in range(len(cases))], names)
        for number in range(1, len(cases)):
            axes.axhline(number * step - 1, color="#dddddd", linewidth=0.8)
        axes.grid(axis="x", which="both", color="#eeeeee")
        axes.set_xlabel(self.axis_label)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(self.title, loc="left", fontweight="bold", pad=24)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=len(DRAINER_STYLES), frameon=False, borderaxespad=0.2
        )


def build_plots(results: Results) -> list[Plot]:
    """Build the plots of the results: two for each engine with a measured drain."""
    engines = dict.fromkeys(measured_round.engine for measured_round in results.rounds)
    return [
        plot
        for engine in engines
        for plot in (_build_times_plot(results, engine), *_build_requests_plots(results, engine))
    ]


def _format_value(value: float) -> str:
    """Format a value with three significant digits, or as an integer if it is at least 100."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _build_times_plot(results: Results, engine: str) -> Plot:
    series: dict[str, dict[str, Sequence[float]]] = {}
    groups = group_rounds(measured_round for measured_round in results.rounds if measured_round.engine == engine)
    for drainer in sorted({drainer for _, _, drainer in groups}, key=[*DRAINER_STYLES].index):
        series[drainer] = {
            case: _compute_min_median_max([measured_round.seconds for measured_round in rounds])
            for (_, case, round_drainer), rounds in groups.items()
            if round_drainer == drainer
        }
    label = "seconds until done: median and range, logarithmic"
    return Plot(f"times-{engine}.svg", f"{engine}: duration of a drain", label, series)


def _build_requests_plots(results: Results, engine: str) -> Iterator[Plot]:
    rounds = group_rounds(
        measured_round for measured_round in results.rounds if measured_round.engine == engine and measured_round.costs
    )
    ours = {
        case: _compute_min_median_max(
            [sum(measured_round.costs["requests"].values()) for measured_round in case_rounds]
        )
        for (_, case, _), case_rounds in rounds.items()
    }
    allowed = {case: [compute_max_requests(DRAIN_CASES[case])] * 3 for case in ours if case in DRAIN_CASES}
    if ours:
        label = "API requests of the product per drain: median and range, logarithmic"
        title = f"{engine}: API requests of a drain"
        yield Plot(f"requests-{engine}.svg", title, label, {PRODUCT_DRAINER: ours, "limit": allowed})


def _compute_min_median_max(values: Sequence[float]) -> Sequence[float]:
    return [min(values), statistics.median(values), max(values)]


def contains_plot(svg: str, plot: Plot) -> bool:
    """Return whether the SVG text was drawn from the same results as the plot."""
    return plot.digest in svg
