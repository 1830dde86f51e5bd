"""Tests of the CPU settings in HyperConverged: obsolete models, the minimum model, and malformed fields."""

from __future__ import annotations

from typing import Any

import pytest

from kube.cpu.hyperconverged import DEFAULTS, NAME, Settings, chosen, settings
from kube.cpu.models import ALWAYS_OBSOLETE
from kube.cpu.problems import MALFORMED_SETTINGS, SEVERAL, UNKNOWN_MODEL, Problem
from kube.paths import Object
from tests.proofs import proves


def hyperconverged(told: Any, *, namespace: str = "openshift-cnv", created: str = "2026-01-01T00:00:00Z") -> Object:
    metadata = {"name": NAME, "namespace": namespace, "uid": f"uid-{namespace}", "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"obsoleteCPUs": told}}


def read(told: Any) -> Settings:
    found = settings(hyperconverged(told))
    assert isinstance(found, Settings), found
    return found


@proves("OSV-31")
def test_what_is_named_is_added_to_what_is_always_obsolete() -> None:
    """Accept models that are unknown or always obsolete anyway."""
    assert read({"cpuModels": ["Haswell", "Conroe", "Nobody"]}).obsolete == ALWAYS_OBSOLETE | {"Haswell", "Nobody"}


@proves("OSV-32", "C12")
@pytest.mark.parametrize(
    ("told", "least"),
    [
        (None, "Penryn"),
        ({}, "Penryn"),
        ({"minCPUModel": ""}, "Penryn"),
        ({"minCPUModel": None}, "Penryn"),
        ({"minCPUModel": "Haswell"}, "Haswell"),
        ({"minCPU": "Haswell"}, "Haswell"),
        ({"minCPUModel": "Nehalem", "minCPU": "Haswell"}, "Nehalem"),
    ],
)
def test_the_least_model_has_a_default(told: Any, least: str) -> None:
    """Read the minimum model from either of the two field names in the requirement documents."""
    assert read(told).least == least


@proves("OSV-32")
def test_an_unknown_least_model_is_a_problem_and_no_settings() -> None:
    """Return a problem: without a minimum model, every feature of every node would become a label."""
    found = settings(hyperconverged({"minCPUModel": "penryn"}))

    assert isinstance(found, Problem)
    assert found.reason == UNKNOWN_MODEL
    assert found.message.startswith('spec.obsoleteCPUs.minCPUModel "penryn" is not known: write a model of libvirt')


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "spec.obsoleteCPUs is no object: write {cpuModels: [...], minCPUModel: ...}"),
        ({"cpuModels": "486"}, 'spec.obsoleteCPUs.cpuModels is text: write a list of names, such as ["Haswell"]'),
        ({"cpuModels": [486]}, 'spec.obsoleteCPUs.cpuModels[0] is a number: write text, in quotes: "486"'),
        ({"cpuModels": ["a", ""]}, "spec.obsoleteCPUs.cpuModels[1] is empty: write a name, or leave it out"),
        ({"minCPUModel": ["a"]}, 'spec.obsoleteCPUs.minCPUModel is a list: write text, in quotes: "Haswell"'),
    ],
)
def test_what_is_malformed_names_field_and_remedy(told: Any, message: str) -> None:
    """Report a problem for values that a CRD without a schema accepts."""
    found = settings(hyperconverged(told))

    assert isinstance(found, Problem)
    assert (found.reason, found.message) == (
        MALFORMED_SETTINGS,
        f"{message}; the labels stay as they are until then",
    )


@proves("C18")
def test_of_two_the_oldest_counts_and_the_other_is_told() -> None:
    """Choose the oldest object in any namespace, and ignore objects with another name."""
    old, new = hyperconverged({}), hyperconverged({}, namespace="other", created="2026-02-01T00:00:00Z")
    stranger = {"metadata": {**old["metadata"], "name": "stranger"}}
    item, problems = chosen([new, stranger, old])

    assert item is old
    assert [(problem.about["namespace"], problem.reason) for problem in problems] == [("other", SEVERAL)]


def test_without_an_object_the_defaults_hold() -> None:
    assert chosen([]) == (None, [])
    assert settings(None) == settings({"metadata": {}}) == DEFAULTS
