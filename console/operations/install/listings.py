"""List requests, each with the permission that it requires, and the lists of the product's own objects."""

from __future__ import annotations

from dataclasses import dataclass

from kube.selectors import format_selector

PRODUCT_SELECTOR = {"matchLabels": {"app.kubernetes.io/part-of": "node-maintenance"}}
"""Label selector of the product's own pods."""


@dataclass(frozen=True)
class Listing:
    """A list request for one kind, and the file for its result.

    Attributes:
        file: Name in the archive, without `.json`.
        api_version, resource: The kind's API version and resource name, e.g. `apps/v1` and `deployments`.
        namespace: "" for all namespaces, or for a cluster-scoped kind.
        labels, fields: Selectors.
    """

    file: str
    api_version: str
    resource: str
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        """Return the path of the collection."""
        namespace = f"/namespaces/{self.namespace}" if self.namespace else ""
        root = "apis" if "/" in self.api_version else "api"
        return f"/{root}/{self.api_version}{namespace}/{self.resource}"

    @property
    def permission(self) -> str:
        """Return the permission that the request needs, in the form that `kubectl auth can-i` takes."""
        return format_permission("list", self.resource, self.api_version, self.namespace)


PRODUCT_LISTINGS = [
    Listing("product/pods", "v1", "pods", labels=format_selector(PRODUCT_SELECTOR)),
    Listing("product/deployments", "apps/v1", "deployments"),
    Listing("product/services", "serving.knative.dev/v1", "services"),
    *(Listing(f"product/{kind}", "eventing.knative.dev/v1", kind) for kind in ("brokers", "triggers")),
    *(
        Listing(f"product/{kind}", "sources.knative.dev/v1", kind)
        for kind in ("apiserversources", "pingsources", "containersources", "sinkbindings")
    ),
]
"""Objects in the namespace that the product is installed in."""


def format_permission(verb: str, resource: str, api_version: str, namespace: str = "") -> str:
    """Return a permission as `kubectl auth can-i` takes it: `list leases.coordination.k8s.io in medik8s-leases`."""
    group = api_version.rpartition("/")[0]
    permission = f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
    return f"{permission} in {namespace}" if namespace else permission
