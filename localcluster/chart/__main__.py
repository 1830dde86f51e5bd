"""Command line `python -m localcluster.chart`: writes the generated templates of the Helm chart."""

from __future__ import annotations

from localcluster.chart.templates import write_templates
from localcluster.errors import LocalClusterError

if __name__ == "__main__":
    try:
        write_templates()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
