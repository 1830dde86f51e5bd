"""Writes the .tar.gz archive of `must-gather`, which contains lists of objects, and logs.

The archive's index lists its files, the permission that each required, and the data that could not be read. The module
never reads Secrets. It removes the values of environment variables, and the startup data of virtual machines, from all
objects that it reads.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from console.operations.install_check import PRODUCT_LISTINGS, Listing, format_permission
from kube.certificates.components import COMPONENT_LABEL
from kube.client.api import Api
from kube.client.api_errors import ApiError, Denied, NotFound
from kube.cpu_labels import capabilities, hyperconverged
from kube.maintenance import leases
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import get_node_name
from kube.mutex.objects import API_VERSION, PLURALS, RUN_LABEL
from kube.paths import Object, build_pods_on_node_query, encode_path_segment
from kube.times import format_time
from kube.virtualization import vmis

ROOT_DIRECTORY = "must-gather"
"""The only top-level directory of the archive."""
FILE_MODE = 0o600
"""Mode of the archive file: only its owner may read it, because it contains the names of pods and nodes."""
MAX_LOG_LINES = "100000"
"""Maximum number of log lines per container, the latest ones; on a typical cluster, they cover several days."""
REDACTED = "(redacted)"
DROPPED_KEYS = (
    "managedFields",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",  # This annotation contains a compressed copy of the object.
    "banzaicloud.com/last-applied",
)
REDACTED_KEYS = (
    *("userData", "userDataBase64", "networkData", "networkDataBase64"),
    "kubevirt.io/ignitiondata",
    "extraHeaders",
)
"""Fields and annotations of virtual machines whose values are redacted, because they may contain credentials.

These are cloud-init data, the Ignition config (also an annotation of virt-launcher pods), and the HTTP headers for disk
downloads. Sysprep data needs no redaction: it is in a Secret or ConfigMap that the virtual machine only references.
"""
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
"""Lists of the objects that upgrade runs depend on; read only if MutexRules, MutexTargets or MutexRunConfigs exist."""
CAPABILITY_LISTING = Listing("cpu-labels/capabilities", "v1", "configmaps", labels=capabilities.CAPABILITIES_LABEL)
HYPERCONVERGED_LISTING = Listing("cpu-labels/hyperconvergeds", hyperconverged.API_VERSION, "hyperconvergeds")
"""List of the HyperConvergeds, which contain settings for CPU labels; read only if a ConfigMap has CPU capabilities."""
VMI_LISTING = Listing("virtualization/virtualmachineinstances", vmis.API_VERSION, "virtualmachineinstances")
VM_LISTINGS = [
    *(
        Listing(f"virtualization/{kind}", vmis.API_VERSION, kind)
        for kind in ("virtualmachines", "virtualmachineinstancemigrations", "kubevirts")
    ),
    Listing("virtualization/launchers", "v1", "pods", labels=vmis.VIRT_LAUNCHER_SELECTOR),
]
"""Lists of the objects that own or migrate VirtualMachineInstances (VMIs); read only if the cluster has VMIs."""


class Archive:
    """Writer of a .tar.gz archive; as a context manager, it adds `index.json` on exit, even after an error.

    Raises `OSError` if the file already exists or cannot be written.

    Attributes:
        index: The content of `index.json`: the archive's files, and which data is missing and why.
    """

    def __init__(self, file: Path) -> None:
        self.index: dict[str, Any] = {
            "gathered": format_time(datetime.now(timezone.utc)),
            **{"files": [], "notInstalled": [], "missingPermissions": [], "notRead": []},
        }
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._output_file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._output_file, mode="w:gz")  # noqa: SIM115 - closed at exit

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        content = _encode_json(self.index)
        self._tar.addfile(_build_tar_info("index.json", len(content)), io.BytesIO(content))
        self._tar.close()
        self._output_file.close()

    def add_file(self, name: str, content: bytes, source: str, item_count: int | None = None) -> None:
        """Add a file; `source` describes the content's origin, and `item_count` is the number of objects in it."""
        self._tar.addfile(_build_tar_info(name, len(content)), io.BytesIO(content))
        count_field = {} if item_count is None else {"items": item_count}
        self.index["files"].append({"file": name, "from": source, "bytes": len(content), **count_field})

    def add_json(self, name: str, value: Any, source: str, item_count: int | None = None) -> None:
        """Add a file that contains the value as JSON."""
        self.add_file(name, _encode_json(value), source, item_count)

    def add_lines(self, name: str, lines: Iterable[bytes], source: str) -> None:
        """Add a file with these lines, buffered in a temporary file because a tar header contains the file's size."""
        with TemporaryFile() as buffer:
            count = sum(1 for line in lines if buffer.write(line))
            size = buffer.tell()
            buffer.seek(0)
            self._tar.addfile(_build_tar_info(name, size), buffer)
        self.index["files"].append({"file": name, "from": source, "bytes": size, "items": count})

    def add_missing_kind(self, permission: str) -> None:
        """Record that the kind in `permission` is not installed, which is not an error."""
        self.index["notInstalled"].append(permission)

    def add_denied_read(self, permission: str, message: str) -> None:
        """Record once that the user lacks a permission such as `list nodes`, with the API server's message."""
        denied = self.index["missingPermissions"]
        if permission not in [entry["permission"] for entry in denied]:
            denied.append({"permission": permission, "message": message})

    def add_failed_read(self, source: str, message: str) -> None:
        """Record once that `source` could not be read for a reason other than a missing permission."""
        failed = self.index["notRead"]
        if source not in [entry["what"] for entry in failed]:
            failed.append({"what": source, "message": message})


