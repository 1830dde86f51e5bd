"""`make performance`: docs/performance.md and its plots, of what `make bench` measured last, else of what the page has.

It is made of `template.md` beside this file, in which a name in double braces stands for a part that is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import results
from bench.page import plots, tables
from bench.results import Results, grouped, ratio
from bench.stopwatch import ROOT
from localcluster.trouble import LocalClusterError

MEASURED = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
FOLDER = PAGE.with_suffix("")
SHOWN = FOLDER / "results.json"
"""What the page shows; the page is the same as long as this and the template are."""
TEMPLATE = Path(__file__).with_name("template.md")
NOTHING = "Nothing."


def page(found: Results) -> str:
    """The whole page."""
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
    """When and on what something was measured, in words."""
    return ", ".join(f"{name} {value}" for name, value in about.items())


def earlier(found: Results) -> str:
    """What an earlier run has measured, a line for each time and machine; "" where one run has measured all."""
    runs: dict[str, list[str]] = {}
    for case, about in found.earlier.items():
        runs.setdefault(listed(about), []).append(case)
    return "\n".join(f"- by an earlier run: {'; '.join(cases)}: {about}" for about, cases in runs.items())


def slower(found: Results) -> str:
    """The cases in which another way takes less time than ours, as a list; "" when there is none."""
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
    """Write the page, its plots, and what they show."""
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
