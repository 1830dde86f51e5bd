"""A fake kubelet: turns a Deployment's image, environment and ServiceAccount into a local process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster import access, function_server
from localcluster.cluster import LocalCluster
from localcluster.processes import Server
from localcluster.servers import ROOT
from localcluster.errors import LocalClusterError

LIFETIME = 365 * 24 * 3600
"""Seconds; these tokens are not renewed, so each must last as long as the cluster."""
OURS = "nodemaintenance"
"""The image of the product's programs."""
SIGNING = "signing"
"""The Secret with the key that the product's programs sign events with."""
LEADERLESS = ("ingress", "filter")
"""Knative programs without leader election, which reject the flag that disables it."""


def kubeconfig(cluster: LocalCluster, namespace: str, account: str) -> Path:
    """Write a kubeconfig with a token of a ServiceAccount from the TokenRequest API, as pods get it."""
    file = cluster.directory / "users" / f"{namespace}_{account}.token.kubeconfig"
    if not file.exists():
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFETIME},
        }
        answer = cluster.door().create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
        token = answer["status"]["token"]
        access.write_kubeconfig(file, cluster.url, cluster.certificate, f"{namespace}:{account}", token)
    return file


class Kubelet:
    """Builds processes from Deployments.

    Args:
        programs: The directory of the built programs.
        logs: The directory for logs.
        environment: Variables that every process gets in addition to its own.
    """

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, environment: Mapping[str, str]) -> None:
        self._cluster, self._programs, self._logs = cluster, programs, logs
        self._environment = dict(environment)

    def server(self, namespace: str, deployment: str, **overrides: str) -> Server:
        """Return the process for a Deployment's only container; `overrides` set ports that must be unique per host."""
        found = self._cluster.door().get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}")
        spec = found["spec"]["template"]["spec"]
        account = spec.get("serviceAccountName") or "default"
        [container] = spec["containers"]
        environment = {
            **self._environment,
            "KUBECONFIG": str(kubeconfig(self._cluster, namespace, account)),
            **self._variables(container, namespace, deployment),
            **overrides,
        }
        return Server(deployment, self._command(container), self._logs / f"{deployment}.log", environment, ROOT)

    def _command(self, container: Mapping[str, Any]) -> list[str | Path]:
        """Return the command that the container's image would run.

        Knative's images are named after their program; the product's image runs the given command or its default one.
        """
        image, words = container["image"], [*(container.get("command") or []), *(container.get("args") or [])]
        if image == OURS:
            return [sys.executable, *words[1:]] if words else function_server.command()
        program = self._programs / image.rsplit("/", 1)[-1]
        if not program.is_file():
            raise LocalClusterError(f"no program was built for image {image}")
        # each program runs as a single replica, so it needs no leader election
        return [program, *words, *([] if program.name in LEADERLESS else ["-disable-ha"])]

    def _variables(self, container: Mapping[str, Any], namespace: str, deployment: str) -> dict[str, str]:
        facts = {"metadata.namespace": namespace, "metadata.name": f"{deployment}-local"}
        found = {}
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            if "fieldRef" in source:
                found[entry["name"]] = facts[source["fieldRef"]["fieldPath"]]
            elif "configMapKeyRef" in source:
                found[entry["name"]] = self._from_map(namespace, source["configMapKeyRef"])
            elif source.get("secretKeyRef", {}).get("name") == SIGNING:
                found[entry["name"]] = access.signing_key(self._cluster.directory)
            elif source:
                raise LocalClusterError(f"{deployment}: {entry['name']} is from {', '.join(source)}, not known here")
            else:
                found[entry["name"]] = entry.get("value", "")
        return found

    def _from_map(self, namespace: str, reference: Mapping[str, str]) -> str:
        found = self._cluster.door().get(f"/api/v1/namespaces/{namespace}/configmaps/{reference['name']}")
        return str(found["data"][reference["key"]])
