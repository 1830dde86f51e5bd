"""The kinds of the Prometheus operator, of which the component `monitoring` makes objects."""

from __future__ import annotations

from pathlib import Path

from localcluster.cluster import LocalCluster
from localcluster.programs import build

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CRDS = ("podmonitors", "prometheusrules")


def install(cluster: LocalCluster) -> None:
    """Apply them; return when they are served."""
    for file in crds():
        cluster.kubectl("apply", "--server-side", "-f", file)
    cluster.await_kinds(*(f"{kind}.monitoring.coreos.com" for kind in CRDS))


def crds() -> list[Path]:
    """Return the files of these kinds; download them if need be."""
    # Outside of any module of ours, so that none is changed.
    module = build.download_module(OPERATOR, build.cache(), GOFLAGS="-mod=mod")
    folder = module / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in CRDS]
