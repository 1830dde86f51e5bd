"""Parses the CPU settings in a HyperConverged: obsolete models and the minimum model (OSV-30 to OSV-32, C12, C18).

For example, `spec: {obsoleteCPUs: {cpuModels: ["Opteron_G1"], minCPUModel: "Penryn"}}`. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kube.cpu_labels.capabilities import get_model_features
from kube.cpu_labels.problems import (
    HYPERCONVERGED_IGNORED,
    UNKNOWN_MODEL,
    InvalidField,
    Problem,
    format_names,
    parse_string,
    parse_string_list,
)
from kube.paths import Object

API_VERSION, KIND = "hco.kubevirt.io/v1beta1", "HyperConverged"
HYPERCONVERGEDS_PATH = f"/apis/{API_VERSION}/hyperconvergeds"
HYPERCONVERGED_NAME = "kubevirt-hyperconverged"
"""Name of the HyperConverged object; its namespace may vary, because the requirement documents mention two."""
ALWAYS_OBSOLETE_MODELS = frozenset(
    (
        *("486", "Conroe", "athlon", "core2duo", "coreduo", "kvm32", "kvm64", "n270"),
        *("pentium", "pentium2", "pentium3", "pentiumpro", "phenom", "qemu32", "qemu64"),
    )
)
"""CPU models for which no node gets a label, regardless of the HyperConverged object."""
DEFAULT_MIN_MODEL = "Penryn"
OBSOLETE_CPUS_FIELD = "spec.obsoleteCPUs"


class CpuModelSettings(NamedTuple):
    """The CPU models that get no label, and the minimum model (`min_model`), whose features get no label."""

    obsolete_models: frozenset[str]
    min_model: str

    @property
    def base_features(self) -> frozenset[str]:
        """Return the features of the minimum CPU model, which every node is assumed to have."""
        return get_model_features(self.min_model) or frozenset()


DEFAULT_SETTINGS = CpuModelSettings(ALWAYS_OBSOLETE_MODELS, DEFAULT_MIN_MODEL)


def select_hyperconverged(hyperconvergeds: Iterable[Object]) -> tuple[Object | None, list[Problem]]:
    """Return the HyperConverged object that takes effect: the oldest one named `HYPERCONVERGED_NAME`.

    For each other object with that name, also return a problem which reports that the object is ignored.
    """
    named = [obj for obj in hyperconvergeds if obj["metadata"]["name"] == HYPERCONVERGED_NAME]
    ordered = sorted(named, key=lambda obj: (obj["metadata"]["creationTimestamp"], obj["metadata"]["uid"]))
    if not ordered:
        return None, []
    first, *others = ordered
    namespace = first["metadata"]["namespace"]
    message = f"the older HyperConverged in namespace {namespace} takes precedence: remove one of the two"
    return first, [_build_problem(other, HYPERCONVERGED_IGNORED, message) for other in others]


def parse_settings(hyperconverged: Mapping[str, Any] | None) -> CpuModelSettings | Problem:
    """Parse the CPU settings in the HyperConverged object; missing fields get their defaults.

    Returns a problem if the settings are malformed, or if the minimum model is unknown.
    """
    if hyperconverged is None:
        return DEFAULT_SETTINGS
    try:
        return _parse_obsolete_cpus((hyperconverged.get("spec") or {}).get("obsoleteCPUs"))
    except InvalidField as error:
        message = f"{error}; until then, the node labels stay unchanged"
        return _build_problem(hyperconverged, error.reason, message)


def find_unknown_models(hyperconverged: Mapping[str, Any] | None, model_settings: CpuModelSettings) -> list[Problem]:
    """Return a problem if the HyperConverged object lists unknown obsolete models, such as misspelled ones."""
    listed = model_settings.obsolete_models - ALWAYS_OBSOLETE_MODELS
    unknown = [name for name in listed if get_model_features(name) is None]
    if hyperconverged is None or not unknown:
        return []
    remedy = "use model names of libvirt's CPU map (case-sensitive); the other models apply"
    message = f"{OBSOLETE_CPUS_FIELD}.cpuModels contains unknown models ({format_names(unknown)}): {remedy}"
    return [_build_problem(hyperconverged, UNKNOWN_MODEL, message)]


def _parse_obsolete_cpus(value: object) -> CpuModelSettings:
    """Parse `spec.obsoleteCPUs`. Raises `InvalidField` for a malformed value or an unknown minimum model."""
    if value is None:
        return DEFAULT_SETTINGS
    if not isinstance(value, dict):
        raise InvalidField(OBSOLETE_CPUS_FIELD, "is not an object", "write {cpuModels: [...], minCPUModel: ...}")
    obsolete = parse_string_list(value.get("cpuModels"), f"{OBSOLETE_CPUS_FIELD}.cpuModels")
    field = "minCPUModel" if value.get("minCPUModel") else "minCPU"  # the requirement documents use both field names
    min_model = parse_string(value[field], f"{OBSOLETE_CPUS_FIELD}.{field}") if value.get(field) else DEFAULT_MIN_MODEL
    if get_model_features(min_model) is None:
        remedy = f"use a model name of libvirt's CPU map (case-sensitive), or omit the field for {DEFAULT_MIN_MODEL}"
        raise InvalidField(f'{OBSOLETE_CPUS_FIELD}.minCPUModel "{min_model}"', "is unknown", remedy, UNKNOWN_MODEL)
    return CpuModelSettings(ALWAYS_OBSOLETE_MODELS.union(obsolete), min_model)


def _build_problem(hyperconverged: Mapping[str, Any], reason: str, message: str) -> Problem:
    return Problem.from_object(hyperconverged, API_VERSION, KIND, reason, message)
