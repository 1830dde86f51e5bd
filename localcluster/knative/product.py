"""The product on real Knative: the overlay `plain`, with functions and source adapters as local processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from eventing import endpoints
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.components import overlay
from localcluster.components.selection import DEFAULT_COMPONENTS, Components
from localcluster.engine_product import EngineProduct
from localcluster.knative import install, oidc
from localcluster.knative.planes import KnativePlanes
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.servers import ROOT

TIMEOUT_SECONDS = 180
PLAIN_OVERLAY, V1ALPHA1_DIR = ROOT / "manifests" / "overlays" / "plain", ROOT / "manifests" / "v1alpha1"
EVENTING_KINDS = "apiserversource,pingsource,containersource,sinkbinding,broker,trigger"
BROKER_PATH = f"/{NAMESPACE}/default"
"""The path of the product's Broker in the URL of the ingress, which all Brokers share."""
SOURCE_LABEL = "eventing.knative.dev/sourceName"
PODSOURCE_DEPLOYMENT, PING_DEPLOYMENT = "podsource-deployment", "pingsource-mt-adapter"
"""Knative's Deployments of adapters: one for the product's ContainerSource, and one for all PingSources."""
NO_PROFILING_ENV = {"PROFILING_PORT": "0"}
"""Disables an adapter's profiling port, whose default is the same for all adapters on a host."""
TOKEN_FILE = "podsource-sinkbinding.token"  # noqa: S105 - a file name, not a token
"""The file with the token of the ContainerSource's SinkBinding, which exists if Knative authenticates senders."""


