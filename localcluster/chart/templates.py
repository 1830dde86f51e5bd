"""Writes the chart's templates: each object with the condition under which it exists, in a file for its component."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.chart import combinations as kustomize
from localcluster.chart.conditions import Combination, find_condition
from localcluster.chart.line_merge import END, Lines, build_template, enclose
from localcluster.deploy.preflight import PLACEHOLDER_IMAGE
from localcluster.kustomize import BlockDumper
from localcluster.servers import ROOT

CHART_DIR = ROOT / "charts" / "node-maintenance"
GENERATED_DIR = CHART_DIR / "templates" / "generated"
HEADER = "{{- /* Generated from manifests/ by `make chart`; do not edit. */ -}}"
KEEP_ANNOTATION = "helm.sh/resource-policy"
KEPT_KINDS = ("CustomResourceDefinition", "Namespace", "PersistentVolumeClaim")
"""Kinds that an uninstall keeps, because their deletion would also delete objects or data that users created."""
RENDERERS = 2
"""Number of concurrent kustomize processes."""
FILES_BY_KIND = {
    "CustomResourceDefinition": "crds",
    "ServiceAccount": "rbac",
    "Role": "rbac",
    "RoleBinding": "rbac",
    "ClusterRole": "rbac",
    "ClusterRoleBinding": "rbac",
    "Trigger": "triggers",
    "NetworkPolicy": "network",
    "Namespace": "cluster",
    "PriorityClass": "cluster",
}
DEFAULT_FILE, FUNCTIONS_FILE = "eventing", "functions"
FUNCTION_KINDS = ("Deployment", "Service", "PodDisruptionBudget")
FILES_BY_VALUE = {
    "components.mutex": "mutex",
    "components.virtualization": "virtualization",
    "components.cpuLabels": "cpu-labels",
    "components.nodeConditions": "node-conditions",
    "components.notifications": "notifications",
    "components.admission": "admission",
    "components.deleting": "deleting",
    "components.v1alpha1": "v1alpha1",
    "brokerAuthentication": "senders",
    "console.enabled": "console",
    "monitoring.enabled": "monitoring",
    "journal.storage": "journal",
    "certificates": "certificates",
}
"""For values in the condition of an object, the file with the object; the first value in the condition decides."""
EXPRESSIONS = {
    "__chart_image__": 'include "node-maintenance.image" . | quote',
    "__chart_bootstrap__": ".Values.kafka.bootstrapServers | quote",
    "__chart_journalsize__": ".Values.journal.size | quote",
    "__chart_journalsecret__": ".Values.journal.databaseSecret | quote",
}
"""Placeholders in objects, and the template expressions that replace them."""
PULL_SECRETS = (
    *("{{- with .Values.image.pullSecrets }}", "imagePullSecrets:", "{{- range . }}"),
    *("  - name: {{ . | quote }}", END, END),
)
STORAGE_CLASS = ("{{- with .Values.journal.storageClassName }}", "  storageClassName: {{ . | quote }}", END)
Manifest = dict[str, Any]


class Identity(NamedTuple):
    """The fields that identify an object in a cluster; objects are sorted by them."""

    kind: str
    api_version: str
    namespace: str
    name: str


def write_templates(directory: Path = GENERATED_DIR) -> None:
    """Write all generated templates into a directory, in place of earlier ones."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in directory.glob("*.yaml"):
        file.unlink()
    for name, text in generate_templates().items():
        (directory / f"{name}.yaml").write_text(text)


def generate_templates() -> dict[str, str]:
    """Return the text of each template by the file's name without its suffix."""
    combinations = kustomize.list_combinations()
    texts: dict[Identity, dict[int, Lines]] = defaultdict(dict)
    for index, objects in enumerate(_render_all(combinations)):
        for identity, lines in objects.items():
            texts[identity][index] = lines
    parts: dict[str, list[str]] = defaultdict(list)
    for identity, text_by_index in sorted(texts.items()):
        condition = find_condition(combinations, text_by_index.keys(), set(range(len(combinations))), kustomize.AXES)
        template = ("---", *build_template(text_by_index, combinations, kustomize.AXES))
        if identity.kind == "Namespace":
            template = tuple(
                enclose(template, f'include "node-maintenance.mayOwnNamespace" (list . "{identity.name}")')
            )
        parts[_choose_file(identity, condition)] += enclose(template, condition)
    return {name: "\n".join([HEADER, *lines]) + "\n" for name, lines in parts.items()}


def _choose_file(identity: Identity, condition: str) -> str:
    """Return the name of the file for an object that exists under this condition."""
    files = (file for path, file in FILES_BY_VALUE.items() if re.search(rf"\.Values\.{re.escape(path)}\b", condition))
    by_kind = FUNCTIONS_FILE if identity.kind in FUNCTION_KINDS else FILES_BY_KIND.get(identity.kind, DEFAULT_FILE)
    return next(files, by_kind)


def _render_all(combinations: Sequence[Combination]) -> Iterator[dict[Identity, Lines]]:
    """Yield the objects of each combination as lines of a template; equal overlays are rendered once."""
    overlays = [kustomize.list_overlay_parts(combination) for combination in combinations]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(RENDERERS) as threads:
        folders = {
            parts: kustomize.write_overlay(parts, Path(directory) / str(number))
            for number, parts in enumerate(dict.fromkeys(overlays))
        }
        documents = dict(zip(folders, threads.map(kustomize.render_documents, folders.values()), strict=True))
    for combination, parts in zip(combinations, overlays, strict=True):
        yield {
            identity: lines
            for identity, lines in map(convert_document, documents[parts])
            if kustomize.is_in_chart(combination, identity.kind, identity.name)
        }


@cache
def convert_document(document: str) -> tuple[Identity, Lines]:
    """Return the identity of an object in YAML, and its lines in a template."""
    manifest: Manifest = yaml.load(document, Loader=YAML_LOADER)  # noqa: S506 - a safe loader
    metadata = manifest["metadata"]
    identity = Identity(manifest["kind"], manifest["apiVersion"], metadata.get("namespace", ""), metadata["name"])
    _insert_placeholders(manifest)
    text: str = yaml.dump(manifest, Dumper=BlockDumper, width=10**6, allow_unicode=True)
    # Helm would evaluate the expressions of Prometheus and Grafana.
    text = text.replace("{{", '{{ "{{" }}')
    for placeholder, expression in EXPRESSIONS.items():
        text = text.replace(placeholder, f"{{{{ {expression} }}}}")
    additions = {"ServiceAccount": PULL_SECRETS, "PersistentVolumeClaim": STORAGE_CLASS}.get(identity.kind, ())
    return identity, (*text.splitlines(), *additions)


def _insert_placeholders(manifest: Manifest) -> None:
    """Replace the parts of an object that the chart's values set."""
    kind = manifest["kind"]
    if kind in KEPT_KINDS:
        manifest["metadata"].setdefault("annotations", {})[KEEP_ANNOTATION] = "keep"
    if kind == "PersistentVolumeClaim":
        manifest["spec"]["resources"]["requests"]["storage"] = "__chart_journalsize__"
    if "bootstrap.servers" in manifest.get("data", {}):
        manifest["data"]["bootstrap.servers"] = "__chart_bootstrap__"
    pod_spec = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod_spec.get("containers", ()):
        if container["image"] == PLACEHOLDER_IMAGE:
            container["image"] = "__chart_image__"
        for variable in container.get("env", ()):
            if variable["name"] == "DATABASE_URL":
                variable["valueFrom"]["secretKeyRef"]["name"] = "__chart_journalsecret__"
