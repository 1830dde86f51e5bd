"""Builds the ClusterServiceVersion, which describes one version of the product to OLM. Pure functions."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from release.olm.bundle_objects import NAMESPACE, BundleObjects, Manifest
from release.versions import is_candidate

PACKAGE = "node-maintenance"
"""The package's name in a catalog."""
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
"""The kinds that a NodeMaintenance affects, for the display of its resources."""


def build_name(version: str) -> str:
    """Return the name of a version's ClusterServiceVersion."""
    return f"{PACKAGE}.v{version}"


def get_channel(version: str) -> str:
    """Return the channel of a catalog that offers a version: candidates are separate from releases."""
    return "candidate" if is_candidate(version) else "stable"


def build_skip_range(version: str) -> str:
    """Return the range of earlier versions, each of which OLM may upgrade directly to this version."""
    return f"<{version}"


def build_service_version(
    objects: BundleObjects, samples: Sequence[Manifest], *, icon: bytes, version: str, image: str
) -> Manifest:
    """Build the ClusterServiceVersion.

    Args:
        objects: The rendered objects.
        samples: One sample of each kind that the CRDs define.
        icon: The icon, as SVG.
        version: The version of the product.
        image: The reference of the product's image.
    """
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": build_name(version),
            "namespace": "placeholder",  # OLM replaces it by the namespace of the installation.
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
            # A NodeMaintenance is cluster-scoped.
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
    """Return Knative's APIs, which must exist before OLM starts the Deployments: those of the remaining objects."""
    apis = {
        (manifest["apiVersion"], manifest["kind"]) for manifest in remaining if KNATIVE_DOMAIN in manifest["apiVersion"]
    }
    return [
        dict(zip(("group", "version", "kind"), (*api_version.split("/"), kind), strict=True))
        for api_version, kind in sorted(apis)
    ]


def _describe_crd(crd: Manifest) -> Manifest:
    """Describe the stored version of a CRD, with the top-level fields of its spec and status."""
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
    """Return a camel-case name as capitalized words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[0].upper() + name[1:])


def _describe_webhook(webhook: dict[str, Any], deployments: Sequence[Manifest]) -> Manifest:
    """Describe a webhook for OLM, which creates the Service, the certificate and the configuration.

    The webhook's Service has the name of the Deployment.
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
