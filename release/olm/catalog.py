"""Builds the entries of a file-based catalog that offers one version of the bundle. Pure functions.

The entries have the same content as those that `opm render` derives from the bundle.
"""

from __future__ import annotations

from typing import Any

from release.olm.bundle_objects import Manifest
from release.olm.service_version import PACKAGE, SUMMARY, build_skip_range, get_channel

METADATA_FIELDS = (
    *("description", "displayName", "installModes", "keywords", "maturity", "minKubeVersion", "nativeAPIs"),
    "provider",
)
"""Fields in the ClusterServiceVersion's spec that the catalog repeats, so that a client need not pull the bundle."""


def build_catalog(service_version: Manifest, bundle_image: str) -> list[Manifest]:
    """Build the catalog's entries: the package, its only channel, and the bundle.

    Args:
        service_version: The ClusterServiceVersion of the bundle.
        bundle_image: The reference to the bundle's image.
    """
    spec, name = service_version["spec"], service_version["metadata"]["name"]
    (icon,) = spec["icon"]
    channel = get_channel(spec["version"])
    return [
        {
            "schema": "olm.package",
            "name": PACKAGE,
            "defaultChannel": channel,
            "description": SUMMARY,
            "icon": icon,
        },
        {
            "schema": "olm.channel",
            "package": PACKAGE,
            "name": channel,
            "entries": [{"name": name, "skipRange": build_skip_range(spec["version"])}],
        },
        {
            "schema": "olm.bundle",
            "package": PACKAGE,
            "name": name,
            "image": bundle_image,
            "properties": _build_properties(service_version),
            "relatedImages": sorted(
                [*spec["relatedImages"], {"name": "", "image": bundle_image}], key=lambda related: related["image"]
            ),
        },
    ]


def _build_properties(service_version: Manifest) -> list[dict[str, Any]]:
    """Build the bundle's properties: its APIs, the package's version, and metadata for the catalog's clients."""
    spec = service_version["spec"]
    owned = spec["customresourcedefinitions"]["owned"]
    provided = sorted((crd["name"].partition(".")[2], crd["kind"], crd["version"]) for crd in owned)
    metadata = {
        "annotations": service_version["metadata"]["annotations"],
        "apiServiceDefinitions": {},
        "crdDescriptions": {"owned": owned},
        **{field: spec[field] for field in METADATA_FIELDS},
    }
    return [
        *(
            {"type": "olm.gvk", "value": {"group": group, "kind": kind, "version": version}}
            for group, kind, version in provided
        ),
        {"type": "olm.package", "value": {"packageName": PACKAGE, "version": spec["version"]}},
        {"type": "olm.csv.metadata", "value": metadata},
    ]
