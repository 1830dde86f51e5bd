"""Tests of the CPU model tables, and of the program that generates them from libvirt's CPU map."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kube.cpu.models import ALWAYS_OBSOLETE, FILE, features_of
from localcluster.cpumap.__main__ import models, text
from localcluster.errors import LocalClusterError
from tests.proofs import proves

PENRYN = (
    "apic clflush cmov cx16 cx8 de fpu fxsr lahf_lm lm mca mce mmx msr mtrr nx pae pat pge pni pse pse36 sep sse sse2 "
    "sse4.1 ssse3 syscall tsc"
)
PRINTED = (
    "aes avx avx2 bmi1 bmi2 erms fma fsgsbase hle invpcid movbe pcid pclmuldq popcnt rdtscp rtm sse4.2 tsc-deadline "
    "x2apic xsave"
)
"""Features that the requirement document lists for a Haswell CPU in addition to those of Penryn."""
BASE = "<cpus><model name='Base'><feature name='fpu'/><feature name='sse'/></model></cpus>"
HEIR = (
    "<cpus><model name='Heir'><model name='Base'/><feature name='avx'/><feature name='vmx-x' added='yes'/>"
    "<feature name='mpx' removed='yes'/></model></cpus>"
)


@proves("OSV-34")
def test_penryn_and_haswell_are_as_the_document_says() -> None:
    """Penryn has 29 features and Haswell has 50."""
    assert features_of("Penryn") == frozenset(PENRYN.split())
    assert features_of("Haswell") == frozenset({*PENRYN.split(), *PRINTED.split(), "smep"})
    assert (len(PENRYN.split()), len(PRINTED.split())) == (29, 20)


@proves("OSV-35", "C13")
def test_a_haswell_has_what_the_document_prints_and_smep() -> None:
    """Follow the document's rule, which gives one feature more than the document's own list."""
    assert (features_of("Haswell") or set()) - (features_of("Penryn") or set()) == {*PRINTED.split(), "smep"}


@proves("OSV-30")
def test_fifteen_models_are_always_obsolete() -> None:
    """Check that libvirt's CPU map contains each of them."""
    assert len(ALWAYS_OBSOLETE) == 15
    assert {name for name in ALWAYS_OBSOLETE if features_of(name) is None} == set()


def test_names_are_case_sensitive_and_an_unknown_one_has_no_table() -> None:
    """Return None for a name in the wrong case and for an empty name."""
    assert features_of("haswell") is None
    assert features_of("") is None


def test_the_file_names_its_source_and_the_licence() -> None:
    """Check that `models.json` states its source and the licence of that source."""
    source = json.loads(FILE.read_text())["source"]

    assert "libvirt" in source
    assert "LGPL-2.1-or-later" in source


def test_the_file_is_made_of_libvirts_map(tmp_path: Path) -> None:
    """Include the features of base models, but not the features that libvirt marks as added or removed later."""
    (tmp_path / "x86_Base.xml").write_text(BASE)
    (tmp_path / "x86_Heir.xml").write_text(HEIR)
    (tmp_path / "arm_Other.xml").write_text(BASE.replace("Base", "Other"))
    made = models(tmp_path)

    assert made == {"Base": ["fpu", "sse"], "Heir": ["avx", "fpu", "sse"]}
    assert json.loads(text(made, "1.2.3"))["models"] == {"Base": "fpu sse", "Heir": "avx fpu sse"}


def test_the_file_is_as_its_program_writes_it() -> None:
    """Write one model per line in sorted order, so that a newer CPU map gives a readable diff."""
    told = json.loads(FILE.read_text())
    version = told["source"].split(",")[0].removeprefix("libvirt ")

    assert text({name: features.split() for name, features in told["models"].items()}, version) == FILE.read_text()


def test_a_folder_without_models_is_told() -> None:
    """Raise `LocalClusterError` instead of writing an empty file."""
    with pytest.raises(LocalClusterError, match="name libvirt's folder cpu_map"):
        models(Path("/nowhere"))
