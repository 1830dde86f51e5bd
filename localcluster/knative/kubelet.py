"""Plays kubelet: makes a local process of what a Deployment describes: its image, environment and account."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster import access, functionserver
from localcluster.cluster import LocalCluster
from localcluster.processes import Server
from localcluster.servers import ROOT
from localcluster.trouble import LocalClusterError

LIFETIME = 365 * 24 * 3600
"""Seconds. Nobody renews a token, so it has to last as long as the cluster."""
OURS = "nodemaintenance"
"""The image of our own programs."""
SIGNING = "signing"
"""The Secret of the key that our programs sign events with."""
LEADERLESS = ("ingress", "filter")
"""Programs of Knative that never elect a leader, and know no flag about it."""


def kubeconfig(cluster: LocalCluster, namespace: str, account: str) -> Path:
    """Write a kubeconfig with a token of a ServiceAccount, as the TokenRequest API gives it to pods."""
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
    """Knows the folder of the built programs, the folder for logs, and what every process needs beside its own."""

    def __init__(self, cluster: LocalCluster, programs: Path, logs: Path, environment: Mapping[str, str]) -> None:
        self._cluster, self._programs, self._logs = cluster, programs, logs
        self._environment = dict(environment)

    def server(self, namespace: str, deployment: str, **overrides: str) -> Server:
        """Give the process for the one container of a Deployment; `overrides` are ports that must not collide here."""
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
        """What the image would run: Knative's are named for their program, ours for its command."""
        image, words = container["image"], [*(container.get("command") or []), *(container.get("args") or [])]
        if image == OURS:
            return [sys.executable, *words[1:]] if words else functionserver.command()
        program = self._programs / image.rsplit("/", 1)[-1]
        if not program.is_file():
            raise LocalClusterError(f"no program was built for image {image}")
        # each is alone, and so in no need of electing a leader
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
