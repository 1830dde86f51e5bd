"""`make deploy`: applies one of our overlays to the cluster of the current kubeconfig, if all that it needs is there.

`python -m localcluster.deploy OVERLAY`: a name below manifests/overlays, or a folder with a kustomization of one's own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from eventing.local.manifests import LOADER
from localcluster.programs import build
from localcluster.servers import ROOT
from localcluster.trouble import LocalClusterError

OVERLAYS = ROOT / "manifests" / "overlays"
KNATIVE = ".knative.dev"
BROKER_CLASS = "eventing.knative.dev/broker.class"
KEY, OURS = "signing", "app.kubernetes.io/part-of=node-maintenance"
"""The Secret with the key that our programs sign events with, and what selects their pods."""
PLACEHOLDER = "nodemaintenance"
"""The image that our manifests name, for `images` of an overlay to replace: no registry has it."""
LOOKED_AT = ("Broker", "Service", "ContainerSource")
"""Kinds whose namespace is asked for before anything is applied."""
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
Kind = tuple[str, str]
"""An `apiVersion` and a `kind`."""


def folder_of(overlay: str) -> Path:
    """Give an overlay's folder. Raises `LocalClusterError` that lists ours when there is no such thing.

    A `~` in front is a home, which no shell looks up within `OVERLAY=`.
    """
    for folder in (OVERLAYS / overlay, Path(os.path.expanduser(overlay))):
        if overlay and (folder / "kustomization.yaml").is_file():
            return folder
    ours = ", ".join(sorted(entry.parent.name for entry in OVERLAYS.glob("*/kustomization.yaml")))
    raise LocalClusterError(f"OVERLAY={overlay} is no folder with a kustomization.yaml, nor one of {ours}")


def needed(items: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Give the kinds that a cluster has to serve before these objects are applied: those that they do not define."""
    defined = {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
        for spec in (item["spec"] for item in items if item["kind"] == "CustomResourceDefinition")
        for version in spec["versions"]
    }
    return {(item["apiVersion"], item["kind"]) for item in items} - defined


def placed(items: Sequence[Mapping[str, Any]], home: str) -> list[Mapping[str, Any]]:
    """Give these objects, those that are looked at with a namespace: kubectl puts what names none into `home`."""
    return [
        {**item, "metadata": {"namespace": home, **item["metadata"]}} if item["kind"] in LOOKED_AT else item
        for item in items
    ]


def spaces(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give the namespaces in which these objects have a Broker or a Service of either kind."""
    return sorted({item["metadata"]["namespace"] for item in items if item["kind"] in ("Broker", "Service")})


def obstacles(items: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which of the live objects these cannot replace: each that another choice of components has made.

    Nobody changes the class of a Broker, and Serving takes no Service that is not its own, nor gives one away.
    """
    there = {(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]): item for item in live}
    found = []
    for item in items:
        kind, space, name = item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
        other = there.get((kind, space, name))
        if other is None:
            continue
        if kind == "Broker" and _class(other) != _class(item):
            found.append(f"Broker {space}/{name} is of the class {_class(other)}, not {_class(item)}")
        elif kind == "Service" and _is_of_serving(other) != (KNATIVE in item["apiVersion"]):
            whose = "" if _is_of_serving(other) else "not "
            found.append(f"Service {space}/{name} is {whose}of Knative Serving")
    return found


