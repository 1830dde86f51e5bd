"""Reads the cluster data of a must-gather: lists of objects, and logs, each with the permission that it requires.

The module never reads Secrets. It removes environment variables' values and virtual machines' startup data from all
objects that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from console.operations.archive import Archive, FailedRead
from console.operations.install.listings import PRODUCT_LISTINGS, Listing, format_permission
from kube.certificates.components import COMPONENT_LABEL
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.cpu_labels import capabilities, hyperconverged
from kube.maintenance import leases
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import get_node_name
from kube.mutex.objects import API_VERSION, PLURALS, RUN_LABEL
from kube.paths import Object, build_pods_on_node_query, encode_path_segment
from kube.virtualization import vmis

MAX_LOG_LINES = "100000"
"""Maximum number of recent log lines per container; in a typical cluster they cover several days."""
REDACTED = "(redacted)"


MAINTENANCE_LISTINGS = [
    Listing(f"maintenances/{version.partition('/')[0]}", version, "nodemaintenances") for version in GROUPS
]
CLUSTER_LISTINGS = [
    Listing("nodes", "v1", "nodes"),
    Listing("poddisruptionbudgets", "policy/v1", "poddisruptionbudgets"),
    Listing("events", "v1", "events"),
    Listing("certificates", "v1", "configmaps", labels=COMPONENT_LABEL),
    Listing("leases", "coordination.k8s.io/v1", "leases", leases.NAMESPACE),
]
MUTEX_LISTINGS = [Listing(f"mutex/{plural}", API_VERSION, plural) for plural in PLURALS.values()]
RUN_LISTINGS = [
    Listing("mutex/machineconfigpools", "machineconfiguration.openshift.io/v1", "machineconfigpools"),
    Listing("mutex/clusterversions", "config.openshift.io/v1", "clusterversions"),
    Listing("mutex/jobs", "batch/v1", "jobs", labels=RUN_LABEL),
]
"""Objects that upgrade runs depend on; read only if the cluster has objects of the upgrade mutex."""
CAPABILITY_LISTING = Listing("cpu-labels/capabilities", "v1", "configmaps", labels=capabilities.CAPABILITIES_LABEL)
HYPERCONVERGED_LISTING = Listing("cpu-labels/hyperconvergeds", hyperconverged.API_VERSION, "hyperconvergeds")
"""Settings for the CPU labels; read only if a ConfigMap describes nodes' CPU capabilities."""
VMI_LISTING = Listing("virtualization/virtualmachineinstances", vmis.API_VERSION, "virtualmachineinstances")
VM_LISTINGS = [
    *(
        Listing(f"virtualization/{kind}", vmis.API_VERSION, kind)
        for kind in ("virtualmachines", "virtualmachineinstancemigrations", "kubevirts")
    ),
    Listing("virtualization/launchers", "v1", "pods", labels=vmis.VIRT_LAUNCHER_SELECTOR),
]
"""Objects that own or migrate VMIs; read only if the cluster has VMIs."""


async def gather_cluster(api: Api, archive: Archive, namespace: str) -> None:
    """Add all readable data to the archive, and record the failed reads; `namespace` is the product's namespace."""
    maintenances = [item for listing in MAINTENANCE_LISTINGS for item in await _gather_list(api, archive, listing)]
    for listing in CLUSTER_LISTINGS:
        await _gather_list(api, archive, listing)
    mutexes = [item for listing in MUTEX_LISTINGS for item in await _gather_list(api, archive, listing)]
    for listing in RUN_LISTINGS if mutexes else []:
        await _gather_list(api, archive, listing)
    if await _gather_list(api, archive, CAPABILITY_LISTING):
        await _gather_list(api, archive, HYPERCONVERGED_LISTING)
    for listing in VM_LISTINGS if await _gather_list(api, archive, VMI_LISTING) else []:
        await _gather_list(api, archive, listing)
    for node in sorted({get_node_name(maintenance) for maintenance in maintenances} - {""}):
        listing = Listing(f"pods/{encode_path_segment(node)}", "v1", "pods", fields=build_pods_on_node_query(node)[1])
        await _gather_list(api, archive, listing)
    for listing in PRODUCT_LISTINGS:
        items = await _gather_list(api, archive, replace(listing, namespace=namespace))
        if listing.resource == "pods":
            await _gather_logs(api, archive, items)


