"""CPU settings in HyperConverged: the obsolete models and the minimum model (OSV-30..32, C12, C18). Pure functions.

spec: {obsoleteCPUs: {cpuModels: ["Opteron_G1"], minCPUModel: "Penryn"}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kube.cpu.models import ALWAYS_OBSOLETE, features_of
from kube.cpu.problems import MALFORMED_SETTINGS, SEVERAL, UNKNOWN_MODEL, Problem, Wrong, listed, text, texts
from kube.paths import Object

API_VERSION, KIND = "hco.kubevirt.io/v1beta1", "HyperConverged"
PATH = f"/apis/{API_VERSION}/hyperconvergeds"
NAME = "kubevirt-hyperconverged"
"""Name of the object. Its namespace does not matter, because the requirement documents use two."""
LEAST = "Penryn"
FIELD = "spec.obsoleteCPUs"


class Settings(NamedTuple):
    """The models that get no label, and the minimum model (`least`), whose features get no label."""

    obsolete: frozenset[str]
    least: str

    @property
    def base(self) -> frozenset[str]:
        """Return the features of the minimum model, which every node is assumed to have."""
        return features_of(self.least) or frozenset()


DEFAULTS = Settings(ALWAYS_OBSOLETE, LEAST)


def chosen(found: Iterable[Object]) -> tuple[Object | None, list[Problem]]:
    """Return the object that applies, which is the oldest one named `NAME`.

    Each other object with that name gives a problem, which reports that it is ignored.
    """
    named = [item for item in found if item["metadata"]["name"] == NAME]
    ordered = sorted(named, key=lambda item: (item["metadata"]["creationTimestamp"], item["metadata"]["uid"]))
    if not ordered:
        return None, []
    first, *others = ordered
    where = first["metadata"]["namespace"]
    message = f"the one in namespace {where} is older, and counts: remove one of the two"
    return first, [_problem(item, SEVERAL, message) for item in others]


def settings(item: Mapping[str, Any] | None) -> Settings | Problem:
    """Return the settings of the object, with defaults for missing fields.

    Returns a problem if the settings are malformed, or if the minimum model is unknown.
    """
    if item is None:
        return DEFAULTS
    try:
        return _read((item.get("spec") or {}).get("obsoleteCPUs"))
    except Wrong as error:
        return _problem(item, MALFORMED_SETTINGS, f"{error}; the labels stay as they are until then")
    except LookupError as error:
        model = error.args[0]
        remedy = "write a model of libvirt's CPU map, case matters, or leave it out"
        message = f'{FIELD}.minCPUModel "{model}" is not known: {remedy} for {LEAST}; the labels stay until then'
        return _problem(item, UNKNOWN_MODEL, message)


def strangers(item: Mapping[str, Any] | None, found: Settings) -> list[Problem]:
    """Return a problem if the object lists obsolete models that are in no table, such as misspelled ones."""
    unknown = sorted(name for name in found.obsolete - ALWAYS_OBSOLETE if features_of(name) is None)
    if item is None or not unknown:
        return []
    remedy = "write models of libvirt's CPU map, case matters; the others are heeded"
    return [_problem(item, UNKNOWN_MODEL, f"{FIELD}.cpuModels has {listed(unknown)}, in no table: {remedy}")]


def _read(told: object) -> Settings:
    """Parse the settings. Raises `Wrong` if they are malformed, and `LookupError` for an unknown minimum model."""
    if told is None:
        return DEFAULTS
    if not isinstance(told, dict):
        raise Wrong(FIELD, "is no object", "write {cpuModels: [...], minCPUModel: ...}")
    obsolete = texts(told.get("cpuModels"), f"{FIELD}.cpuModels")
    field = "minCPUModel" if told.get("minCPUModel") else "minCPU"  # the requirement documents use both names
    least = text(told[field], f"{FIELD}.{field}") if told.get(field) else LEAST
    if features_of(least) is None:
        raise LookupError(least)
    return Settings(ALWAYS_OBSOLETE.union(obsolete), least)


def _problem(item: Mapping[str, Any], reason: str, message: str) -> Problem:
    return Problem.at(item, API_VERSION, KIND, reason, message)
