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

from eventing.local.manifests import YAML_LOADER
from localcluster.deploy.preflight import (
    KNATIVE_DOMAIN,
    PLACEHOLDER_IMAGE,
    SIGNING_SECRET,
    Kind,
    find_accounts_losing_roles,
    list_conflicts,
    list_namespaces,
    list_objects_with_placeholder_image,
    list_pods_with_key_variable,
    list_required_kinds,
    list_signing_namespaces,
    set_default_namespace,
)
from localcluster.errors import LocalClusterError
from localcluster.programs import build
from localcluster.servers import ROOT

OVERLAYS_DIR = ROOT / "manifests" / "overlays"
POD_SELECTOR = "app.kubernetes.io/part-of=node-maintenance"
"""Label selector of the product's pods."""
BINDINGS_PATH = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def find_overlay(overlay: str) -> Path:
    """Return an overlay's directory. Raises `LocalClusterError`, which lists the project's overlays, if there is none.

    The function expands a leading `~`, which a shell does not expand inside `OVERLAY=`.
    """
    for folder in (OVERLAYS_DIR / overlay, Path(os.path.expanduser(overlay))):
        if overlay and (folder / "kustomization.yaml").is_file():
            return folder
    shipped = ", ".join(sorted(entry.parent.name for entry in OVERLAYS_DIR.glob("*/kustomization.yaml")))
    raise LocalClusterError(
        f"OVERLAY={overlay}: no kustomization.yaml found: use a directory that contains one, or one of {shipped}"
    )