async def _gather_list(api: Api, archive: Archive, listing: Listing) -> list[Object]:
    """Add one list to the archive, and return its items: empty if it cannot be read or the kind is not installed."""
    try:
        response = await api.list(listing.path, field_selector=listing.fields, label_selector=listing.labels)
    except NotFound:
        archive.add_missing_kind(listing.permission)
        return []
    except ApiError as error:
        archive.add_failed_read(_build_failed_read(listing.permission, error))
        return []
    items = [redact_values(item) for item in response["items"]]
    archive.add_json(f"{listing.file}.json", {**response, "items": items}, listing.permission, len(items))
    return items


async def _gather_logs(api: Api, archive: Archive, pods: Iterable[Object]) -> None:
    """Add one log file per container of these pods, and a second one for a restarted container's previous run."""
    for pod in pods:
        restarted_containers = {
            status["name"]
            for status in (pod.get("status") or {}).get("containerStatuses") or []
            if status.get("restartCount")
        }
        for container in pod["spec"]["containers"]:
            await _gather_log(api, archive, pod, container["name"], {})
            if container["name"] in restarted_containers:
                await _gather_log(api, archive, pod, container["name"], {"previous": "true"})


async def _gather_log(api: Api, archive: Archive, pod: Object, container: str, extra_query: dict[str, str]) -> None:
    metadata = pod["metadata"]
    permission = format_permission("get", "pods/log", "v1", metadata["namespace"])
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    file = f"logs/{metadata['name']}/{container}{'.previous' if extra_query else ''}.log"
    try:
        lines = await api.get_raw(
            path, {"container": container, "tailLines": MAX_LOG_LINES, "timestamps": "false", **extra_query}
        )
    except ApiError as error:
        archive.add_failed_read(
            _build_failed_read(permission if isinstance(error, Denied) else f"{permission}, for {file}", error)
        )
        return
    archive.add_file(file, lines, permission)


def _build_failed_read(permission: str, error: ApiError) -> FailedRead:
    return FailedRead(permission, error.message, is_denied=isinstance(error, Denied))


def redact_values(value: Any) -> Any:
    """Return a copy without possible secrets: environment variables' values and virtual machines' startup data.

    The function also searches strings that contain JSON, such as annotations that contain a whole object. It drops
    `managedFields` and the annotations in which `kubectl apply` and similar tools keep a copy of the object.
    """
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, list):
        return [redact_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    redacted = {key: redact_values(child) for key, child in value.items() if key not in DROPPED_KEYS}
    redacted |= {key: REDACTED for key in REDACTED_KEYS if key in redacted}
    if isinstance(redacted.get("env"), list):
        redacted["env"] = [_redact_variable(variable) for variable in redacted["env"]]
    return redacted


def _redact_text(text: str) -> str:
    """Redact secrets in the text if it is JSON; redact the whole text if the JSON is nested too deeply."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        parsed = json.loads(text)
        redacted = redact_values(parsed)
        return text if redacted == parsed else json.dumps(redacted)
    except RecursionError:
        return REDACTED
    except ValueError:  # The text starts like JSON but is not valid JSON.
        return text


def _redact_variable(variable: Any) -> Any:
    """Return the environment variable without its value; other entries of a list named `env` stay unchanged."""
    return {**variable, "value": REDACTED} if isinstance(variable, dict) and "value" in variable else variable


DROPPED_KEYS = (
    "managedFields",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",  # a compressed copy
    "banzaicloud.com/last-applied",
)
REDACTED_KEYS = (
    *("userData", "userDataBase64", "networkData", "networkDataBase64"),
    "kubevirt.io/ignitiondata",
    "extraHeaders",
)
"""Fields and annotations of virtual machines that may contain credentials.

The credentials can be in cloud-init data, an Ignition config (also an annotation of virt-launcher pods), or the HTTP
headers for downloading disks. Sysprep data is in a Secret or a ConfigMap that the virtual machine only names.
"""
