"""The CRDs of the Prometheus operator that the component `monitoring` needs."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.programs import build

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CRDS = ("podmonitors", "prometheusrules")


def install(cluster: LocalCluster) -> None:
    """Apply the CRDs; return when they are served."""
    for file in crds():
        cluster.kubectl("apply", "--server-side", "-f", file)
    cluster.await_kinds(*(f"{kind}.monitoring.coreos.com" for kind in CRDS))


def crds() -> list[Path]:
    """Return the files of these CRDs, downloading them if necessary."""
    # The download runs outside of this repository's Go modules, so that it changes none of them.
    module = build.download_module(OPERATOR, build.cache(), GOFLAGS="-mod=mod")
    folder = module / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in CRDS]
