"""Test for reading the state of an install from a real API server without Knative."""

from __future__ import annotations

from console.operations.install_check import InstallReport, check_install
from localcluster.cluster import LocalCluster


def test_missing_api_groups_of_knative_are_not_an_error(installed_cluster: LocalCluster) -> None:
    """Check that a cluster without Knative has no problems; a note names the namespace that has no functions."""
    client = installed_cluster.get_client()

    report = client.run(check_install(client.api, "node-maintenance"))

    assert report == InstallReport(
        [],
        'no functions found in namespace "node-maintenance": if they run in another namespace, '
        "name it with --namespace",
    )
