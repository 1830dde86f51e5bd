"""Knative func's Go module: the schema of func.yaml, and the scaffolding that func generates around a function."""

from __future__ import annotations

from pathlib import Path

from localcluster.programs import build

MODULE = "knative.dev/func@v0.50.1"
"""The module of func 1.23.1, whose own version number the Go module proxy does not know."""
RELEASE = "1.23"
"""The minor version of func that `MODULE` contains."""


def download() -> Path:
    """Return the module's directory; download the module if necessary. Raises `LocalClusterError`."""
    # The download runs outside of this repository's Go modules, so that the modules stay unchanged.
    return build.download_module(MODULE, build.get_cache_dir(), GOFLAGS="-mod=mod")


def fetch_schema() -> Path:
    """Return the file of the JSON schema with which func's release describes func.yaml."""
    return download() / "schema" / "func_yaml-schema.json"


def fetch_scaffolding() -> Path:
    """Return the directory of the scaffolding for a Python function with `invoke: http`."""
    return download() / "templates" / "python" / "scaffolding" / "instanced-http"
