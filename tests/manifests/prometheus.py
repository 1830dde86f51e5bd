"""The kinds of the Prometheus operator, of which the component `monitoring` makes objects."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.programs import build, go_install, toolchain
from localcluster.trouble import LocalClusterError

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CRDS = ("podmonitors", "prometheusrules")


def install(cluster: LocalCluster) -> None:
    """Apply them; return when they are served."""
    for file in crds():
        cluster.kubectl("apply", "--server-side", "-f", file)
    cluster.await_kinds(*(f"{kind}.monitoring.coreos.com" for kind in CRDS))


def crds() -> list[Path]:
    """Return the files of these kinds; download them if need be."""
    folder = _module() / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in CRDS]


def _module() -> Path:
    """Download the operator's module outside of any module, so that nothing of ours is changed by it."""
    command = [str(toolchain.go(build.cache())), "mod", "download", "-json", OPERATOR]
    environment = go_install.environment(GOFLAGS="-mod=mod")
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=build.cache(), env=environment)
    if done.returncode:
        raise LocalClusterError(f"{OPERATOR} cannot be downloaded: {done.stderr.strip()}\n{go_install.OFFLINE}")
    return Path(json.loads(done.stdout)["Dir"])
