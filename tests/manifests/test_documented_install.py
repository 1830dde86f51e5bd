"""Tests that the commands of the pages about kustomize install, upgrade and remove the product as they are written.

The commands of docs/helm.md run in test_helm_release.py, and those that need running pods in tests/real.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from tests.manifests.documented_commands import read_commands
from tests.manifests.rendering import ROOT, install_knative_crds
from tests.proofs import proves

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]
WRITTEN_BY_COMMANDS = ("build", "mine")
"""Directories that the commands create in the checkout."""
IMAGE = "registry.example/nodemaintenance"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a cluster with Knative's CRDs, without its controllers."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        install_knative_crds(cluster)
        yield cluster


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a directory with links to the repository's files, in which the commands may write."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in WRITTEN_BY_COMMANDS:
            (directory / entry.name).symlink_to(entry)
    return directory


def run_commands(checkout: Path, cluster: LocalCluster, *commands: str) -> None:
    """Run commands with the administrator's kubeconfig, and with a container engine that does nothing."""
    engine = checkout.parent / "engine" / "podman"
    engine.parent.mkdir(exist_ok=True)
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    programs = (engine.parent, build.ensure_programs(), Path(sys.executable).parent)
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=checkout,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def list_images(cluster: LocalCluster) -> set[str]:
    """Return the images of the functions."""
    path = "{.items[*].spec.template.spec.containers[*].image}"
    kinds = "services.serving.knative.dev,deployments,containersources"
    return set(cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", f"jsonpath={path}").stdout.split())


@proves("NMO-24", "NMO-26a")
def test_documented_commands_install_upgrade_and_remove(checkout: Path, cluster: LocalCluster) -> None:
    """NMO-24: the commands install an overlay, add a component, change the image's tag, and remove the product.

    The other commands need running functions: `make cluster-functest` runs in tests/localcluster, and `stop` in
    tests/console.
    """
    push, deploy, *others = read_commands("install.md", "Install the product")
    assert others == ["make cluster-functest", "pipx install ./deploy/kubectl-maintenance"]
    run_commands(checkout, cluster, push, deploy)
    assert list_images(cluster) == {f"{IMAGE}:v0.1.0"}

    run_commands(checkout, cluster, *read_commands("install.md", "Write an overlay of your own"))
    assert cluster.kubectl("get", "deployment", "console", "-n", NAMESPACE, "-o", "name").stdout
    assert list_images(cluster) == {f"{IMAGE}:v0.1.0"}

    run_commands(checkout, cluster, *read_commands("upgrade.md", "Upgrade to a new version"))
    assert list_images(cluster) == {f"{IMAGE}:v0.2.0"}

    stop, undeploy = read_commands("uninstall.md", "Remove the product")
    assert stop == "kubectl maintenance stop --all"
    run_commands(checkout, cluster, undeploy)
    kinds = "crd,namespace,clusterrole,clusterrolebinding,priorityclass"
    names = cluster.kubectl("get", kinds, "-o", "name").stdout.split()
    assert [name for name in names if re.search("node-?maintenance|maintenance-", name)] == []
