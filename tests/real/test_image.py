"""Tests for the image's size, metadata, content and reproducible build, and for a function that runs in it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import requests

from eventing import events
from eventing.http_binding import decode_event, encode_binary
from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import build_bind_env
from localcluster.nodes.buildah import Buildah, run_command
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_ready, is_responding
from tests.functions.event_builders import build_added_event
from tests.proofs import proves
from tests.real.product_image import IMAGE_VERSION, ProductImage, build_image

pytestmark = pytest.mark.real
MAX_SIZE_BYTES = 120_000_000


def test_image_is_small_and_has_numeric_user_and_oci_annotations(image: ProductImage) -> None:
    """Check that the layers are below the maximum size, that the user is numeric, and that OCI annotations are set."""
    config = image.oci_config["config"]
    print(f"{image.size_bytes / 1e6:.1f} MB on top of the base")
    assert image.size_bytes < MAX_SIZE_BYTES
    assert config["User"] == "65532:65532"
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("nodemaintenance", IMAGE_VERSION, "Apache-2.0")
    assert len(labels["revision"]) == 40


def test_image_contains_no_build_tools(image: ProductImage) -> None:
    """Check that the image contains neither pip nor compilers, and no file that the image's user may write."""
    assert not [*image.files.glob("venv/lib/python3*/site-packages/pip*"), *image.files.glob("venv/bin/pip*")]
    assert not (image.files / "tools").exists()
    assert not [program for name in ("gcc", "cc", "make", "git") for program in image.files.glob(f"usr/bin/{name}")]
    product_files = [*(image.files / "app").rglob("*"), *(image.files / "venv").rglob("*")]
    assert len(product_files) > 1000
    assert not [
        file
        for file in product_files
        if not file.is_symlink() and (file.stat().st_uid != 0 or file.stat().st_mode & 0o002)
    ]


def test_sbom_matches_installed_libraries(image: ProductImage) -> None:
    """Check that the software bill of materials (CycloneDX) lists the installed libraries with their versions."""
    sbom = json.loads(image.sbom_file.read_text())
    listed_libraries = {(component["name"].lower(), component["version"]) for component in sbom["components"]}
    metadata = [file.read_text() for file in image.files.glob("venv/lib/python3*/site-packages/*.dist-info/METADATA")]
    installed = {(get_metadata_field(text, "Name").lower(), get_metadata_field(text, "Version")) for text in metadata}

    assert sbom["bomFormat"] == "CycloneDX"
    assert listed_libraries == installed


def get_metadata_field(metadata: str, name: str) -> str:
    """Return the value of a field in a library's metadata."""
    return next(line.partition(": ")[2] for line in metadata.splitlines() if line.startswith(f"{name}: "))


@pytest.mark.timeout(900)
def test_rebuilt_image_is_identical(image: ProductImage, buildah: Buildah) -> None:
    """Check that a build without a cache produces byte-identical layers."""
    diff_ids = image.oci_config["rootfs"]["diff_ids"]
    rebuilt = build_image(buildah, "--no-cache")

    assert rebuilt.oci_config["rootfs"]["diff_ids"] == diff_ids


@proves("NMO-26a", "C30")
def test_image_is_pushed_to_registry(image: ProductImage, buildah: Buildah, tmp_path: Path) -> None:
    """Check that `make container-push` pushes the image to a registry on localhost, from which it can be pulled."""
    port, config_file = reserve_port(), tmp_path / "config.yml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "data")}}
    config_file.write_text(json.dumps({"version": "0.1", "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}}))
    program = build.ensure_programs(build.REGISTRY) / "registry"
    command = [str(program), "serve", str(config_file)]
    registry = Server("registry", command, tmp_path / "registry.log", {"OTEL_TRACES_EXPORTER": "none"})
    name = f"localhost:{port}/nodemaintenance:v{IMAGE_VERSION}"
    registry.start()
    try:
        wait_until_ready("the registry", partial(is_responding, f"http://127.0.0.1:{port}/"), [registry])
        buildah.run("tag", image.name, name)
        variables = [f"REGISTRY=localhost:{port}", f"VERSION={IMAGE_VERSION}", f"PUSHED={tmp_path / 'pushed-image'}"]
        run_command(["make", "container-push", *variables], buildah.environment)
        buildah.run("rmi", name)
        buildah.run("pull", "--tls-verify=false", name)

        pushed = json.loads(buildah.run("inspect", "--type", "image", name))["OCIv1"]
        assert pushed["rootfs"] == image.oci_config["rootfs"]
        assert (tmp_path / "pushed-image").read_text() == f"{name}\n"
    finally:
        registry.stop()


def test_function_in_image_begins_maintenance(
    image: ProductImage, installed_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that `begin`, run in the image with its ServiceAccount's token, begins a maintenance."""
    kubeconfig, port = installed_cluster.ensure_kubeconfig(access.make_username("begin")), reserve_port()
    kubeconfig.chmod(0o644)
    variables = {"FUNCTION": "begin", "KUBECONFIG": str(kubeconfig), **build_bind_env(port)}
    server = image.build_server("begin", tmp_path / "begin.log", variables, kubeconfig)
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "imaged"}}
    server.start()
    try:
        wait_until_ready("the function", partial(is_ready, f"http://127.0.0.1:{port}/"), [server])
        maintenance = installed_cluster.get_client().create(MEDIK8S.path, {**body, "spec": {"nodeName": "node-1"}})
        message = encode_binary(build_added_event(maintenance))
        response = requests.post(f"http://127.0.0.1:{port}/", data=message.body, headers=message.headers, timeout=10)

        assert response.status_code == 200, response.text
        assert decode_event(dict(response.headers), response.content).get_type() == events.MAINTENANCE_BEGUN
        assert m.has_finalizer(installed_cluster.get_client().get(m.build_path(maintenance)))
    finally:
        server.stop()