class KnativeProduct(EngineProduct):
    """The product on a cluster with Knative Eventing, both as local processes.

    Args:
        cluster: A cluster that was started with `install.APISERVER_FLAGS`.
        directory: The directory for logs and the journal.
        components: The components to install.
    """

    planes: KnativePlanes

    def __init__(self, cluster: LocalCluster, directory: Path, components: Components = DEFAULT_COMPONENTS) -> None:
        self.planes = KnativePlanes(cluster, directory / "knative")
        super().__init__(cluster, directory, self.planes.ingress_url + BROKER_PATH, components)
        self._overlay = overlay.ensure_overlay(PLAIN_OVERLAY, components, directory / "overlay")
        self._api_sources: list[str] = []

    def _start_and_wait(self) -> None:
        """Start Knative, then install and start the product; return when all its Knative objects are ready."""
        self.planes.start()
        self._install_manifests()
        self.start_functions()
        self.adapters = self._build_adapters()
        self.start_delivery()
        for server in (*self.planes.control_plane.servers, *self.adapters.values()):
            server.may_restart = self.planes.is_dispatcher_ready
        ready = ("--for=condition=Ready", f"--timeout={TIMEOUT_SECONDS}s")
        self._cluster.kubectl("wait", EVENTING_KINDS, "--all", "-n", NAMESPACE, *ready)

    def route_triggers(self, get_url: Callable[[str], str]) -> None:
        """Make every Trigger call its function at the URL from `get_url`; return when Knative reports these URLs."""
        triggers = [
            item for item in self._render_manifests(self._overlay, get_url=get_url) if item["kind"] == "Trigger"
        ]
        install.apply_manifests(self._cluster, triggers)
        names_by_url: dict[str, list[str]] = {}
        for item in triggers:
            names_by_url.setdefault(item["spec"]["subscriber"]["uri"], []).append(f"trigger/{item['metadata']['name']}")
        for url, names in names_by_url.items():
            is_resolved = f"--for=jsonpath={{.status.subscriberUri}}={url}"
            self._cluster.kubectl("wait", *names, "-n", NAMESPACE, is_resolved, f"--timeout={TIMEOUT_SECONDS}s")

    def enable_oidc(self) -> None:
        """Enable authentication of senders (`authentication-oidc`); return when each Knative object has an identity."""
        self._set_oidc_and_provide_tokens(oidc.enable)

    def disable_oidc(self) -> None:
        """Disable authentication of senders, which is Knative's default."""
        self._set_oidc_and_provide_tokens(oidc.disable)

    def _set_oidc_and_provide_tokens(self, switch: Callable[[LocalCluster], None]) -> None:
        """Enable or disable OIDC with `switch`, and provide all senders with their tokens.

        The product's processes read their tokens from files. Knative's adapters restart with new environment variables.
        """
        switch(self._cluster)
        oidc.write_tokens(self._cluster, self._directory)
        variables = oidc.read_oidc_variables(self._cluster)
        for server in (self.adapters[source] for source in self._api_sources):
            server.kill()
            other_variables = {name: value for name, value in server.env.items() if name not in oidc.OIDC_VARIABLES}
            server.env = {**other_variables, **variables[server.name]}
        self.start_delivery()

    def _install_manifests(self) -> None:
        """Apply the manifests; only the Triggers' subscribers differ, because the functions are local processes."""
        items = self._render_manifests(self._overlay, V1ALPHA1_DIR)
        self._api_sources = [item["metadata"]["name"] for item in items if item["kind"] == "ApiServerSource"]
        install.apply_manifests(self._cluster, [item for item in items if item["kind"] in install.PREREQUISITE_KINDS])
        install.pin_namespace_to_knative_node(self._cluster, NAMESPACE)
        self._cluster.wait_for_crds()
        install.apply_manifests(
            self._cluster, [item for item in items if item["kind"] not in install.PREREQUISITE_KINDS]
        )

    def _build_adapters(self) -> dict[str, Server]:
        """Build the source adapters' processes from the Deployments that Knative created for the sources."""
        kubelet, system = self.planes.kubelet, install.EVENTING.namespace
        wait_until_ready(
            "the Deployments that Knative creates for the sources", self._are_sources_deployed, [], TIMEOUT_SECONDS
        )
        deployments = self._map_api_source_deployments(oidc.list_deployments(self._cluster))
        servers = {
            source: kubelet.build_server(NAMESPACE, name, **NO_PROFILING_ENV) for source, name in deployments.items()
        }
        overrides = {
            "PORT": str(reserve_port()),
            "PROFILING_PORT": "0",
            endpoints.TOKEN_FILE_VARIABLE: str(self._directory / TOKEN_FILE),
        }
        servers["podsource"] = kubelet.build_server(NAMESPACE, PODSOURCE_DEPLOYMENT, **overrides)
        servers["ping"] = kubelet.build_server(system, PING_DEPLOYMENT, **NO_PROFILING_ENV)
        return servers

    def _are_sources_deployed(self) -> bool:
        """Return whether Knative has deployed and configured the adapters of all sources.

        The adapters are one Deployment per ApiServerSource, PodSource's Deployment with a sink, and one replica of the
        PingSources' adapter.
        """
        deployments = oidc.list_deployments(self._cluster)
        (variables,) = [
            oidc.list_variables(item) for item in deployments if item["metadata"]["name"] == PODSOURCE_DEPLOYMENT
        ] or [[]]
        ping = f"/apis/apps/v1/namespaces/{install.EVENTING.namespace}/deployments/{PING_DEPLOYMENT}"
        return (
            set(self._api_sources) <= self._map_api_source_deployments(deployments).keys()
            and any(variable["name"] == "K_SINK" and variable.get("value") for variable in variables)
            and self._cluster.get_client().get(ping)["spec"]["replicas"] == 1
        )

    def _map_api_source_deployments(self, deployments: Iterable[Object]) -> dict[str, str]:
        """Return the Deployment that Knative created for each ApiServerSource, both by name."""
        names = {item["metadata"]["labels"].get(SOURCE_LABEL): item["metadata"]["name"] for item in deployments}
        return {source: names[source] for source in self._api_sources if source in names}
