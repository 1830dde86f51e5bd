"""Tests for KUBEBUILDER_ASSETS, which provides kube-apiserver, etcd and kubectl; only the controllers are built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.programs import build, envtest
from tests.localcluster.test_build import FakeGo

BUILT_PROGRAMS = {"kube-controller-manager", "kube-scheduler", "kwok"}
LOGGING_SCRIPT = """#!/bin/sh
echo {name} >> {log_file}
exec {program} "$@"
"""


def create_assets(directory: Path, log_file: Path, programs: Path) -> Path:
    """Create a directory of scripts that log their own name, and run the program of the same name in `programs`."""
    directory.mkdir()
    for name in envtest.PROGRAMS:
        (directory / name).write_text(LOGGING_SCRIPT.format(name=name, log_file=log_file, program=programs / name))
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    """Put a fake `go` first on PATH, select an empty cache, and return the fake."""
    fake = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


@pytest.mark.slow
def test_cluster_runs_programs_from_kubebuilder_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a cluster runs etcd, kube-apiserver and kubectl from the directory in KUBEBUILDER_ASSETS."""
    monkeypatch.delenv(envtest.ASSETS_VARIABLE, raising=False)
    programs, log_file = build.ensure_programs(), tmp_path / "log"
    monkeypatch.setenv(envtest.ASSETS_VARIABLE, str(create_assets(tmp_path / "assets", log_file, programs)))

    with LocalCluster(tmp_path / "cluster", nodes=1) as cluster:
        nodes = cluster.kubectl("get", "nodes", "-o", "name").stdout.split()

    assert nodes == ["node/node-1"]
    assert set(log_file.read_text().split()) == set(envtest.PROGRAMS)
    shutil.rmtree(build.get_target_dir())


def test_only_controllers_are_built_with_kubebuilder_assets(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that only the controllers are built, and only once, and that a different version is reported."""
    asset_dir = create_assets(tmp_path / "assets", tmp_path / "log", Path("/usr/bin"))
    (asset_dir / "kube-apiserver").write_text("#!/bin/sh\necho Kubernetes v1.30.0\n")
    monkeypatch.setenv(envtest.ASSETS_VARIABLE, str(asset_dir))

    folder = build.ensure_programs()

    assert build.ensure_programs() == build.get_target_dir() == folder
    assert fake_go.list_modules() == ["kubernetes"]
    assert {file.name for file in folder.iterdir()} == {*envtest.PROGRAMS, *BUILT_PROGRAMS}
    assert {file.name for file in folder.iterdir() if asset_dir in file.resolve().parents} == set(envtest.PROGRAMS)
    assert (
        f"kube-apiserver is v1.30.0, but kube-controller-manager, kube-scheduler, kwok are {build.KUBERNETES_VERSION}"
        in (capsys.readouterr().out)
    )


def test_programs_missing_from_kubebuilder_assets_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that programs missing from KUBEBUILDER_ASSETS are listed, and that nothing is built or started."""
    asset_dir = create_assets(tmp_path / "assets", tmp_path / "log", Path("/usr/bin"))
    (asset_dir / "etcd").unlink()
    (asset_dir / "kubectl").chmod(0o644)
    monkeypatch.setenv(envtest.ASSETS_VARIABLE, str(asset_dir))

    with pytest.raises(LocalClusterError, match=r"^KUBEBUILDER_ASSETS=\S+: etcd, kubectl not found: set it to "):
        build.ensure_programs()


def test_kubebuilder_assets_does_not_affect_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that KUBEBUILDER_ASSETS affects only the Kubernetes programs."""
    monkeypatch.delenv(envtest.ASSETS_VARIABLE, raising=False)
    expected = build.get_target_dir(build.KNATIVE)
    monkeypatch.setenv(envtest.ASSETS_VARIABLE, str(tmp_path / "nowhere"))

    assert build.get_target_dir(build.KNATIVE) == expected
