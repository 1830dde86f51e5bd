"""The product on real Knative: the overlay `plain`, functions as processes, and the sources' adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from eventing import sinks
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.knative import oidc, install
from localcluster.knative.planes import Planes
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import ROOT
from localcluster.components import overlay
from localcluster.components.selection import DEFAULT, Wings

SECONDS = 60
PLAIN, V1ALPHA1 = ROOT / "manifests" / "overlays" / "plain", ROOT / "manifests" / "v1alpha1"
KINDS = "apiserversource,pingsource,containersource,sinkbinding,broker,trigger"
BROKER = f"/{NAMESPACE}/default"
"""Path of the product's Broker at the ingress that all Brokers share."""
SOURCE_LABEL = "eventing.knative.dev/sourceName"
PODSOURCE, PING = "podsource-deployment", "pingsource-mt-adapter"
"""Deployments of Knative: the adapter of the product's ContainerSource, and that of all PingSources."""
IDENTITY = "podsource-sinkbinding.token"
"""The token file of the ContainerSource's SinkBinding, which exists if Knative authenticates senders."""


class KnativeProduct(EngineProduct):
    """The product as it runs on a cluster with Knative Eventing.

    Args:
        cluster: A cluster that was started with `install.APISERVER_FLAGS`.
        directory: The directory for logs and the journal.
        wings: The components to install.
    """

    planes: Planes

    def __init__(self, cluster: LocalCluster, directory: Path, wings: Wings = DEFAULT) -> None:
        self.planes = Planes(cluster, directory / "knative")
        super().__init__(cluster, directory, self.planes.ingress_url + BROKER, wings)
        self._overlay = overlay.folder_of(PLAIN, wings, directory / "overlay")
        self._api_sources: list[str] = []

    def _bring_up(self) -> None:
        """Start Knative, then install and start the product; return when all its Knative objects are ready."""
        self.planes.start()
        self._install()
        self.start_functions()
        self.adapters = self._adapters()
        self.start_delivery()
        for server in (*self.planes.control.servers, *self.adapters.values()):
            server.may_restart = self.planes.dispatcher_answers
        ready = ("--for=condition=Ready", f"--timeout={SECONDS}s")
        self._cluster.kubectl("wait", KINDS, "--all", "-n", NAMESPACE, *ready)

    def route(self, url_of: Callable[[str], str]) -> None:
        """Make every Trigger call its function at another address; return when Knative has resolved the addresses."""
        triggers = [item for item in self._shipped(self._overlay, url_of=url_of) if item["kind"] == "Trigger"]
        install.apply(self._cluster, triggers)
        wanted: dict[str, list[str]] = {}
        for item in triggers:
            wanted.setdefault(item["spec"]["subscriber"]["uri"], []).append(f"trigger/{item['metadata']['name']}")
        for url, names in wanted.items():
            taken = f"--for=jsonpath={{.status.subscriberUri}}={url}"
            self._cluster.kubectl("wait", *names, "-n", NAMESPACE, taken, f"--timeout={SECONDS}s")

    def require_identities(self) -> None:
        """Enable authentication of senders (`authentication-oidc`); return when all Knative objects have identities."""
        self._identify(oidc.require)

    def waive_identities(self) -> None:
        """Disable authentication of senders, which is Knative's default."""
        self._identify(oidc.waive)

    def _identify(self, switch: Callable[[LocalCluster], None]) -> None:
        """Switch authentication, and pass the identities on to the product's programs and Knative's adapters.

        The product's programs read their tokens from files; Knative's adapters restart with other environment
        variables.
        """
        switch(self._cluster)
        oidc.mount(self._cluster, self._directory)
        told = oidc.told(self._cluster)
        for server in (self.adapters[source] for source in self._api_sources):
            server.kill()
            kept = {name: value for name, value in server.env.items() if name not in oidc.TOLD}
            server.env = {**kept, **told[server.name]}
        self.start_delivery()

    def _install(self) -> None:
        """Apply the manifests; only the Triggers' subscribers differ, since functions do not run as pods here."""
        found = self._shipped(self._overlay, V1ALPHA1)
        self._api_sources = [item["metadata"]["name"] for item in found if item["kind"] == "ApiServerSource"]
        install.apply(self._cluster, [item for item in found if item["kind"] in install.FIRST])
        install.place(self._cluster, NAMESPACE)
        self._cluster.await_kinds()
        install.apply(self._cluster, [item for item in found if item["kind"] not in install.FIRST])

    def _adapters(self) -> dict[str, Server]:
        """Return the processes of the sources, from the Deployments that Knative created for them."""
        kubelet, system = self.planes.kubelet, install.EVENTING.namespace
        await_ready("what Knative makes of our sources", self._is_made, [], SECONDS)
        made = self._made_of_api_sources(oidc.deployments(self._cluster))
        found = {source: kubelet.server(NAMESPACE, name) for source, name in made.items()}
        own = {"PORT": str(free_port()), sinks.FILE: str(self._directory / IDENTITY)}
        found["podsource"] = kubelet.server(NAMESPACE, PODSOURCE, **own)
        found["ping"] = kubelet.server(system, PING)
        return found

    def _is_made(self) -> bool:
        """Return whether Knative has created and configured all adapters.

        That is one Deployment per ApiServerSource, a sink for PodSource's Deployment, and one replica of the ping
        adapter.
        """
        ours = oidc.deployments(self._cluster)
        (bound,) = [oidc.entries(item) for item in ours if item["metadata"]["name"] == PODSOURCE] or [[]]
        ping = f"/apis/apps/v1/namespaces/{install.EVENTING.namespace}/deployments/{PING}"
        return (
            set(self._api_sources) <= self._made_of_api_sources(ours).keys()
            and any(each["name"] == "K_SINK" and each.get("value") for each in bound)
            and self._cluster.door().get(ping)["spec"]["replicas"] == 1
        )

    def _made_of_api_sources(self, ours: Iterable[Object]) -> dict[str, str]:
        """Return the name of the Deployment that Knative created for each ApiServerSource."""
        found = {item["metadata"]["labels"].get(SOURCE_LABEL): item["metadata"]["name"] for item in ours}
        return {source: found[source] for source in self._api_sources if source in found}
