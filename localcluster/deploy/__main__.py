"""Command line `python -m localcluster.deploy OVERLAY`: an overlay's name in manifests/overlays, or its directory."""

from __future__ import annotations

import sys

from localcluster.deploy.apply import deploy
from localcluster.errors import LocalClusterError

if __name__ == "__main__":
    try:
        deploy(*sys.argv[1:2] or [""])
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