def deploy(overlay: str) -> None:
    """Apply an overlay. Raises `LocalClusterError` with the reason.

    After an error, nothing was applied, except the signing key's Secret and the final `kubectl apply`'s objects.
    """
    folder = find_overlay(overlay)
    kubectl = _find_kubectl()
    rendered = _run_command(kubectl, "kustomize", str(folder)).stdout
    probe = _run_command(kubectl, "get", "--raw", "/readyz", "--request-timeout=10s", check=False)
    if probe.returncode:
        reason = f"the API server does not respond: {probe.stderr.strip()}"
        raise LocalClusterError(f"nothing was applied: {reason}; check KUBECONFIG")
    manifests = set_default_namespace(
        list(yaml.load_all(rendered, Loader=YAML_LOADER)), _get_context_namespace(kubectl)
    )
    _check_kinds_served(kubectl, manifests)
    _check_no_other_install(kubectl, manifests)
    if object_names := list_objects_with_placeholder_image(manifests):
        reason = f"{', '.join(object_names)} would run the placeholder image {PLACEHOLDER_IMAGE}"
        remedy = "set the image under `images` in an overlay of your own (see docs/install.md)"
        raise LocalClusterError(f"nothing was applied: {reason}: {remedy}")
    _check_signing_secret(kubectl, manifests)
    _ensure_signing_secret(kubectl, manifests)
    done = subprocess.run([kubectl, "apply", "-f", "-"], input=rendered, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(
            f"kubectl did not apply all of {folder}: fix the errors above, then run `make deploy` again"
        )


def _check_kinds_served(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the cluster does not serve a kind of these objects."""
    missing = sorted(list_required_kinds(manifests) - _list_served_kinds(kubectl, manifests))
    if missing:
        names = ", ".join(f"{kind} ({version})" for version, kind in missing)
        remedy = (
            ": install Knative first (see docs/install.md)"
            if any(KNATIVE_DOMAIN in version for version, _ in missing)
            else ""
        )
        raise LocalClusterError(f"nothing was applied: the cluster does not serve {names}{remedy}")


def _check_no_other_install(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if these objects would take over objects or roles of another install."""
    live_objects = [
        live_object
        for namespace in list_namespaces(manifests)
        for live_object in _list_live_objects(kubectl, namespace)
    ]
    if conflicts := [*list_conflicts(manifests, live_objects), *_list_accounts_losing_roles(kubectl, manifests)]:
        remedy = 'see "Change the broker or the overlay" in docs/upgrade.md'
        raise LocalClusterError(
            f"nothing was applied: conflicts with another install: {'; '.join(conflicts)}; {remedy}"
        )


def _check_signing_secret(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the signing key does not exist yet but pods already run without it.

    Pods that start later with the key would reject the events of those pods permanently. Only the administrator may
    decide to delete them.
    """
    for namespace in list_signing_namespaces(manifests):
        path = f"/api/v1/namespaces/{namespace}"
        running = list_pods_with_key_variable(
            _get_raw(kubectl, f"{path}/pods?labelSelector={quote(POD_SELECTOR)}").get("items", ())
        )
        if running and not _get_raw(kubectl, f"{path}/secrets/{SIGNING_SECRET}"):
            raise LocalClusterError(
                f"nothing was applied: namespace {namespace} lacks the Secret {SIGNING_SECRET}, and pods run without "
                f"it, such as {running[0]}: while no maintenance is active, run these commands, then `make deploy` "
                "again (see docs/security.md): "
                f"kubectl create secret generic {SIGNING_SECRET} -n {namespace} "
                '--from-literal=key="$(openssl rand -hex 32)"; '
                f"kubectl delete pods -n {namespace} -l {POD_SELECTOR}"
            )


def _ensure_signing_secret(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Create the signing key's Secret in each namespace that needs it, unless it exists.

    The function applies the namespace first if it is one of the objects.
    """
    for namespace in list_signing_namespaces(manifests):
        bodies = [
            manifest
            for manifest in manifests
            if manifest["kind"] == "Namespace" and manifest["metadata"]["name"] == namespace
        ]
        for body in bodies:
            _run_command(kubectl, "apply", "-f", "-", stdin=json.dumps(body))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SIGNING_SECRET, "namespace": namespace}}
        body = {**secret, "stringData": {"key": secrets.token_urlsafe(32)}}
        created = _run_command(kubectl, "create", "-f", "-", stdin=json.dumps(body), check=False)
        if created.returncode and "AlreadyExists" not in created.stderr:
            raise LocalClusterError(f"cannot create Secret {namespace}/{SIGNING_SECRET}: {created.stderr.strip()}")


def _find_kubectl() -> str:
    """Return the path of kubectl: the one on PATH, or else the one that `make build` built."""
    if found := shutil.which("kubectl"):
        return found
    built = build.get_target_dir() / "kubectl"
    if not built.is_file():
        raise LocalClusterError("kubectl not found on PATH: install it, or build it with `make build`")
    return str(built)


def _get_context_namespace(kubectl: str) -> str:
    """Return the namespace of the current context, or `default` if it names none, as kubectl does."""
    viewed = _run_command(
        kubectl, "config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}", check=False
    )
    return viewed.stdout or "default"


def _list_served_kinds(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Return the kinds that the cluster serves in the API groups of these objects."""
    found: set[Kind] = set()
    for version in {manifest["apiVersion"] for manifest in manifests}:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found |= {(version, resource["kind"]) for resource in _get_raw(kubectl, path).get("resources", ())}
    return found


def _list_accounts_losing_roles(kubectl: str, manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each existing ServiceAccount that would lose its ClusterRoleBindings.

    Such an account belongs to another install, or to the same functions deployed in another form.
    """
    lost = sorted(find_accounts_losing_roles(manifests, _get_raw(kubectl, BINDINGS_PATH).get("items", ())))
    existing = (pair for pair in lost if _get_raw(kubectl, "/api/v1/namespaces/{}/serviceaccounts/{}".format(*pair)))
    return [f"ServiceAccount {namespace}/{name} would lose its cluster roles" for namespace, name in existing]


def _list_live_objects(kubectl: str, namespace: str) -> list[Mapping[str, Any]]:
    """Return the Brokers and the core Services of a namespace."""
    paths = (
        f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers",
        f"/api/v1/namespaces/{namespace}/services",
    )
    found: list[Mapping[str, Any]] = []
    for kind, path in zip(("Broker", "Service"), paths, strict=True):
        found += [{**item, "kind": kind} for item in _get_raw(kubectl, path).get("items", ())]
    return found


def _get_raw(kubectl: str, path: str) -> Mapping[str, Any]:
    """Return the API server's response to a GET of this path, {} if it does not serve the path."""
    done = _run_command(kubectl, "get", "--raw", path, check=False)
    if done.returncode == 0:
        response: Mapping[str, Any] = json.loads(done.stdout)
        return response
    if "NotFound" in done.stderr:
        return {}
    raise LocalClusterError(f"nothing was applied: cannot get {path}: {done.stderr.strip()}")


def _run_command(*command: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LocalClusterError(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    return done
