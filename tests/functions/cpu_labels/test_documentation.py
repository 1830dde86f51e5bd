"""Tests that the examples and lists in docs/cpu-labels.md are true."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kube.cpu import problems
from kube.cpu.capabilities import LABEL
from kube.cpu.models import ALWAYS_OBSOLETE
from kube.cpu.node_patch import FEATURE, MARK, MODEL
from tests.functions.cpu_labels.conftest import Labelling
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Workload

PAGE = (ROOT / "docs" / "cpu-labels.md").read_text()
MAP, HYPERCONVERGED = (yaml.safe_load(shown) for shown in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def labels(labelling: Labelling, work: Workload) -> dict[str, set[str]]:
    """Return the labels of each node of the page, with the page's ConfigMap and HyperConverged applied."""
    nodes = {name: work.node() for name in ("worker-1", "worker-2", "worker-3")}

    def here(text: str) -> str:
        return re.sub(r"worker-\d", lambda found: nodes[found[0]], text)

    labelling.offer({here(key): here(value) for key, value in MAP["data"].items()})
    labelling.wish(HYPERCONVERGED["spec"]["obsoleteCPUs"])
    labelling.changed("HyperConverged")
    return {name: labelling.labels(node) for name, node in nodes.items()}


@proves("OSV-31", "OSV-32", "OSV-38")
def test_the_objects_that_the_page_shows_have_nodes_labelled(labels: dict[str, set[str]]) -> None:
    """Check the labels that result from the page's ConfigMap and HyperConverged.

    One node is named by its own key, and two are listed in an entry. Haswell is obsolete, and Nehalem already has
    sse4.2.
    """
    assert {name for name in labels["worker-1"] if name.startswith(MODEL)} == {f"{MODEL}Penryn"}
    assert {f"{FEATURE}avx2", f"{FEATURE}smep"} < labels["worker-1"]
    assert labels["worker-2"] == labels["worker-3"] == {f"{MODEL}Penryn"}


def test_the_page_has_the_labels_as_they_are_written() -> None:
    """Check that the page names the ConfigMap's label and the nodes' labels as the code writes them."""
    assert MAP["metadata"]["labels"] == {LABEL: ""}
    assert all(f"| `{name}" in PAGE for name in (MODEL, FEATURE, MARK))


@proves("OSV-30")
def test_the_page_names_what_is_always_obsolete() -> None:
    """Check that the page lists all fifteen models that are always obsolete, because no object lists them."""
    said = re.search(r"Always obsolete are (.*?)\. Without", PAGE, re.DOTALL)
    assert said is not None
    assert set(re.findall(r"`(\w+)`", said[1])) == ALWAYS_OBSOLETE


def test_the_page_lists_every_reason_of_an_event() -> None:
    """Check that the page explains the reason of every Event that the step records."""
    known: dict[str, Any] = vars(problems)
    reasons = {value for name, value in known.items() if name.isupper() and isinstance(value, str)}
    section = PAGE.partition("## What is wrong")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == reasons