def robbed(items: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Give the accounts, by namespace and name, from which these objects would take a live ClusterRoleBinding."""
    ours = {item["metadata"]["name"]: _accounts(item) for item in items if item["kind"] == "ClusterRoleBinding"}
    lost = (_accounts(item) - ours.get(item["metadata"]["name"], _accounts(item)) for item in live)
    return set().union(*lost)


def nameless(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which of these objects would run the placeholder, and so nothing at all."""
    return [f"{item['kind']} {item['metadata']['name']}" for item in items if _has_placeholder(item)]


def _has_placeholder(part: Any) -> bool:
    """Whether it is the image of a container somewhere in an object of whatever kind, or in a part of one."""
    if isinstance(part, Mapping):
        return part.get("image") == PLACEHOLDER or any(map(_has_placeholder, part.values()))
    return isinstance(part, list) and any(map(_has_placeholder, part))


def unkeyed(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name those of these pods that read the key when they start, and have not ended: all, where there is no key."""
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        and any(_reads_key(each) for container in pod["spec"]["containers"] for each in container.get("env", ()))
    ]


def _reads_key(variable: Mapping[str, Any]) -> bool:
    return bool(variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == KEY)


def _accounts(binding: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The ServiceAccounts that it is for, by namespace and name."""
    subjects = (each for each in binding.get("subjects") or () if each["kind"] == "ServiceAccount")
    return {(each["namespace"], each["name"]) for each in subjects}


def _class(broker: Mapping[str, Any]) -> str:
    return str((broker["metadata"].get("annotations") or {}).get(BROKER_CLASS, ""))


def _is_of_serving(service: Mapping[str, Any]) -> bool:
    """Whether a Service of the core was made by Serving."""
    return any(KNATIVE in owner["apiVersion"] for owner in service["metadata"].get("ownerReferences") or [])


def deploy(overlay: str) -> None:
    """Apply it. Raises `LocalClusterError` with the reason, and then nothing was applied unless kubectl began to."""
    folder = folder_of(overlay)
    kubectl = _program()
    rendered = _run(kubectl, "kustomize", str(folder)).stdout
    answer = _run(kubectl, "get", "--raw", "/readyz", "--request-timeout=10s", check=False)
    if answer.returncode:
        raise LocalClusterError(f"no cluster answers, nothing was applied: {answer.stderr.strip()}; see KUBECONFIG")
    items = placed(list(yaml.load_all(rendered, Loader=LOADER)), _home(kubectl))
    missing = sorted(needed(items) - _served(kubectl, items))
    if missing:
        names = ", ".join(f"{kind} ({version})" for version, kind in missing)
        remedy = (
            "; install Knative first, see docs/install.md" if any(KNATIVE in version for version, _ in missing) else ""
        )
        raise LocalClusterError(f"the cluster does not serve {names}, so nothing was applied{remedy}")
    live = [one for space in spaces(items) for one in _live(kubectl, space)]
    if found := [*obstacles(items, live), *_robbed(kubectl, items)]:
        remedy = 'see "Another broker or overlay" in docs/install.md'
        raise LocalClusterError(f"nothing was applied, since another install is there: {'; '.join(found)}; {remedy}")
    if found := nameless(items):
        remedy = f"say under `images` in an overlay of your own what {PLACEHOLDER} is, see docs/install.md"
        raise LocalClusterError(f"nothing was applied, since {', '.join(found)} would have no image; {remedy}")
    _refuse_unkeyed(kubectl, items)
    _share_key(kubectl, items)
    done = subprocess.run([kubectl, "apply", "-f", "-"], input=rendered, text=True, check=False)
    if done.returncode:
        raise LocalClusterError(f"kubectl did not apply all of {folder}, see above; `make deploy` again goes on")


def _refuse_unkeyed(kubectl: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` where a first key would come beside pods that run without it.

    Pods that start later would refuse what those emit, for good, and to end those is for a person to say.
    """
    for space in _signing(items):
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
    """Make the Secret with the key unless it is there, behind its namespace where that is one of the objects."""
    for space in _signing(items):
        own = [item for item in items if item["kind"] == "Namespace" and item["metadata"]["name"] == space]
        for body in own:
            _run(kubectl, "apply", "-f", "-", text=json.dumps(body))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEY, "namespace": space}}
        body = {**secret, "stringData": {"key": secrets.token_urlsafe(32)}}
        answer = _run(kubectl, "create", "-f", "-", text=json.dumps(body), check=False)
        if answer.returncode and "AlreadyExists" not in answer.stderr:
            raise LocalClusterError(f"the Secret {KEY} could not be made: {answer.stderr.strip()}")


def _signing(items: Sequence[Mapping[str, Any]]) -> set[str]:
    """Give the namespaces whose programs sign."""
    return {item["metadata"]["namespace"] for item in items if item["kind"] == "ContainerSource"}


def _program() -> str:
    """Give kubectl: the one on PATH, or the one that was built."""
    if found := shutil.which("kubectl"):
        return found
    built = build.target() / "kubectl"
    if not built.is_file():
        raise LocalClusterError("kubectl is not there: install it, or let `make build` build one")
    return str(built)


def _home(kubectl: str) -> str:
    """Give the namespace of the current context, `default` where that names none, as with kubectl."""
    answer = _run(kubectl, "config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}", check=False)
    return answer.stdout or "default"


def _served(kubectl: str, items: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Give the kinds that the cluster serves in the groups of these objects."""
    found: set[Kind] = set()
    for version in {item["apiVersion"] for item in items}:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found |= {(version, resource["kind"]) for resource in _answer(kubectl, path).get("resources", ())}
    return found


def _robbed(kubectl: str, items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say who of those that are there would lose cluster roles: another install, or its functions served otherwise."""
    lost = sorted(robbed(items, _answer(kubectl, BINDINGS).get("items", ())))
    there = (pair for pair in lost if _answer(kubectl, "/api/v1/namespaces/{}/serviceaccounts/{}".format(*pair)))
    return [f"ServiceAccount {space}/{name} would lose its cluster roles" for space, name in there]


def _live(kubectl: str, space: str) -> list[Mapping[str, Any]]:
    """Give the Brokers of a namespace, and its Services of the core."""
    paths = (f"/apis/eventing.knative.dev/v1/namespaces/{space}/brokers", f"/api/v1/namespaces/{space}/services")
    found: list[Mapping[str, Any]] = []
    for kind, path in zip(("Broker", "Service"), paths, strict=True):
        found += [{**item, "kind": kind} for item in _answer(kubectl, path).get("items", ())]
    return found


def _answer(kubectl: str, path: str) -> Mapping[str, Any]:
    """Give what the API server says at a path, {} for one that it does not serve."""
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


if __name__ == "__main__":
    try:
        deploy(*sys.argv[1:2] or [""])
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
