"""Applies an overlay to the cluster of the current kubeconfig, if the cluster meets the overlay's requirements."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from eventing.local.manifests import LOADER
from localcluster.deploy.preflight import (
    KEY,
    KNATIVE,
    PLACEHOLDER,
    Kind,
    nameless,
    needed,
    obstacles,
    placed,
    robbed,
    signing,
    spaces,
    unkeyed,
)
from localcluster.programs import build
from localcluster.servers import ROOT
from localcluster.errors import LocalClusterError

OVERLAYS = ROOT / "manifests" / "overlays"
OURS = "app.kubernetes.io/part-of=node-maintenance"
"""Label selector of the product's pods."""
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def folder_of(overlay: str) -> Path:
    """Return an overlay's directory. Raises `LocalClusterError`, which lists the project's overlays, if there is none.

    The function expands a leading `~`, which a shell does not expand inside `OVERLAY=`.
    """
    for folder in (OVERLAYS / overlay, Path(os.path.expanduser(overlay))):
        if overlay and (folder / "kustomization.yaml").is_file():
            return folder
    ours = ", ".join(sorted(entry.parent.name for entry in OVERLAYS.glob("*/kustomization.yaml")))
    raise LocalClusterError(f"OVERLAY={overlay} is no folder with a kustomization.yaml, nor one of {ours}")


def deploy(overlay: str) -> None:
    """Apply an overlay. Raises `LocalClusterError` with the reason.

    On an error nothing was applied, except for the signing key's Secret and what the final `kubectl apply` wrote.
    """
    folder = folder_of(overlay)
    kubectl = _program()
    rendered = _run(kubectl, "kustomize", str(folder)).stdout
    answer = _run(kubectl, "get", "--raw", "/readyz", "--request-timeout=10s", check=False)
    if answer.returncode:
        raise LocalClusterError(f"no cluster answers, nothing was applied: {answer.stderr.strip()}; see KUBECONFIG")
    items = placed(list(yaml.load_all(rendered, Loader=LOADER)), _home(kubectl))
    _refuse_unserved(kubectl, items)
    _refuse_another(kubectl, items)
    if found := nameless(items):
        remedy = f"say under `images` in an overlay of your own what {PLACEHOLDER} is, see docs/install.md"
        raise LocalClusterError(f"nothing was applied, since {', '.join(found)} would have no image; {remedy}")
    _refuse_unkeyed(kubectl, items)
    _share_key(kubectl, items)
    done = subprocess.run([kubectl, "apply", "-f", "-"], input=rendered, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"kubectl did not apply all of {folder}, see above; `make deploy` again goes on")


def _refuse_unserved(kubectl: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the cluster does not serve a kind of these objects."""
    missing = sorted(needed(items) - _served(kubectl, items))
    if missing:
        names = ", ".join(f"{kind} ({version})" for version, kind in missing)
        remedy = (
            "; install Knative first, see docs/install.md" if any(KNATIVE in version for version, _ in missing) else ""
        )
        raise LocalClusterError(f"the cluster does not serve {names}, so nothing was applied{remedy}")


def _refuse_another(kubectl: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if these objects would take over objects or roles of another install."""
    live = [one for space in spaces(items) for one in _live(kubectl, space)]
    if found := [*obstacles(items, live), *_robbed(kubectl, items)]:
        remedy = 'see "Change the broker or the overlay" in docs/upgrade.md'
        raise LocalClusterError(f"nothing was applied, since another install is there: {'; '.join(found)}; {remedy}")


def _refuse_unkeyed(kubectl: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the signing key does not exist yet but pods already run without it.

    Pods that start later with the key would reject the events of those pods permanently. Only the administrator may
    decide to delete them.
    """
    for space in signing(items):
        path = f"/api/v1/namespaces/{space}"
        running = unkeyed(_answer(kubectl, f"{path}/pods?labelSelector={quote(OURS)}").get("items", ()))
        if running and not _answer(kubectl, f"{path}/secrets/{KEY}"):
            raise LocalClusterError(
                f"nothing was applied, since {space} has no Secret {KEY}, and pods run without it, as {running[0]}; "
                f"when no maintenance is under way, do this, then `make deploy` again (see docs/security.md): "
                f'kubectl create secret generic {KEY} -n {space} --from-literal=key="$(openssl rand -hex 32)"; '
                f"kubectl delete pods -n {space} -l {OURS}"
            )


def _share_key(kubectl: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Create the signing key's Secret in each namespace that needs it, unless it exists.

    The function applies the namespace first if it is one of the objects.
    """
    for space in signing(items):
        own = [item for item in items if item["kind"] == "Namespace" and item["metadata"]["name"] == space]
        for body in own:
            _run(kubectl, "apply", "-f", "-", text=json.dumps(body))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEY, "namespace": space}}
        body = {**secret, "stringData": {"key": secrets.token_urlsafe(32)}}
        answer = _run(kubectl, "create", "-f", "-", text=json.dumps(body), check=False)
        if answer.returncode and "AlreadyExists" not in answer.stderr:
            raise LocalClusterError(f"the Secret {KEY} could not be made: {answer.stderr.strip()}")


def _program() -> str:
    """Return the path of kubectl: the one on PATH, or else the one that `make build` built."""
    if found := shutil.which("kubectl"):
        return found
    built = build.target() / "kubectl"
    if not built.is_file():
        raise LocalClusterError("kubectl is not there: install it, or let `make build` build one")
    return str(built)


def _home(kubectl: str) -> str:
    """Return the namespace of the current context, or `default` if it names none, as kubectl does."""
    answer = _run(kubectl, "config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}", check=False)
    return answer.stdout or "default"


def _served(kubectl: str, items: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Return the kinds that the cluster serves in the API groups of these objects."""
    found: set[Kind] = set()
    for version in {item["apiVersion"] for item in items}:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found |= {(version, resource["kind"]) for resource in _answer(kubectl, path).get("resources", ())}
    return found


def _robbed(kubectl: str, items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each existing ServiceAccount that would lose its ClusterRoleBindings.

    Such an account belongs to another install, or to the same functions deployed in another form.
    """
    lost = sorted(robbed(items, _answer(kubectl, BINDINGS).get("items", ())))
    there = (pair for pair in lost if _answer(kubectl, "/api/v1/namespaces/{}/serviceaccounts/{}".format(*pair)))
    return [f"ServiceAccount {space}/{name} would lose its cluster roles" for space, name in there]


def _live(kubectl: str, space: str) -> list[Mapping[str, Any]]:
    """Return the Brokers and the core Services of a namespace."""
    paths = (f"/apis/eventing.knative.dev/v1/namespaces/{space}/brokers", f"/api/v1/namespaces/{space}/services")
    found: list[Mapping[str, Any]] = []
    for kind, path in zip(("Broker", "Service"), paths, strict=True):
        found += [{**item, "kind": kind} for item in _answer(kubectl, path).get("items", ())]
    return found


def _answer(kubectl: str, path: str) -> Mapping[str, Any]:
    """Return the API server's response for a path, {} if it does not serve the path."""
    answer = _run(kubectl, "get", "--raw", path, check=False)
    if answer.returncode == 0:
        found: Mapping[str, Any] = json.loads(answer.stdout)
        return found
    if "NotFound" in answer.stderr:
        return {}
    raise LocalClusterError(f"nothing was applied, {path} cannot be asked for: {answer.stderr.strip()}")


def _run(*command: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LocalClusterError(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    return done
