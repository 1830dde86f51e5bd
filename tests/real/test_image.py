"""Tests of the image: its size, its metadata, its content, its reproducible build, and a function that runs in it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import requests

from eventing import events
from eventing.http_binding import binary, received
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import listening
from localcluster.nodes.buildah import Buildah
from localcluster.processes import await_ready, free_port
from localcluster.readiness import is_ready
from tests.functions.event_builders import added
from tests.real.product_image import VERSION, Image, built

pytestmark = pytest.mark.real
LARGEST = 120_000_000


def test_it_is_small_and_says_what_it_is(image: Image) -> None:
    """Image layers stay below the maximum size; the user is numeric, and the OCI annotations are set."""
    config = image.told["config"]
    print(f"{image.size / 1e6:.1f} MB on top of the base")
    assert image.size < LARGEST
    assert config["User"] == "65532:65532"
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("nodemaintenance", VERSION, "Apache-2.0")
    assert len(labels["revision"]) == 40


def test_it_holds_nothing_of_its_build(image: Image) -> None:
    """Image files contain neither pip nor compilers, and the image's user can write to none of them."""
    assert not [*image.files.glob("venv/lib/python3*/site-packages/pip*"), *image.files.glob("venv/bin/pip*")]
    assert not (image.files / "tools").exists()
    assert not [found for name in ("gcc", "cc", "make", "git") for found in image.files.glob(f"usr/bin/{name}")]
    ours = [*(image.files / "app").rglob("*"), *(image.files / "venv").rglob("*")]
    assert len(ours) > 1000
    assert not [
        file for file in ours if not file.is_symlink() and (file.stat().st_uid != 0 or file.stat().st_mode & 0o002)
    ]


def test_the_list_of_its_parts_is_what_is_in_it(image: Image) -> None:
    """Software bill of materials (CycloneDX) and installed libraries have the same names and versions."""
    listed = json.loads(image.parts.read_text())
    told = {(part["name"].lower(), part["version"]) for part in listed["components"]}
    metadata = [file.read_text() for file in image.files.glob("venv/lib/python3*/site-packages/*.dist-info/METADATA")]
    there = {(field(text, "Name").lower(), field(text, "Version")) for text in metadata}

    assert listed["bomFormat"] == "CycloneDX"
    assert told == there


def field(metadata: str, name: str) -> str:
    """Return a field of a library's metadata."""
    return next(line.partition(": ")[2] for line in metadata.splitlines() if line.startswith(f"{name}: "))


def test_built_again_it_is_the_same(image: Image, engine: Buildah) -> None:
    """Rebuilding without a cache gives byte-identical layers."""
    before = image.told["rootfs"]["diff_ids"]
    again = built(engine, "--no-cache")

    assert again.told["rootfs"]["diff_ids"] == before


def test_a_function_begins_a_maintenance_out_of_it(image: Image, installed: LocalCluster, tmp_path: Path) -> None:
    """Running as the image's user with its own account, `begin` begins a maintenance on a real API server."""
    kubeconfig, port = installed.kubeconfig_for(access.service_account("begin")), free_port()
    kubeconfig.chmod(0o644)
    own = {"FUNCTION": "begin", "KUBECONFIG": str(kubeconfig), **listening(port)}
    server = image.server("begin", tmp_path / "begin.log", own, kubeconfig)
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "imaged"}}
    server.start()
    try:
        await_ready("the function", partial(is_ready, f"http://127.0.0.1:{port}/"), [server])
        item = installed.door().create(MEDIK8S.path, {**body, "spec": {"nodeName": "node-1"}})
        message = binary(added(item))
        answer = requests.post(f"http://127.0.0.1:{port}/", data=message.body, headers=message.headers, timeout=10)

        assert answer.status_code == 200, answer.text
        assert received(dict(answer.headers), answer.content).get_type() == events.MAINTENANCE_BEGUN
        assert m.has_finalizer(installed.door().get(m.path(item)))
    finally:
        server.stop()
