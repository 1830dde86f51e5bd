"""Fetches the CRDs of cert-manager from its Go module."""

from __future__ import annotations

from pathlib import Path

from localcluster.programs import build

MODULE = "github.com/cert-manager/cert-manager"
CRD_PLURALS = ("issuers", "certificates")


def fetch_crds() -> list[Path]:
    """Return the files of the CRDs that the component `cert-manager` needs; download them if necessary."""
    folder = build.download_program_module("knative", MODULE) / "deploy" / "crds"
    return [folder / f"crd-{plural}.yaml" for plural in CRD_PLURALS]
