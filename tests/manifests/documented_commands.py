"""Reads commands from the pages in docs/, so that tests run the commands as the pages show them."""

from __future__ import annotations

import re

from tests.manifests.rendering import ROOT

PROMPT = "$ "


def read_commands(page: str, heading: str) -> list[str]:
    """Return the commands in the first console block below a heading of a page, such as `helm.md`.

    A command includes the lines after it that have no prompt, such as those of a here document.
    """
    text = (ROOT / "docs" / page).read_text()
    section = text.partition(f"# {heading}\n")[2]
    assert section, f"docs/{page} has no heading {heading!r}"
    block = section.partition("```console\n")[2].partition("```")[0]
    return [command.rstrip("\n") for command in re.split(rf"^{re.escape(PROMPT)}", block, flags=re.MULTILINE)[1:]]
