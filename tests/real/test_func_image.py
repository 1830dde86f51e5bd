"""Tests for the image that func builds from this repository, and for its functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from eventing import events
from eventing.http_binding import decode_event, encode_binary
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.nodes import func_image
from localcluster.nodes.buildah import Buildah
from localcluster.processes import reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK
from tests.functions.event_builders import build_added_event
from tests.real.product_image import BuiltImage

pytestmark = pytest.mark.real
MAINTENANCE_NAME = "imaged-by-func"


@pytest.fixture(scope="module")
def image(buildah: Buildah) -> BuiltImage:
    """Return the image that func builds from this repository."""
    return BuiltImage(func_image.build_image(buildah), buildah)


def test_image_contains_no_ignored_files(image: BuiltImage) -> None:
    """Check that the image contains func's scaffolding and the sources, but none of the files in .funcignore."""
    names = {path.name for path in (image.files / "func").iterdir()}
    ignored = {pattern.strip("/") for pattern in func_image.list_ignored_patterns()}

    assert names - ignored >= {"function.py", "pyproject.toml", "functions", "eventing", "kube", "console"}
    assert names & ignored <= {".func", "build", "function.egg-info"}, "pip created these directories during the build"
    assert image.oci_config["config"]["User"] == "1000:1000"


@pytest.fixture
def unknown_node_maintenance(installed_cluster: LocalCluster) -> Iterator[dict[str, Any]]:
    """Yield a NodeMaintenance for an unknown node; `begin` replies to its event without changing a node."""
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": MAINTENANCE_NAME}}
    client = installed_cluster.get_client()
    yield client.create(MEDIK8S.path, {**body, "spec": {"nodeName": "no-such-node"}})
    installed_cluster.kubectl("delete", f"nodemaintenances.{MEDIK8S.api_version.partition('/')[0]}", MAINTENANCE_NAME)


def test_function_in_image_replies_to_event(
    image: BuiltImage, installed_cluster: LocalCluster, unknown_node_maintenance: dict[str, Any], tmp_path: Path
) -> None:
    """Check that the server in the image is ready, and that `begin` replies to an event with an event."""
    kubeconfig, port = installed_cluster.ensure_kubeconfig(access.make_username("functions")), reserve_port()
    kubeconfig.chmod(0o644)
    variables = {"KUBECONFIG": str(kubeconfig), "LISTEN_ADDRESS": f"{LOOPBACK}:{port}"}
    server, url = image.build_server("func", tmp_path / "func.log", variables, kubeconfig), f"http://{LOOPBACK}:{port}"
    message = encode_binary(build_added_event(unknown_node_maintenance))
    server.start()
    try:
        wait_until_ready("the functions", partial(is_ready, url), [server])
        response = requests.post(f"{url}/begin", data=message.body, headers=message.headers, timeout=30)
    finally:
        server.stop()

    assert response.status_code == 200, response.text
    assert decode_event(response.headers, response.content).get_type() == events.MAINTENANCE_STEP_FAILED
