"""A fake kubelet: turns a Deployment's image, environment and ServiceAccount into a local process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster import access, function_server
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.processes import Server
from localcluster.servers import ROOT

TOKEN_SECONDS = 365 * 24 * 3600
"""Lifetime of the tokens, in seconds; they are not renewed, so each must last as long as the cluster."""
PRODUCT_IMAGE = "nodemaintenance"
"""The placeholder image in the product's manifests."""
SIGNING_SECRET = "signing"  # noqa: S105 - a name, not a secret
"""The Secret that contains the key with which the product signs events."""
NO_LEADER_ELECTION = ("ingress", "filter")
"""Knative binaries without leader election, which do not accept the flag `-disable-ha`."""


def write_account_kubeconfig(cluster: LocalCluster, namespace: str, account: str) -> Path:
    """Return a kubeconfig with a ServiceAccount token from the TokenRequest API, as in a pod; write it on first use."""
    file = cluster.directory / "users" / f"{namespace}_{account}.token.kubeconfig"
    if not file.exists():
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }
        response = cluster.get_client().create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request
        )
        token = response["status"]["token"]
        access.write_kubeconfig(file, cluster.url, cluster.certificate, f"{namespace}:{account}", token)
    return file


class FakeKubelet:
    """Builds processes from Deployments.

    Args:
        programs: The directory of the built binaries.
        logs: The directory for logs.
        environment: Variables that every process gets in addition to its own.
    """

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, environment: Mapping[str, str]) -> None:
        self._cluster, self._programs, self._logs = cluster, programs, logs
        self._environment = dict(environment)

    def build_server(self, namespace: str, deployment: str, **overrides: str) -> Server:
        """Return the process for a Deployment's only container; `overrides` replace environment variables of it."""
        body = self._cluster.get_client().get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
        spec = body["spec"]["template"]["spec"]
        account = spec.get("serviceAccountName") or "default"
        [container] = spec["containers"]
        environment = {
            **self._environment,
            "KUBECONFIG": str(write_account_kubeconfig(self._cluster, namespace, account)),
            **self._resolve_variables(container, namespace, deployment),
            **overrides,
        }
        return Server(deployment, self._build_command(container), self._logs / f"{deployment}.log", environment, ROOT)

    def _build_command(self, container: Mapping[str, Any]) -> list[str | Path]:
        """Return the command that a container with this image would run.

        Knative's images have the names of their binaries. The product's image runs the container's command, or its own
        default command.
        """
        image, arguments = container["image"], [*(container.get("command") or []), *(container.get("args") or [])]
        if image == PRODUCT_IMAGE:
            return [sys.executable, *arguments[1:]] if arguments else function_server.build_command()
        program = self._programs / image.rsplit("/", 1)[-1]
        if not program.is_file():
            raise LocalClusterError(f'image "{image}": program {program} not found: add it to the toolset')
        # Each program runs as a single replica, so it needs no leader election.
        return [program, *arguments, *([] if program.name in NO_LEADER_ELECTION else ["-disable-ha"])]

    def _resolve_variables(self, container: Mapping[str, Any], namespace: str, deployment: str) -> dict[str, str]:
        field_values = {"metadata.namespace": namespace, "metadata.name": f"{deployment}-local"}
        variables = {}
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            if "fieldRef" in source:
                variables[entry["name"]] = field_values[source["fieldRef"]["fieldPath"]]
            elif "configMapKeyRef" in source:
                variables[entry["name"]] = self._read_config_map_key(namespace, source["configMapKeyRef"])
            elif source.get("secretKeyRef", {}).get("name") == SIGNING_SECRET:
                variables[entry["name"]] = access.ensure_event_signing_key(self._cluster.directory)
            elif source:
                raise LocalClusterError(
                    f'Deployment "{deployment}", variable {entry["name"]}: unsupported source {", ".join(source)}'
                )
            else:
                variables[entry["name"]] = entry.get("value", "")
        return variables

    def _read_config_map_key(self, namespace: str, reference: Mapping[str, str]) -> str:
        config_map = self._cluster.get_client().get(f"/api/v1/namespaces/{namespace}/configmaps/{reference['name']}")
        return str(config_map["data"][reference["key"]])
