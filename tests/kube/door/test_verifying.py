"""Whether the API server's certificate is verified, against a real one."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from kube.certificates.components import COMPONENTS
from kube.certificates.issuing import new_authority
from kube.door.api_errors import Unavailable
from kube.door.sync_client import Cluster
from localcluster.cluster import LocalCluster
from tests.proofs import proves


@pytest.fixture
def strangers(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Give a kubeconfig with another authority than the one that signed the server's certificate."""
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    other = new_authority(next(iter(COMPONENTS.values())), datetime.now(timezone.utc)).certificate
    [entry] = content["clusters"]
    entry["cluster"]["certificate-authority-data"] = base64.b64encode(other.encode()).decode()
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


@proves("MUT-52")
def test_a_server_that_the_authority_does_not_vouch_for_is_not_asked(strangers: Path) -> None:
    """Unless verifying is given up, by one view and for nobody else; its owner closes the connections of both."""
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
