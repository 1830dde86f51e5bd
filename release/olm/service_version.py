"""Builds the ClusterServiceVersion, in which a version of the product describes itself to OLM. Pure functions."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from release.olm.bundle_objects import NAMESPACE, BundleObjects, Manifest
from release.versions import is_candidate

PACKAGE = "node-maintenance"
"""The name of the package in a catalog."""
DISPLAY_NAME = "Node Maintenance"
PROVIDER = "Node Maintenance contributors"
SUMMARY = "Cordons, taints and drains the node that a NodeMaintenance names, and restores the node at its end."
MIN_KUBERNETES = "1.34.0"
"""The oldest version of Kubernetes that Knative 1.23 supports."""
KNATIVE_DOMAIN = ".knative.dev/"
DESCRIPTION = f"""\
To maintain a node, create a `NodeMaintenance`. The node is cordoned, tainted and drained, and the status shows the
progress and what blocks it. When you delete the object, the node becomes schedulable again.

Small functions perform one step each. Knative Eventing delivers their events, so the installation has three parts:

1. Install Knative Eventing 1.23. OLM cannot install it as a dependency. Until the cluster has Knative's APIs, OLM
   reports this package as pending.
2. Install this package for all namespaces, in the namespace `{NAMESPACE}`.
3. Create the objects that OLM cannot install: the Broker, Triggers and event sources, the admission policy, and the
   permissions in other namespaces. `kubectl apply -f olm.yaml` creates them from the file of that
   name in the same release.

No node is drained before the third part.
"""
KEYWORDS = ("node", "maintenance", "drain", "cordon", "eviction", "knative")
AFFECTED_KINDS = ("Node", "Pod")
"""The kinds that a NodeMaintenance affects; OLM's clients show them as its resources."""


def build_name(version: str) -> str:
    """Return the name of the version's ClusterServiceVersion."""
    return f"{PACKAGE}.v{version}"


def get_channel(version: str) -> str:
    """Return the catalog channel of a version; candidates have a channel of their own."""
    return "candidate" if is_candidate(version) else "stable"


def build_skip_range(version: str) -> str:
    """Return the range of versions from which OLM may upgrade directly to this version."""
    return f"<{version}"


def build_service_version(
    objects: BundleObjects, samples: Sequence[Manifest], *, icon: bytes, version: str, image: str
) -> Manifest:
    """Build the ClusterServiceVersion.

    Args:
        objects: The divided objects.
        samples: One sample for each kind that a CRD defines.
        icon: The icon as SVG.
        version: The product's version.
        image: The reference to the product's image.
    """
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": build_name(version),
            "namespace": "placeholder",  # OLM replaces this name with the namespace of the installation.
            "annotations": {
                "alm-examples": json.dumps(list(samples), indent=2),
                "capabilities": "Seamless Upgrades",
                "categories": "OpenShift Optional",
                "containerImage": image,
                "description": SUMMARY,
                "olm.skipRange": build_skip_range(version),
                "operatorframework.io/suggested-namespace": NAMESPACE,
            },
        },
        "spec": {
            "displayName": DISPLAY_NAME,
            "description": DESCRIPTION,
            "version": version,
            "minKubeVersion": MIN_KUBERNETES,
            "maturity": "beta" if is_candidate(version) else "stable",
            "keywords": list(KEYWORDS),
            "provider": {"name": PROVIDER},
            "icon": [{"base64data": base64.b64encode(icon).decode(), "mediatype": "image/svg+xml"}],
            # A NodeMaintenance is cluster-scoped, so the product must watch all namespaces.
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "nativeAPIs": _list_knative_apis(objects.remaining),
            "customresourcedefinitions": {"owned": [_describe_crd(crd) for crd in objects.crds]},
            "webhookdefinitions": [
                _describe_webhook(webhook, objects.deployments)
                for configuration in objects.webhooks
                for webhook in configuration["webhooks"]
            ],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [
                        {"serviceAccountName": account, "rules": rules} for account, rules in objects.rules.items()
                    ],
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                        for deployment in objects.deployments
                    ],
                },
            },
            "relatedImages": [{"name": "functions", "image": image}],
        },
    }


def _list_knative_apis(remaining: Sequence[Manifest]) -> list[dict[str, str]]:
    """Return the Knative APIs of the remaining objects; OLM starts the Deployments only after these APIs exist."""
    apis = {
        (manifest["apiVersion"], manifest["kind"]) for manifest in remaining if KNATIVE_DOMAIN in manifest["apiVersion"]
    }
    return [
        dict(zip(("group", "version", "kind"), (*api_version.split("/"), kind), strict=True))
        for api_version, kind in sorted(apis)
    ]


def _describe_crd(crd: Manifest) -> Manifest:
    """Describe a CRD's storage version, with the top-level fields of its spec and status."""
    spec = crd["spec"]
    (version,) = (version for version in spec["versions"] if version["storage"])
    schema = version["schema"]["openAPIV3Schema"]
    return {
        "name": crd["metadata"]["name"],
        "version": version["name"],
        "kind": spec["names"]["kind"],
        "displayName": f"{DISPLAY_NAME} ({spec['group']})",
        "description": schema["description"],
        "resources": [{"kind": kind, "name": "", "version": "v1"} for kind in AFFECTED_KINDS],
        "specDescriptors": _describe_fields(schema["properties"]["spec"]),
        "statusDescriptors": _describe_fields(schema["properties"]["status"]),
    }


def _describe_fields(schema: Manifest) -> list[dict[str, str]]:
    return [
        {"path": name, "displayName": _split_words(name), "description": field["description"]}
        for name, field in schema["properties"].items()
        if "description" in field
    ]


def _split_words(name: str) -> str:
    """Split a camel-case name into capitalized words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[0].upper() + name[1:])


def _describe_webhook(webhook: dict[str, Any], deployments: Sequence[Manifest]) -> Manifest:
    """Describe a webhook for OLM, which creates the webhook's Service, certificate and configuration.

    In the manifests, the webhook's Service and its Deployment have the same name.
    """
    service = webhook["clientConfig"]["service"]
    (deployment,) = (deployment for deployment in deployments if deployment["metadata"]["name"] == service["name"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    kept = ("admissionReviewVersions", "failurePolicy", "matchPolicy", "rules", "sideEffects", "timeoutSeconds")
    return {
        "type": "ValidatingAdmissionWebhook",
        "generateName": webhook["name"],
        "deploymentName": deployment["metadata"]["name"],
        "containerPort": service["port"],
        "targetPort": port["containerPort"],
        "webhookPath": service["path"],
        **{field: webhook[field] for field in kept},
    }
