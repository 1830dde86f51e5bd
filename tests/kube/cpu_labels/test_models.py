"""Tests for the CPU model tables, and for the program that generates them from libvirt's CPU map."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kube.cpu_labels.capabilities import MODELS_FILE, get_model_features
from kube.cpu_labels.hyperconverged import ALWAYS_OBSOLETE_MODELS
from localcluster.cpumap.__main__ import format_models, parse_models
from localcluster.errors import LocalClusterError
from tests.proofs import proves

PENRYN_FEATURES = (
    "apic clflush cmov cx16 cx8 de fpu fxsr lahf_lm lm mca mce mmx msr mtrr nx pae pat pge pni pse pse36 sep sse sse2 "
    "sse4.1 ssse3 syscall tsc"
)
HASWELL_FEATURES_ABOVE_PENRYN = (
    "aes avx avx2 bmi1 bmi2 erms fma fsgsbase hle invpcid movbe pcid pclmuldq popcnt rdtscp rtm sse4.2 tsc-deadline "
    "x2apic xsave"
)
"""Features that the requirement document lists for a Haswell CPU in addition to Penryn's features."""
BASE_MODEL_XML = "<cpus><model name='Base'><feature name='fpu'/><feature name='sse'/></model></cpus>"
DERIVED_MODEL_XML = (
    "<cpus><model name='Derived'><model name='Base'/><feature name='avx'/><feature name='vmx-x' added='yes'/>"
    "<feature name='mpx' removed='yes'/></model></cpus>"
)


@proves("OSV-34")
def test_penryn_and_haswell_have_the_documented_features() -> None:
    """Check that Penryn has 29 features, and Haswell 50."""
    assert get_model_features("Penryn") == frozenset(PENRYN_FEATURES.split())
    assert get_model_features("Haswell") == frozenset(
        {*PENRYN_FEATURES.split(), *HASWELL_FEATURES_ABOVE_PENRYN.split(), "smep"}
    )
    assert (len(PENRYN_FEATURES.split()), len(HASWELL_FEATURES_ABOVE_PENRYN.split())) == (29, 20)


@proves("OSV-35", "C13")
def test_haswell_adds_the_documented_features_and_smep() -> None:
    """Check the rule in the requirement document, which results in one feature more than the list in that document."""
    assert (get_model_features("Haswell") or set()) - (get_model_features("Penryn") or set()) == {
        *HASWELL_FEATURES_ABOVE_PENRYN.split(),
        "smep",
    }


@proves("OSV-30")
def test_fifteen_models_are_always_obsolete() -> None:
    """Check that libvirt's CPU map contains each of the fifteen models that are always obsolete."""
    assert len(ALWAYS_OBSOLETE_MODELS) == 15
    assert {name for name in ALWAYS_OBSOLETE_MODELS if get_model_features(name) is None} == set()


def test_unknown_model_names_have_no_features() -> None:
    """Check that the result is None for a name in the wrong case and for an empty name."""
    assert get_model_features("haswell") is None
    assert get_model_features("") is None


def test_models_file_names_its_source_and_licence() -> None:
    """Check that `models.json` states its source and the licence of that source."""
    source = json.loads(MODELS_FILE.read_text())["source"]

    assert "libvirt" in source
    assert "LGPL-2.1-or-later" in source


def test_models_are_generated_from_libvirts_map(tmp_path: Path) -> None:
    """Check that base models' features are included, but not features that libvirt marks as added or removed later."""
    (tmp_path / "x86_Base.xml").write_text(BASE_MODEL_XML)
    (tmp_path / "x86_Derived.xml").write_text(DERIVED_MODEL_XML)
    (tmp_path / "arm_Other.xml").write_text(BASE_MODEL_XML.replace("Base", "Other"))
    parsed = parse_models(tmp_path)

    assert parsed == {"Base": ["fpu", "sse"], "Derived": ["avx", "fpu", "sse"]}
    assert json.loads(format_models(parsed, "1.2.3"))["models"] == {"Base": "fpu sse", "Derived": "avx fpu sse"}


def test_models_file_is_in_the_generators_format() -> None:
    """Check that each model has its own line, in sorted order, so that a newer CPU map gives a readable diff."""
    models = json.loads(MODELS_FILE.read_text())
    version = models["source"].split(",")[0].removeprefix("libvirt ")

    assert (
        format_models({name: features.split() for name, features in models["models"].items()}, version)
        == MODELS_FILE.read_text()
    )


def test_directory_without_models_raises_an_error() -> None:
    """Check that `LocalClusterError` is raised instead of writing an empty file."""
    with pytest.raises(LocalClusterError, match="pass libvirt's directory cpu_map"):
        parse_models(Path("/nowhere"))
