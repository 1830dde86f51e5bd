"""The product as a user installs it on real nodes, with the console and with its journal in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from functions.serving.attempts import FLUSH_TIMEOUT_SECONDS
from kube.times import parse_time
from localcluster.access import NAMESPACE
from localcluster.addons import PULL_SECRET_PATCH, create_pull_secret
from localcluster.cluster import LocalCluster
from localcluster.knative import pod_install
from localcluster.nodes.real_nodes import RealNodes
from tests.localcluster.commands import wait_until
from tests.machine_speed import is_below_scaled_limit
from tests.postgresql import PostgreSQL
from tests.real import self_drain
from tests.real.environment import RealNodesEnvironment
from tests.relay import Relay

COMPONENT_NAMES = ("console", "postgresql")
RECORD_LABEL = "nodemaintenance.dev/function=record"
MAX_DRAIN_SECONDS, MAX_CONSOLE_SILENT_SECONDS = 200, 60
"""Maximum seconds of a drain, and maximum seconds without a response from the console during the drain.

The limits are for two cores that start forty pods next to another test; docs/sizing.md has the usual durations.
Knative's webhook takes a minute to terminate.
"""
BUDGET_PATCH = {"spec": {"minAvailable": None, "maxUnavailable": 1}}
"""The patch in docs/install.md for Knative's PDBs, which allow no eviction with fewer than five pods."""
MAX_APPLY_SECONDS = 180.0
"""Maximum seconds until Knative's webhooks respond; during a drain, they restart on the other node."""
MAX_RECORDING_SECONDS = 180.0
"""Maximum seconds until the journal contains the evictions of a drain."""


@dataclass(frozen=True)
class InstalledEnvironment(RealNodesEnvironment):
    """The installed product, with its journal in PostgreSQL on this machine.

    Attributes:
        overlay: The path of the applied overlay.
        journal_url: The URL of the journal's database on this machine.
        shipped_overlay: The shipped overlay that is the applied overlay's base.
        patches: The Kustomize patches of the applied overlay.
    """

    overlay: Path
    journal_url: str
    shipped_overlay: Path
    patches: Sequence[Mapping[str, Any]]

    def apply_image(self, image: str, *components: str, patches: Sequence[Mapping[str, Any]] = ()) -> None:
        """Apply the overlay with another image, and with additional components and patches."""
        components = (*COMPONENT_NAMES, *components)
        patches = (*self.patches, *patches)
        pod_install.write_overlay(self.overlay, components, self.shipped_overlay, image, patches=patches)
        apply_until_accepted(self.cluster, self.overlay)


def apply_until_accepted(cluster: LocalCluster, overlay: Path) -> None:
    """Apply an overlay; retry while one of Knative's webhooks does not respond, and raise the last error."""
    if not wait_until(lambda: cluster.kubectl("apply", "-k", overlay, check=False).returncode == 0, MAX_APPLY_SECONDS):
        cluster.kubectl("apply", "-k", overlay)


@contextmanager
def install_product(
    cluster: LocalCluster,
    nodes: RealNodes,
    directory: Path,
    shipped_overlay: Path,
    image: str,
    with_pull_secret: bool = False,
) -> Iterator[InstalledEnvironment]:
    """Install the product with an overlay based on a shipped one; yield once all pods except the webhook's are ready.

    With `with_pull_secret`, the image is pulled from the private registry.
    """
    with PostgreSQL() as database:
        relay = Relay(database.port, nodes.host_address)
        url = database.create_database()
        pods_url = url.replace(f"127.0.0.1:{database.port}", f"{nodes.host_address}:{relay.port}")
        cluster.kubectl("create", "namespace", NAMESPACE)
        if with_pull_secret:
            create_pull_secret(cluster, NAMESPACE)
        secret = ("create", "secret", "generic", "journal", "-n", NAMESPACE, f"--from-literal=url={pods_url}")
        cluster.kubectl(*secret)
        patches = [PULL_SECRET_PATCH] if with_pull_secret else []
        environment = InstalledEnvironment(cluster, nodes, directory / "overlay", url, shipped_overlay, patches)
        environment.apply_image(image)
        pod_install.wait_until_ready(cluster, pod_install.LATE_DEPLOYMENT)
        yield environment
        relay.close()


def assert_drain_within_limits(environment: InstalledEnvironment, result: self_drain.DrainResult) -> None:
    """Assert that the drain of the product's own node was fast, stopped all containers, and evicted no pod twice."""
    print(f"{result.seconds:.1f} s, {len(result.evicted)} evictions; console silent {result.max_silent_seconds:.1f} s")
    assert result.still_running == set()
    assert len(result.evicted) == len(set(result.evicted)) > 10
    assert is_below_scaled_limit(result.seconds, MAX_DRAIN_SECONDS)
    assert result.max_silent_seconds < MAX_CONSOLE_SILENT_SECONDS
    delay = measure_record_delay(environment, result)
    if delay < FLUSH_TIMEOUT_SECONDS:
        assert_evictions_recorded(environment, result.evicted)
    else:
        print(f"record was ready only {delay:.0f} s after evict was evicted: evictions may be missing (docs/sizing.md)")


def measure_record_delay(environment: InstalledEnvironment, result: self_drain.DrainResult) -> float:
    """Return the seconds from the last eviction of an `evict` pod until `record` was ready, or 0 if it was ready."""
    pods = environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods", label_selector=RECORD_LABEL)["items"]
    ready_times = [
        parse_time(condition["lastTransitionTime"])
        for pod in pods
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    assert ready_times, "no pod of record is ready"
    if result.evict_evicted_at is None:
        return 0.0
    return max(0.0, (min(ready_times) - result.evict_evicted_at).total_seconds())


def assert_evictions_recorded(environment: InstalledEnvironment, evicted: Sequence[str]) -> None:
    """Assert that the journal contains each eviction, except those of `evict` pods, which evict themselves."""
    assert wait_until(
        lambda: _find_unrecorded_evictions(environment.journal_url, evicted) == [], MAX_RECORDING_SECONDS
    ), _find_unrecorded_evictions(environment.journal_url, evicted)


def _find_unrecorded_evictions(journal_url: str, evicted: Sequence[str]) -> list[str]:
    recorded = self_drain.read_evicted_pods_from_journal(journal_url)
    return [name for name in evicted if name not in recorded and not name.startswith("evict-")]
