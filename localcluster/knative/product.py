"""The product on real Knative: shipped manifests, a process per function with its own token, the sources' adapters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import yaml

from functions.app import FUNCTIONS
from localcluster.access import NAMESPACE
from localcluster.api import Api
from localcluster.cluster import LocalCluster
from localcluster.knative import install
from localcluster.knative.install import Manifest
from localcluster.knative.kubelet import kubeconfig
from localcluster.knative.planes import Planes
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.product import DIRECT, FLOW, READY, ROOT
from localcluster.servers import LOOPBACK

SECONDS = 60
KINDS = "apiserversource,pingsource,containersource,broker,trigger"
BROKER = f"/{NAMESPACE}/default"
"""Path of our Broker at the ingress that all Brokers share."""
SOURCE_LABEL = "eventing.knative.dev/sourceName"
TRIGGERS = FLOW[0]
API_SOURCES = ("maintenances", "nodes", "maintenances-v1alpha1")


class KnativeProduct(Startable):
    """The product as it is on a cluster with Knative: every part can be killed and started again by its name.

    In: a cluster that was started with `install.APISERVER_FLAGS`, and a folder for logs and the journal.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._cluster, self._directory = cluster, directory
        self.planes = Planes(cluster, directory / "knative")
        self.journal = directory / "journal.db"
        self.broker_url = self.planes.ingress_url + BROKER
        self._ports = {name: free_port() for name in FUNCTIONS}
        self.functions: dict[str, Server] = {}
        self.adapters: dict[str, Server] = {}

    @property
    def servers(self) -> list[Server]:
        """Give every process."""
        return [*self.planes.servers, *self.functions.values(), *self.adapters.values()]

    def function_url(self, name: str) -> str:
        """Give the address of a function's process."""
        return f"http://{LOOPBACK}:{self._ports[name]}/"

    def _bring_up(self) -> None:
        """Start Knative, install and start the product; return when all its Knative objects are ready."""
        self.planes.start()
        self._install()
        self.functions = {name: self._function(name) for name in FUNCTIONS}
        self.start_functions()
        self.adapters = self._adapters()
        self.start_delivery()
        self.await_ready()

    def stop(self) -> None:
        """Stop the sources first, then the functions, then Knative."""
        for server in (*self.adapters.values(), *self.functions.values()):
            server.kill()
        self.planes.stop()

    def start_functions(self, *names: str) -> None:
        """Start these functions' processes, all if none is named; return when they are ready."""
        for name in names or self.functions:
            self.functions[name].start()
        for name in names or self.functions:
            api = Api(self.function_url(name).rstrip("/"))
            await_ready(name, lambda api=api: api.answers(READY), [self.functions[name]], SECONDS)  # type: ignore[misc]

    def kill_functions(self, *names: str) -> None:
        """End these functions' processes as a crash would, all if none is named."""
        for name in names or self.functions:
            self.functions[name].kill()

    def start_delivery(self) -> None:
        """Start what is down of the broker's data plane and the sources; return when it is ready."""
        for name in self.planes.data:
            self.planes.start_data(name)
        for server in self.adapters.values():
            server.start()

    def kill_delivery(self) -> None:
        """End sources, ingress, filter and channel as a crash would."""
        for server in (*self.adapters.values(), *self.planes.data.values()):
            server.kill()

    def await_ready(self) -> None:
        """Wait until Knative says that every source, the broker and every Trigger is ready."""
        ready = ("--for=condition=Ready", f"--timeout={SECONDS}s")
        self._cluster.kubectl("wait", KINDS, "--all", "-n", NAMESPACE, *ready)

    def start_data(self, *names: str) -> None:
        """Start these parts of the broker's data plane; return when they are ready."""
        for name in names:
            self.planes.start_data(name)

    def kill_data(self, *names: str) -> None:
        """End parts of the broker's data plane (`ingress`, `filter`, `dispatcher`) as a crash would."""
        for name in names:
            self.planes.data[name].kill()

    def route(self, url_of: Callable[[str], str]) -> None:
        """Have every Trigger call its function at another address; return when Knative took that in."""
        found = yaml.safe_load_all(self._cluster.kubectl("kustomize", TRIGGERS).stdout)
        triggers = [self.locally(item, url_of) for item in found if item["kind"] == "Trigger"]
        install.apply(self._cluster, triggers)
        wanted: dict[str, list[str]] = {}
        for item in triggers:
            wanted.setdefault(item["spec"]["subscriber"]["uri"], []).append(f"trigger/{item['metadata']['name']}")
        for url, names in wanted.items():
            taken = f"--for=jsonpath={{.status.subscriberUri}}={url}"
            self._cluster.kubectl("wait", *names, "-n", NAMESPACE, taken, f"--timeout={SECONDS}s")

    def _install(self) -> None:
        """Apply what we ship; only the Triggers' subscribers differ, since the functions are no Services here."""
        found = [
            item for folder in FLOW for item in yaml.safe_load_all(self._cluster.kubectl("kustomize", folder).stdout)
        ]
        install.apply(self._cluster, [item for item in found if item["kind"] in install.FIRST])
        install.place(self._cluster, NAMESPACE)
        self._cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        self._cluster.kubectl("apply", "-f", install.HERE / "channel.yaml")
        rest = [self.locally(item, self.function_url) for item in found if item["kind"] not in install.FIRST]
        install.apply(self._cluster, rest)

    def locally(self, item: Manifest, url_of: Callable[[str], str]) -> Manifest:
        """Give a Trigger with the addresses of local processes in the place of Services; other objects as they are."""
        if item["kind"] != "Trigger":
            return item
        spec = item["spec"]
        spec["subscriber"] = {"uri": url_of(spec["subscriber"]["ref"]["name"])}
        dead = (spec.get("delivery") or {}).get("deadLetterSink")
        if dead:
            spec["delivery"]["deadLetterSink"] = {"uri": self.function_url(dead["ref"]["name"])}
        return item

    def _function(self, name: str) -> Server:
        """Give the process of one function, with a token of its own account."""
        config = ROOT / "functions" / "gunicorn.conf.py"
        address = f"{LOOPBACK}:{self._ports[name]}"
        app = ("functions.app:create_app()", "-c", config, "--no-control-socket", "--bind", address)
        environment = {
            **DIRECT,
            "FUNCTION": name,
            "KUBECONFIG": str(kubeconfig(self._cluster, NAMESPACE, name)),
            "K_SINK": self.broker_url,
            "JOURNAL": str(self.journal),
        }
        command: list[str | Path] = [sys.executable, "-m", "gunicorn", *app]
        return Server(name, command, self._directory / f"{name}.log", environment, ROOT)

    def _adapters(self) -> dict[str, Server]:
        """Give the processes of the sources, as the Deployments say that Knative made of them."""
        wait = ("wait", f"--timeout={SECONDS}s")
        kubectl, kubelet = self._cluster.kubectl, self.planes.kubelet
        found = {}
        for source in API_SOURCES:
            which = ("deployment", "-n", NAMESPACE, "-l", f"{SOURCE_LABEL}={source}")
            kubectl(*wait, *which, "--for=create")
            name = kubectl("get", *which, "-o", "name").stdout.strip().rsplit("/", 1)[-1]
            found[source] = kubelet.server(NAMESPACE, name)
        bound = '--for=jsonpath={.spec.template.spec.containers[0].env[?(@.name=="K_SINK")].value}'
        kubectl(*wait, "-n", NAMESPACE, "deployment/podsource-deployment", "--for=create")
        kubectl(*wait, "-n", NAMESPACE, "deployment/podsource-deployment", bound)
        found["podsource"] = kubelet.server(NAMESPACE, "podsource-deployment")
        kubectl(*wait, "-n", install.NAMESPACE, "deployment/pingsource-mt-adapter", "--for=jsonpath={.spec.replicas}=1")
        found["ping"] = kubelet.server(install.NAMESPACE, "pingsource-mt-adapter")
        return found