def _build_tar_info(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"{ROOT_DIRECTORY}/{name}")
    entry.size, entry.mtime, entry.mode = size, int(time.time()), FILE_MODE
    return entry


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


async def gather_cluster(api: Api, archive: Archive, namespace: str) -> None:
    """Add all readable data of the cluster to the archive, and record failed reads; `namespace` is the product's."""
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
    """Add a list of objects to the archive, and return the objects; record a failed read and return an empty list."""
    try:
        response = await api.list(listing.path, field_selector=listing.fields, label_selector=listing.labels)
    except NotFound:
        archive.add_missing_kind(listing.permission)
        return []
    except Denied as error:
        archive.add_denied_read(listing.permission, error.message)
        return []
    except ApiError as error:
        archive.add_failed_read(listing.permission, error.message)
        return []
    items = [redact_possible_secrets(item) for item in response["items"]]
    archive.add_json(f"{listing.file}.json", {**response, "items": items}, listing.permission, len(items))
    return items


async def _gather_logs(api: Api, archive: Archive, pods: Iterable[Object]) -> None:
    """Add a log file for each container of these pods, and for the previous instance of each restarted container."""
    for pod in pods:
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        restarted_containers = {status["name"] for status in statuses if status.get("restartCount")}
        for container in pod["spec"]["containers"]:
            await _gather_log(api, archive, pod["metadata"], container["name"])
            if container["name"] in restarted_containers:
                await _gather_log(api, archive, pod["metadata"], container["name"], previous=True)


async def _gather_log(api: Api, archive: Archive, pod: Object, container: str, *, previous: bool = False) -> None:
    """Add the log of one container; `pod` is the pod's metadata."""
    permission = format_permission("get", "pods/log", "v1", pod["namespace"])
    path = f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/log"
    file = f"logs/{pod['name']}/{container}{'.previous' if previous else ''}.log"
    query = {"container": container, "tailLines": MAX_LOG_LINES, "timestamps": "false"}
    try:
        lines = await api.get_raw(path, {**query, "previous": "true"} if previous else query)
    except Denied as error:
        archive.add_denied_read(permission, error.message)
    except ApiError as error:
        archive.add_failed_read(f"{permission}, for {file}", error.message)
    else:
        archive.add_file(file, lines, permission)


def redact_possible_secrets(value: Any) -> Any:
    """Return a copy of a JSON value without possible secrets.

    The function redacts the values of environment variables, and the startup data of virtual machines, also in strings
    that contain JSON. It removes `managedFields`, and the annotations in which `kubectl apply` and similar tools store
    a copy of the object.
    """
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, list):
        return [redact_possible_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    redacted = {key: redact_possible_secrets(child) for key, child in value.items() if key not in DROPPED_KEYS}
    redacted |= {key: REDACTED for key in REDACTED_KEYS if key in redacted}
    if isinstance(redacted.get("env"), list):
        redacted["env"] = [_redact_variable(variable) for variable in redacted["env"]]
    return redacted


def _redact_text(text: str) -> str:
    """Return the text with possible secrets redacted if it is JSON; redact all of it if it is nested too deeply."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        parsed = json.loads(text)
        redacted = redact_possible_secrets(parsed)
        return text if redacted == parsed else json.dumps(redacted)
    except RecursionError:
        return REDACTED
    except ValueError:  # The text is not valid JSON.
        return text


def _redact_variable(variable: Any) -> Any:
    """Return the environment variable with its value redacted; return any other item of an `env` list unchanged."""
    return {**variable, "value": REDACTED} if isinstance(variable, dict) and "value" in variable else variable
