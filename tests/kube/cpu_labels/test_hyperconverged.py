"""Tests for parsing the CPU settings of a HyperConverged: obsolete CPU models and the minimum CPU model."""

from __future__ import annotations

from typing import Any

import pytest

from kube.cpu_labels.hyperconverged import (
    ALWAYS_OBSOLETE_MODELS,
    DEFAULT_SETTINGS,
    HYPERCONVERGED_NAME,
    CpuModelSettings,
    parse_settings,
    select_hyperconverged,
)
from kube.cpu_labels.problems import HYPERCONVERGED_IGNORED, MALFORMED_SETTINGS, UNKNOWN_MODEL, Problem
from kube.paths import Object
from tests.proofs import proves


def make_hyperconverged(
    obsolete_cpus: Any, *, namespace: str = "openshift-cnv", created: str = "2026-01-01T00:00:00Z"
) -> Object:
    metadata = {
        "name": HYPERCONVERGED_NAME,
        "namespace": namespace,
        "uid": f"uid-{namespace}",
        "creationTimestamp": created,
    }
    return {"metadata": metadata, "spec": {"obsoleteCPUs": obsolete_cpus}}


def parse_obsolete_cpus(obsolete_cpus: Any) -> CpuModelSettings:
    settings = parse_settings(make_hyperconverged(obsolete_cpus))
    assert isinstance(settings, CpuModelSettings), settings
    return settings


@proves("OSV-31")
def test_listed_models_are_obsolete_in_addition_to_always_obsolete_models() -> None:
    """Check that a HyperConverged may also list CPU models that are unknown or always obsolete."""
    assert parse_obsolete_cpus(
        {"cpuModels": ["Haswell", "Conroe", "Nobody"]}
    ).obsolete_models == ALWAYS_OBSOLETE_MODELS | {"Haswell", "Nobody"}


@proves("OSV-32", "C12")
@pytest.mark.parametrize(
    ("obsolete_cpus", "min_model"),
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
def test_minimum_cpu_model_has_default_and_two_field_names(obsolete_cpus: Any, min_model: str) -> None:
    """Check that the minimum CPU model is read from either of the two field names in the requirement documents."""
    assert parse_obsolete_cpus(obsolete_cpus).min_model == min_model


@proves("OSV-32")
def test_unknown_minimum_cpu_model_is_reported() -> None:
    """Check that an unknown minimum CPU model is reported; without one, every feature would become a label."""
    settings = parse_settings(make_hyperconverged({"minCPUModel": "penryn"}))

    assert isinstance(settings, Problem)
    assert settings.reason == UNKNOWN_MODEL
    assert settings.message.startswith('spec.obsoleteCPUs.minCPUModel "penryn" is unknown: use a model name of libvirt')


@pytest.mark.parametrize(
    ("obsolete_cpus", "message"),
    [
        ([], "spec.obsoleteCPUs is not an object: write {cpuModels: [...], minCPUModel: ...}"),
        ({"cpuModels": "486"}, 'spec.obsoleteCPUs.cpuModels is a string: use a list of names, such as ["Haswell"]'),
        ({"cpuModels": [486]}, 'spec.obsoleteCPUs.cpuModels[0] is a number: use a quoted string, such as "486"'),
        ({"cpuModels": ["a", ""]}, "spec.obsoleteCPUs.cpuModels[1] is empty: use a name, or omit the value"),
        ({"minCPUModel": ["a"]}, 'spec.obsoleteCPUs.minCPUModel is a list: use a quoted string, such as "Haswell"'),
    ],
)
def test_malformed_cpu_settings_are_reported_with_field_and_remedy(obsolete_cpus: Any, message: str) -> None:
    """Check that malformed settings, which a CRD without a schema accepts, are reported."""
    settings = parse_settings(make_hyperconverged(obsolete_cpus))

    assert isinstance(settings, Problem)
    assert (settings.reason, settings.message) == (
        MALFORMED_SETTINGS,
        f"{message}; until then, the node labels stay unchanged",
    )


@proves("C18")
def test_oldest_hyperconverged_takes_precedence_and_others_are_reported() -> None:
    """Check that the oldest HyperConverged takes precedence, and that objects with another name are ignored."""
    old, new = make_hyperconverged({}), make_hyperconverged({}, namespace="other", created="2026-02-01T00:00:00Z")
    other_name = {"metadata": {**old["metadata"], "name": "stranger"}}
    selected, problems = select_hyperconverged([new, other_name, old])

    assert selected is old
    assert [(problem.regarding["namespace"], problem.reason) for problem in problems] == [
        ("other", HYPERCONVERGED_IGNORED)
    ]


def test_default_cpu_settings_apply_without_hyperconverged() -> None:
    assert select_hyperconverged([]) == (None, [])
    assert parse_settings(None) == parse_settings({"metadata": {}}) == DEFAULT_SETTINGS
