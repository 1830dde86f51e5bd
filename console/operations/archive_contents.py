"""Reads the cluster data of a must-gather: lists of objects, and logs, each with the permission that it requires.

The module does not read Secrets. From all other objects it removes the values of environment variables and the startup
data of virtual machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from console.operations.archive import Archive, Missing
from kube.certificates.components import LABEL
from kube.cpu import capabilities, hyperconverged
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.maintenance import leases
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import node_name
from kube.mutex.objects import API_VERSION, PLURALS, RUN_LABEL
from kube.paths import Object, pods_on, segment
from kube.virtualization import vmis

PART_OF = "app.kubernetes.io/part-of=node-maintenance"
"""Label selector of the product's own pods."""
LOG_LINES = "100000"
"""Number of latest log lines to read per container; they cover days in a typical cluster."""
HIDDEN = "(left out)"


@dataclass(frozen=True)
class Listing:
    """A list request for one kind, and the file for its result.

    Attributes:
        file: Name in the archive, without `.json`.
        api_version, resource: The kind's API version and resource name, e.g. `apps/v1` and `deployments`.
        namespace: "" for all namespaces, or for a cluster-scoped kind.
        labels, fields: Selectors.
    """

    file: str
    api_version: str
    resource: str
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        """Return the path of the collection."""
        where = f"/namespaces/{self.namespace}" if self.namespace else ""
        root = "apis" if "/" in self.api_version else "api"
        return f"/{root}/{self.api_version}{where}/{self.resource}"

    @property
    def right(self) -> str:
        """Return the permission that the request needs, in the form that `kubectl auth can-i` takes."""
        return right("list", self.resource, self.api_version, self.namespace)


MAINTENANCES = [Listing(f"maintenances/{version.partition('/')[0]}", version, "nodemaintenances") for version in GROUPS]
CLUSTER = [
    Listing("nodes", "v1", "nodes"),
    Listing("poddisruptionbudgets", "policy/v1", "poddisruptionbudgets"),
    Listing("events", "v1", "events"),
    Listing("certificates", "v1", "configmaps", labels=LABEL),
    Listing("leases", "coordination.k8s.io/v1", "leases", leases.NAMESPACE),
]
MUTEX = [Listing(f"mutex/{plural}", API_VERSION, plural) for plural in PLURALS.values()]
RUNS_ON = [
    Listing("mutex/machineconfigpools", "machineconfiguration.openshift.io/v1", "machineconfigpools"),
    Listing("mutex/clusterversions", "config.openshift.io/v1", "clusterversions"),
    Listing("mutex/jobs", "batch/v1", "jobs", labels=RUN_LABEL),
]
"""Objects that upgrade runs depend on; read only if the cluster has objects of the upgrade mutex."""
CAPABILITIES = Listing("cpu-labels/capabilities", "v1", "configmaps", labels=capabilities.LABEL)
HYPERCONVERGED = Listing("cpu-labels/hyperconvergeds", hyperconverged.API_VERSION, "hyperconvergeds")
"""Settings of the CPU labels; read only if a ConfigMap describes the CPU capabilities of nodes."""
INSTANCES = Listing("virtualization/virtualmachineinstances", vmis.API_VERSION, "virtualmachineinstances")
MOVED_BY = [
    *(
        Listing(f"virtualization/{kind}", vmis.API_VERSION, kind)
        for kind in ("virtualmachines", "virtualmachineinstancemigrations", "kubevirts")
    ),
    Listing("virtualization/launchers", "v1", "pods", labels=vmis.LAUNCHERS),
]
"""Objects that own or migrate VMIs; read only if the cluster has VMIs."""
PRODUCT = [
    Listing("product/pods", "v1", "pods", labels=PART_OF),
    Listing("product/deployments", "apps/v1", "deployments"),
    Listing("product/services", "serving.knative.dev/v1", "services"),
    *(Listing(f"product/{kind}", "eventing.knative.dev/v1", kind) for kind in ("brokers", "triggers")),
    *(
        Listing(f"product/{kind}", "sources.knative.dev/v1", kind)
        for kind in ("apiserversources", "pingsources", "containersources", "sinkbindings")
    ),
]
"""Objects in the namespace that the product is installed in."""


def right(verb: str, resource: str, api_version: str, namespace: str = "") -> str:
    """Return a permission as `kubectl auth can-i` takes it: `list leases.coordination.k8s.io in medik8s-leases`."""
    group = api_version.rpartition("/")[0]
    what = f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
    return f"{what} in {namespace}" if namespace else what


