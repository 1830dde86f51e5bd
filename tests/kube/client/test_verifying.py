"""Tests that the API client verifies the API server's certificate, against a real server."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from kube.certificates.components import COMPONENTS
from kube.certificates.key_pairs import new_authority
from kube.client.api_errors import Unavailable
from kube.client.sync_client import Cluster
from localcluster.cluster import LocalCluster
from tests.proofs import proves


@pytest.fixture
def strangers(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Return a kubeconfig whose CA did not sign the server's certificate."""
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    other = new_authority(next(iter(COMPONENTS.values())), datetime.now(timezone.utc)).certificate
    [entry] = content["clusters"]
    entry["cluster"]["certificate-authority-data"] = base64.b64encode(other.encode()).decode()
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


@proves("MUT-52")
def test_a_server_that_the_authority_does_not_vouch_for_is_not_asked(strangers: Path) -> None:
    """Refuse the server except in a view that disabled verification; closing the client closes both connections."""
    door = Cluster(str(strangers))
    try:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            door.get("/version")
        view = door.view()
        view.stop_verifying()
        assert view.get("/version")["major"] == "1"
        with pytest.raises(Unavailable, match="certificate verify failed"):
            door.get("/version")
    finally:
        door.close()
