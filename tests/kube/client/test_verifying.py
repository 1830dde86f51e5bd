"""Tests that the API client verifies the certificate of a real API server."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from kube.certificates.components import COMPONENTS
from kube.certificates.key_pairs import create_ca
from kube.client.api_errors import Unavailable
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from tests.proofs import proves


@pytest.fixture
def kubeconfig_with_other_ca(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Return a kubeconfig with a CA that did not sign the API server's certificate."""
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    other_ca = create_ca(next(iter(COMPONENTS.values())), datetime.now(timezone.utc)).certificate
    [cluster_entry] = content["clusters"]
    cluster_entry["cluster"]["certificate-authority-data"] = base64.b64encode(other_ca.encode()).decode()
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


@proves("MUT-52")
def test_api_server_with_untrusted_certificate_is_rejected(kubeconfig_with_other_ca: Path) -> None:
    """Check that the client rejects the server, unless it is a copy of the client with disabled verification."""
    client = SyncClient(str(kubeconfig_with_other_ca))
    try:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            client.get("/version")
        view = client.copy_for_caller()
        view.disable_verification()
        assert view.get("/version")["major"] == "1"
        with pytest.raises(Unavailable, match="certificate verify failed"):
            client.get("/version")
    finally:
        client.close()
