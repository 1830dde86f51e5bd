"""Tests for the other overlays with Knative Services, each installed on real Knative Serving and removed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kube.maintenance.groups import KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S, ApiGroup
from localcluster.access import NAMESPACE
from localcluster.addons import EVENTING_ADDON, SERVING_ADDONS
from localcluster.components import crds, selection
from localcluster.knative import pod_install
from localcluster.nodes import func_image, preflight
from localcluster.servers import ROOT
from tests.manifests.rendering import SHARED_LABEL
from tests.proofs import proves
from tests.real import applied_manifests, maintenances
from tests.real.environment import RealNodesEnvironment

pytestmark = pytest.mark.installs
OVERLAYS_DIR = ROOT / "manifests" / "overlays"


@dataclass(frozen=True)
class Variant:
    """An overlay, and what the test of this overlay uses.

    Attributes:
        overlay: The shipped overlay's name.
        groups: The API groups whose maintenances are tested.
        namespace: The product's namespace.
        service: The file of a Service that is deployed after the overlay, "" for none.
    """

    overlay: str
    groups: Sequence[ApiGroup] = (MEDIK8S, KUBEVIRT)
    namespace: str = NAMESPACE
    service: str = ""


VARIANTS = (
    Variant("compact"),
    Variant("mutex"),
    Variant("hyperconverged", (MEDIK8S, KUBEVIRT, KUBEVIRT_ALPHA), "kubevirt-hyperconverged"),
    Variant("func", service="func_service.yaml"),
)


class FuncImage:
    """Add-on that provides the image that func builds from this repository."""

    def write_archives(self, directory: Path) -> list[Path]:
        """Return the path of the cached image archive."""
        return [func_image.ensure_archive()]

    def apply(self, cluster: object) -> None:
        """Do nothing, because the test applies the Service."""

    def wait_until_ready(self, cluster: object) -> None:
        """Do nothing, because the test applies the Service."""


@pytest.fixture(scope="module")
def serving_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield two real nodes with Knative Eventing and Serving, and the CRDs of all components."""
    preflight.check_host()
    folder = tmp_path_factory.mktemp("serving-overlays")
    addons = (EVENTING_ADDON, *SERVING_ADDONS, FuncImage())
    with pod_install.start_real_cluster(folder / "cluster", addons=addons) as (cluster, nodes):
        crds.install_crds(cluster, tuple(selection.CRD_PROJECTS))
        yield RealNodesEnvironment(cluster, nodes)


@proves("NMO-24")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.overlay)
def test_overlay_drains_node_and_is_removed(
    serving_cluster: RealNodesEnvironment, variant: Variant, tmp_path: Path
) -> None:
    """Check that an overlay becomes Ready, is unchanged by a second apply, drains nodes, and is removed completely."""
    cluster = serving_cluster.cluster
    overlay = pod_install.write_overlay(tmp_path / "overlay", base=OVERLAYS_DIR / variant.overlay)
    cluster.kubectl("apply", "-k", overlay)
    if variant.service:
        cluster.kubectl("apply", "-f", Path(__file__).with_name(variant.service))
    pod_install.wait_until_ready(cluster, namespace=variant.namespace)

    applied_manifests.assert_second_apply_changes_nothing(serving_cluster, overlay, variant.namespace)
    for group in variant.groups:
        name = group.api_version.replace(".", "-").replace("/", "-")
        maintenances.create_maintenance(serving_cluster, name, "node-1", group)
        maintenances.wait_until_succeeded(serving_cluster, name, group=group)
        maintenances.end_maintenance(serving_cluster, name, "node-1", group)

    if variant.service:
        cluster.kubectl("delete", "-f", Path(__file__).with_name(variant.service))
    cluster.kubectl("delete", "-k", overlay, "-l", f"!{SHARED_LABEL}", "--wait=true")
    remaining = cluster.kubectl("get", "ksvc,broker,trigger,apiserversource", "-n", variant.namespace, "-o", "name")
    assert remaining.stdout == ""
