"""KUBEBUILDER_ASSETS provides the API server, etcd and kubectl, so that only the controllers are built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.programs import assets, build
from localcluster.errors import LocalClusterError
from tests.localcluster.test_build import FakeGo

OURS = {"kube-controller-manager", "kube-scheduler", "kwok"}
NOTING = """#!/bin/sh
echo {name} >> {notes}
exec {program} "$@"
"""


def ready_made(folder: Path, notes: Path, programs: Path) -> Path:
    """Create a directory of programs that log their name and execute the program of the same name in `programs`."""
    folder.mkdir()
    for name in assets.PROGRAMS:
        (folder / name).write_text(NOTING.format(name=name, notes=notes, program=programs / name))
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    """Return a fake go that is first on PATH, with an empty cache."""
    fake = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


@pytest.mark.slow
def test_a_cluster_runs_on_the_named_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a cluster runs etcd, kube-apiserver and kubectl from the named directory."""
    monkeypatch.delenv(assets.VARIABLE, raising=False)
    built, notes = build.servers(), tmp_path / "notes"
    monkeypatch.setenv(assets.VARIABLE, str(ready_made(tmp_path / "assets", notes, built)))

    with LocalCluster(tmp_path / "cluster", nodes=1) as cluster:
        nodes = cluster.kubectl("get", "nodes", "-o", "name").stdout.split()

    assert nodes == ["node/node-1"]
    assert set(notes.read_text().split()) == set(assets.PROGRAMS)
    shutil.rmtree(build.target())


def test_only_the_controllers_are_built(
    go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that only the controllers are built, only once, and that a different version is reported."""
    given = ready_made(tmp_path / "assets", tmp_path / "notes", Path("/usr/bin"))
    (given / "kube-apiserver").write_text("#!/bin/sh\necho Kubernetes v1.30.0\n")
    monkeypatch.setenv(assets.VARIABLE, str(given))

    folder = build.servers()

    assert build.servers() == build.target() == folder
    assert go.modules() == ["kubernetes"]
    assert {entry.name for entry in folder.iterdir()} == {*assets.PROGRAMS, *OURS}
    assert {entry.name for entry in folder.iterdir() if given in entry.resolve().parents} == set(assets.PROGRAMS)
    assert (
        f"kube-apiserver is v1.30.0, kube-controller-manager, kube-scheduler, kwok fit {build.KUBERNETES_VERSION}"
        in (capsys.readouterr().out)
    )


def test_a_program_that_is_missing_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a missing program is named, and that nothing is built or started."""
    given = ready_made(tmp_path / "assets", tmp_path / "notes", Path("/usr/bin"))
    (given / "etcd").unlink()
    (given / "kubectl").chmod(0o644)
    monkeypatch.setenv(assets.VARIABLE, str(given))

    with pytest.raises(LocalClusterError, match=r"^KUBEBUILDER_ASSETS=\S+ has no program etcd, kubectl: let it name "):
        build.servers()


def test_other_programs_are_built_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the variable affects only the Kubernetes programs."""
    monkeypatch.delenv(assets.VARIABLE, raising=False)
    expected = build.target(build.KNATIVE)
    monkeypatch.setenv(assets.VARIABLE, str(tmp_path / "nowhere"))

    assert build.target(build.KNATIVE) == expected