async def gather(api: Api, archive: Archive, namespace: str) -> None:
    """Add all readable data to the archive, and record the failed reads; `namespace` is the product's namespace."""
    found = [item for listing in MAINTENANCES for item in await _list(api, archive, listing)]
    for listing in CLUSTER:
        await _list(api, archive, listing)
    mutexes = [item for listing in MUTEX for item in await _list(api, archive, listing)]
    for listing in RUNS_ON if mutexes else []:
        await _list(api, archive, listing)
    if await _list(api, archive, CAPABILITIES):
        await _list(api, archive, HYPERCONVERGED)
    for listing in MOVED_BY if await _list(api, archive, INSTANCES) else []:
        await _list(api, archive, listing)
    for node in sorted({node_name(item) for item in found} - {""}):
        listing = Listing(f"pods/{segment(node)}", "v1", "pods", fields=pods_on(node)[1])
        await _list(api, archive, listing)
    for listing in PRODUCT:
        items = await _list(api, archive, replace(listing, namespace=namespace))
        if listing.resource == "pods":
            await _logs(api, archive, items)


async def _list(api: Api, archive: Archive, listing: Listing) -> list[Object]:
    """Add one list to the archive, and return its items: empty if it cannot be read or the kind is not installed."""
    try:
        answer = await api.list(listing.path, fields=listing.fields, labels=listing.labels)
    except NotFound:
        archive.absent(listing.right)
        return []
    except ApiError as error:
        archive.missing(_missing(listing.right, error))
        return []
    items = [without_values(item) for item in answer["items"]]
    archive.add_json(f"{listing.file}.json", {**answer, "items": items}, listing.right, len(items))
    return items


async def _logs(api: Api, archive: Archive, pods: Iterable[Object]) -> None:
    """Add one log file per container of these pods, and one for the previous run of a restarted container."""
    for pod in pods:
        restarted = {
            item["name"]
            for item in (pod.get("status") or {}).get("containerStatuses") or []
            if item.get("restartCount")
        }
        for container in pod["spec"]["containers"]:
            await _log(api, archive, pod, container["name"], {})
            if container["name"] in restarted:
                await _log(api, archive, pod, container["name"], {"previous": "true"})


async def _log(api: Api, archive: Archive, pod: Object, container: str, more: dict[str, str]) -> None:
    metadata = pod["metadata"]
    needed = right("get", "pods/log", "v1", metadata["namespace"])
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    file = f"logs/{metadata['name']}/{container}{'.previous' if more else ''}.log"
    try:
        lines = await api.text(path, {"container": container, "tailLines": LOG_LINES, "timestamps": "false", **more})
    except ApiError as error:
        archive.missing(_missing(needed if isinstance(error, Denied) else f"{needed}, of {file}", error))
        return
    archive.add(file, lines, needed)


def _missing(needed: str, error: ApiError) -> Missing:
    return Missing(needed, error.message, denied=isinstance(error, Denied))


def without_values(value: Any) -> Any:
    """Return a copy without possible secrets: environment variables' values, and startup data of virtual machines.

    The function also searches strings that contain JSON, such as annotations that hold a whole object. It drops
    `managedFields` and the annotations in which `kubectl apply` and similar tools keep a copy of the object.
    """
    if isinstance(value, str):
        return _text_without_values(value)
    if isinstance(value, list):
        return [without_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    left = {key: without_values(child) for key, child in value.items() if key not in NOISE}
    left |= {key: HIDDEN for key in STARTED_WITH if key in left}
    if isinstance(left.get("env"), list):
        left["env"] = [_without_value(variable) for variable in left["env"]]
    return left


def _text_without_values(text: str) -> str:
    """Return a text unchanged, except for secrets in JSON; replace JSON that is nested too deeply to search."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        found = json.loads(text)
        left = without_values(found)
        return text if left == found else json.dumps(left)
    except RecursionError:
        return HIDDEN
    except ValueError:  # the text only starts like JSON
        return text


def _without_value(variable: Any) -> Any:
    """Return the environment variable without its value; other entries of a list named `env` stay unchanged."""
    return {**variable, "value": HIDDEN} if isinstance(variable, dict) and "value" in variable else variable


NOISE = (
    "managedFields",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",  # compressed
    "banzaicloud.com/last-applied",
)
STARTED_WITH = (
    *("userData", "userDataBase64", "networkData", "networkDataBase64"),
    "kubevirt.io/ignitiondata",
    "extraHeaders",
)
"""Fields and annotations of virtual machines that may contain credentials.

They hold cloud-init data, an Ignition config (an annotation that virt-launcher pods also carry), and the HTTP headers
for downloading disks. Sysprep data is in a Secret or a ConfigMap that the virtual machine only names.
"""
