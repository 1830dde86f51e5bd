"""A release of the Helm chart on a cluster, and local processes in place of the pods of its hooks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from localcluster import access
from localcluster.access import NAMESPACE
from localcluster.chart.templates import CHART_DIR
from localcluster.cluster import LocalCluster
from tests.manifests.helm import HOOK_ANNOTATION, IMAGE_VALUES, RELEASE, Values, parse_manifests, run_helm
from tests.manifests.rendering import ROOT, Manifest, filter_by_kind

COMPACT_VALUES: Values = {**IMAGE_VALUES, "functions": "compact"}
CHECK_JOB = "uninstall-check"
"""The Job that runs before `helm uninstall`."""
NO_PODS_TAINT = "tests/no-pods"
"""A taint that keeps kwok from running a pod, which would complete at once."""


class Release:
    """The chart's release on a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def run(
        self, *arguments: str | Path, values: Values | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run Helm in the release's namespace."""
        kubeconfig = self.cluster.kubeconfig
        return run_helm(*arguments, "--namespace", NAMESPACE, values=values, kubeconfig=kubeconfig, check=check)

    def install(self, *options: str, values: Values = COMPACT_VALUES, check: bool = True) -> str:
        """Install the release, and return Helm's error output."""
        return self.run(
            "install", RELEASE, CHART_DIR, "--create-namespace", *options, values=values, check=check
        ).stderr

    def upgrade(self, values: Values, check: bool = True) -> str:
        """Upgrade the release to these values, and return Helm's error output."""
        return self.run("upgrade", RELEASE, CHART_DIR, values=values, check=check).stderr

    def get_objects(self) -> list[Manifest]:
        """Return the objects of the release's current revision."""
        return parse_manifests(self.run("get", "manifest", RELEASE).stdout)

    def get_hooks(self, event: str) -> list[Manifest]:
        """Return the objects of the release that Helm creates only for an event, such as `test`."""
        return select_hooks(parse_manifests(self.run("get", "hooks", RELEASE).stdout), event)

    def list_history(self) -> list[Manifest]:
        """Return the release's revisions, the oldest first."""
        history: list[Manifest] = json.loads(self.run("history", RELEASE, "-o", "json").stdout)
        return history

    def list_live_names(self, objects: Sequence[Manifest]) -> set[str]:
        """Return those of the objects that exist, as kubectl names them."""
        found = self.kubectl_on(objects, "get", "--ignore-not-found", "-o", "name").stdout
        return set(found.split())

    def list_versions(self, objects: Sequence[Manifest]) -> dict[str, str]:
        """Return the generation of each object, or the resourceVersion of an object without generation.

        Controllers change the status of the others, and with it the resourceVersion.
        """
        items = json.loads(self.kubectl_on(objects, "get", "-o", "json").stdout)["items"]
        metadata = [item["metadata"] for item in items]
        return {fields["uid"]: str(fields.get("generation", fields["resourceVersion"])) for fields in metadata}

    def kubectl_on(self, objects: Sequence[Manifest], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run kubectl with these objects as its input."""
        return self.cluster.kubectl(*arguments, "-f", "-", input=yaml.safe_dump_all(objects))


def select_hooks(objects: Sequence[Manifest], event: str) -> list[Manifest]:
    """Return the objects that Helm creates only for an event."""
    return [item for item in objects if item["metadata"].get("annotations", {}).get(HOOK_ANNOTATION) == event]


def run_hook(
    release: Release, hooks: Sequence[Manifest], directory: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command of the hooks' Pod or Job as a local process; the other hooks exist only meanwhile."""
    (workload,) = filter_by_kind(hooks, "Pod", "Job")
    accounts = [hook for hook in hooks if hook is not workload]
    pod_spec = workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]
    release.kubectl_on(accounts, "create")
    try:
        return run_container(release.cluster, pod_spec, directory, **variables)
    finally:
        release.kubectl_on(accounts, "delete")


def run_container(
    cluster: LocalCluster, pod_spec: Manifest, directory: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command of a pod's only container as a local process, with a token of the pod's ServiceAccount.

    Args:
        cluster: The cluster of the ServiceAccount.
        pod_spec: The pod's spec.
        directory: The directory for the kubeconfig.
        variables: The values of `$(NAME)` in the command.
    """
    (container,) = pod_spec["containers"]
    account = pod_spec["serviceAccountName"]
    kubeconfig = directory / f"{account}.kubeconfig"
    token = cluster.kubectl("create", "token", account, "-n", NAMESPACE).stdout.strip()
    access.write_kubeconfig(kubeconfig, cluster.url, cluster.certificate, account, token)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], part) for part in container["command"]],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def uninstall_with_check(
    release: Release, directory: Path
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Uninstall the release while its check runs as a local process; return the results of Helm and of the check.

    The exit status of the process becomes the phase of the Job's pod.
    """
    cluster = release.cluster
    selection = ("pods", "-n", NAMESPACE, "-l", f"job-name={CHECK_JOB}", "--field-selector", "status.phase=Pending")
    cluster.kubectl("taint", "nodes", "--all", f"{NO_PODS_TAINT}:NoSchedule")
    try:
        with ThreadPoolExecutor(1) as threads:
            uninstall = threads.submit(release.run, "uninstall", RELEASE, "--timeout", "60s", check=False)
            cluster.kubectl("wait", "--for=create", "--timeout=60s", *selection)
            (pod,) = json.loads(cluster.kubectl("get", *selection, "-o", "json").stdout)["items"]
            check = run_container(cluster, pod["spec"], directory)
            status = {"status": {"phase": "Failed" if check.returncode else "Succeeded"}}
            name = ("pod", pod["metadata"]["name"], "-n", NAMESPACE)
            cluster.kubectl("patch", *name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
            return uninstall.result(), check
    finally:
        cluster.kubectl("taint", "nodes", "--all", f"{NO_PODS_TAINT}-")
