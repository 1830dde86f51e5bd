"""Provides Knative func's Go module: the JSON schema of func.yaml, and the scaffolding that wraps a function."""

from __future__ import annotations

from pathlib import Path

from localcluster.programs import build

MODULE = "knative.dev/func@v0.50.1"
"""The Go module of func 1.23.1; the module proxy does not have this release under its own version number."""
RELEASE = "1.23"
"""The minor version of the func release in `MODULE`."""


def download() -> Path:
    """Download func's Go module unless it is cached; return its directory. Raises `LocalClusterError` if that fails."""
    # The go command runs outside of this repository's Go modules, so that it does not change their go.mod files.
    return build.download_module(MODULE, build.get_cache_dir(), GOFLAGS="-mod=mod")


def fetch_schema() -> Path:
    """Return the path of the JSON schema of func.yaml."""
    return download() / "schema" / "func_yaml-schema.json"


def fetch_scaffolding() -> Path:
    """Return the directory with func's scaffolding for a Python function with `invoke: http`."""
    return download() / "templates" / "python" / "scaffolding" / "instanced-http"
