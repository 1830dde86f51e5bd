"""The CustomResourceDefinitions of cert-manager, from its Go module."""

from __future__ import annotations

from pathlib import Path

from localcluster.programs import build

MODULE = "github.com/cert-manager/cert-manager"
KINDS = ("issuers", "certificates")


def crds() -> list[Path]:
    """Return the files of the CRDs that the component `cert-manager` needs, downloading them if necessary."""
    folder = build.module_folder("knative", MODULE) / "deploy" / "crds"
    return [folder / f"crd-{kind}.yaml" for kind in KINDS]
