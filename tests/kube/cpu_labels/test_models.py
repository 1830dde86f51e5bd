"""Tests for the table of CPU models in `models.json`, and for its generator, which reads libvirt's CPU map."""

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
def test_penryn_and_haswell_have_documented_number_of_features() -> None:
    """Check that the CPU model Penryn has 29 features, and Haswell has 50."""
    assert get_model_features("Penryn") == frozenset(PENRYN_FEATURES.split())
    assert get_model_features("Haswell") == frozenset(
        {*PENRYN_FEATURES.split(), *HASWELL_FEATURES_ABOVE_PENRYN.split(), "smep"}
    )
    assert (len(PENRYN_FEATURES.split()), len(HASWELL_FEATURES_ABOVE_PENRYN.split())) == (29, 20)


@proves("OSV-35", "C13")
def test_haswell_adds_documented_features_and_smep() -> None:
    """Check that Haswell adds to Penryn the features that the requirement document lists, and `smep`."""
    assert (get_model_features("Haswell") or set()) - (get_model_features("Penryn") or set()) == {
        *HASWELL_FEATURES_ABOVE_PENRYN.split(),
        "smep",
    }


@proves("OSV-30")
def test_fifteen_models_are_always_obsolete() -> None:
    """Check that libvirt's CPU map contains each of the fifteen models that are always obsolete."""
    assert len(ALWAYS_OBSOLETE_MODELS) == 15
    assert {name for name in ALWAYS_OBSOLETE_MODELS if get_model_features(name) is None} == set()


def test_unknown_cpu_model_has_no_features() -> None:
    """Check that the features of a CPU model with the wrong case or an empty name are None."""
    assert get_model_features("haswell") is None
    assert get_model_features("") is None


def test_models_file_names_its_source_and_licence() -> None:
    """Check that `models.json` states the source of its data and the licence of that source."""
    source = json.loads(MODELS_FILE.read_text())["source"]

    assert "libvirt" in source
    assert "LGPL-2.1-or-later" in source


def test_cpu_models_are_generated_from_libvirt_cpu_map(tmp_path: Path) -> None:
    """Check that a model has its base model's features, but none that libvirt marks as added or removed later."""
    (tmp_path / "x86_Base.xml").write_text(BASE_MODEL_XML)
    (tmp_path / "x86_Derived.xml").write_text(DERIVED_MODEL_XML)
    (tmp_path / "arm_Other.xml").write_text(BASE_MODEL_XML.replace("Base", "Other"))
    parsed = parse_models(tmp_path)

    assert parsed == {"Base": ["fpu", "sse"], "Derived": ["avx", "fpu", "sse"]}
    assert json.loads(format_models(parsed, "1.2.3"))["models"] == {"Base": "fpu sse", "Derived": "avx fpu sse"}


def test_models_file_has_format_of_generator() -> None:
    """Check that `models.json` has one line per model in sorted order, so that a newer CPU map has a readable diff."""
    models = json.loads(MODELS_FILE.read_text())
    version = models["source"].split(",")[0].removeprefix("libvirt ")

    assert (
        format_models({name: features.split() for name, features in models["models"].items()}, version)
        == MODELS_FILE.read_text()
    )


def test_generator_rejects_directory_without_cpu_models() -> None:
    """Check that the generator raises `LocalClusterError` if the directory contains no CPU models."""
    with pytest.raises(LocalClusterError, match="pass libvirt's directory cpu_map"):
        parse_models(Path("/nowhere"))
