"""`make performance`: writes docs/performance.md and its plots from the latest results of `make bench`.

Without new results it uses those that the page already shows. The page is rendered from `template.md` in this
directory, where a name in double braces is replaced with a generated part.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import results
from bench.page import plots, tables
from bench.results import Results, grouped, ratio
from bench.observer_process import ROOT
from localcluster.errors import LocalClusterError

MEASURED = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
FOLDER = PAGE.with_suffix("")
SHOWN = FOLDER / "results.json"
"""The results that the page shows; the page depends only on this file and the template."""
TEMPLATE = Path(__file__).with_name("template.md")
NOTHING = "Nothing."


def page(found: Results) -> str:
    """Return the whole page."""
    parts = {
        "machine": listed(found.about),
        "earlier": earlier(found),
        "plots": "\n".join(f"![{plot.title}](performance/{plot.name})" for plot in plots.plots(found)),
        "times": tables.times(found.rounds),
        "slower": slower(found) or NOTHING,
        "limits": tables.limits(found) or NOTHING,
        "figures": tables.figures(found) or NOTHING,
        "failures": tables.failures(found) or NOTHING,
        "spent": tables.spent(found.rounds),
    }
    text = TEMPLATE.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def listed(about: Mapping[str, Any]) -> str:
    """Return when and on what host something was measured, as text."""
    return ", ".join(f"{name} {value}" for name, value in about.items())


def earlier(found: Results) -> str:
    """Return what earlier runs measured, one line per date and host; "" if a single run measured everything."""
    runs: dict[str, list[str]] = {}
    for case, about in found.earlier.items():
        runs.setdefault(listed(about), []).append(case)
    return "\n".join(f"- by an earlier run: {'; '.join(cases)}: {about}" for about, cases in runs.items())


def slower(found: Results) -> str:
    """Return a list of the cases in which another drainer is faster than the product; "" if there are none."""
    groups = grouped(found.rounds)
    pairs = [(key, ours, key[:2]) for key, ours in groups.items() if key[2] == "ours"]
    ratios = [
        (engine, case, way, ratio(ours, theirs))
        for _, ours, where in pairs
        for (engine, case, way), theirs in groups.items()
        if (engine, case) == where and way != "ours"
    ]
    return "\n".join(f"- {engine}: {case}: {share:.2f} of {way}" for engine, case, way, share in ratios if share > 1)


def main() -> None:
    """Write the page, its plots and the results that they show."""
    source = MEASURED if MEASURED.exists() else SHOWN
    found = results.read(source).ordered()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.svg"):
        old.unlink()
    for plot in plots.plots(found):
        plot.draw(FOLDER / plot.name)
    results.write(SHOWN, found)
    PAGE.write_text(page(found))
    print(f"{PAGE.relative_to(ROOT)}: written of {source.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
