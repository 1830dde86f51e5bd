"""Tests that each link in the Markdown pages leads to an existing file and heading."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sources import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK_PATTERN = re.compile(r"\]\(([^)\s]+)\)")


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub builds them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)).lower().replace(" ", "-") for heading in headings
    }


def find_broken_links(page: Path) -> list[str]:
    """Return the links of a page to files or headings that do not exist, each with the page's name."""
    broken = []
    for link in LINK_PATTERN.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in list_anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def test_links_lead_to_existing_headings() -> None:
    """Check all links of all pages, and report all broken ones."""
    assert [link for page in PAGES for link in find_broken_links(page)] == []
