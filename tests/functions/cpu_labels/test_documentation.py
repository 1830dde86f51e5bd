"""Tests that the examples and lists in docs/cpu-labels.md are correct."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kube.cpu_labels import problems
from kube.cpu_labels.capabilities import CAPABILITIES_LABEL
from kube.cpu_labels.hyperconverged import ALWAYS_OBSOLETE_MODELS
from kube.cpu_labels.node_patch import FEATURE_LABEL_PREFIX, MANAGED_LABEL, MODEL_LABEL_PREFIX
from tests.functions.cpu_labels.conftest import CpuLabelScenario
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Workload

PAGE_TEXT = (ROOT / "docs" / "cpu-labels.md").read_text()
EXAMPLE_CONFIG_MAP, EXAMPLE_HYPERCONVERGED = (
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE_TEXT, re.DOTALL)
)


@pytest.fixture
def labels_by_node(scenario: CpuLabelScenario, workload: Workload) -> dict[str, set[str]]:
    """Apply the ConfigMap and HyperConverged of docs/cpu-labels.md, and return the labels of each node."""
    nodes = {name: workload.take_node() for name in ("worker-1", "worker-2", "worker-3")}

    def replace_node_names(text: str) -> str:
        return re.sub(r"worker-\d", lambda match: nodes[match[0]], text)

    scenario.replace_capabilities(
        {replace_node_names(key): replace_node_names(value) for key, value in EXAMPLE_CONFIG_MAP["data"].items()}
    )
    scenario.set_obsolete_cpus(EXAMPLE_HYPERCONVERGED["spec"]["obsoleteCPUs"])
    scenario.run_round("HyperConverged")
    return {name: scenario.list_cpu_labels(node) for name, node in nodes.items()}


@proves("OSV-31", "OSV-32", "OSV-38")
def test_examples_produce_documented_labels(labels_by_node: dict[str, set[str]]) -> None:
    """Check that the examples in docs/cpu-labels.md produce the labels that the page shows.

    The name of one node is a key of the ConfigMap, and a shared entry lists two nodes. The CPU model Haswell is
    obsolete, and the model Nehalem includes the feature `sse4.2`.
    """
    assert {name for name in labels_by_node["worker-1"] if name.startswith(MODEL_LABEL_PREFIX)} == {
        f"{MODEL_LABEL_PREFIX}Penryn"
    }
    assert {f"{FEATURE_LABEL_PREFIX}avx2", f"{FEATURE_LABEL_PREFIX}smep"} < labels_by_node["worker-1"]
    assert labels_by_node["worker-2"] == labels_by_node["worker-3"] == {f"{MODEL_LABEL_PREFIX}Penryn"}


def test_cpu_labels_page_spells_labels_as_in_code() -> None:
    """Check that docs/cpu-labels.md contains the ConfigMap's label and the node labels as the code spells them."""
    assert EXAMPLE_CONFIG_MAP["metadata"]["labels"] == {CAPABILITIES_LABEL: ""}
    assert all(f"| `{name}" in PAGE_TEXT for name in (MODEL_LABEL_PREFIX, FEATURE_LABEL_PREFIX, MANAGED_LABEL))


@proves("OSV-30")
def test_cpu_labels_page_lists_always_obsolete_models() -> None:
    """Check that docs/cpu-labels.md lists all fifteen CPU models that are always obsolete; no API object lists them."""
    match = re.search(r"Always obsolete are (.*?)\.\sWithout", PAGE_TEXT, re.DOTALL)
    assert match is not None
    assert set(re.findall(r"`(\w+)`", match[1])) == ALWAYS_OBSOLETE_MODELS


def test_cpu_labels_page_lists_every_event_reason() -> None:
    """Check that docs/cpu-labels.md explains the reason of every Event that `label-cpu` records."""
    constants: dict[str, Any] = vars(problems)
    reasons = {value for name, value in constants.items() if name.isupper() and isinstance(value, str)}
    section = PAGE_TEXT.partition("## Reported problems")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == reasons
