"""Tests for downloading prebuilt programs with setup-envtest from a local server with an index and a release."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localcluster.programs import build, envtest, go_install
from tests.localcluster.test_build import FakeGo

GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PLATFORM = f"{sys.platform}-{GO_ARCHITECTURES.get(platform.machine(), platform.machine())}"
INDEX_TEMPLATE = "releases:\n  v1.37.1:\n    {archive}:\n      hash: {digest}\n      selfLink: {url}/{archive}\n"
PROGRAM_SCRIPT = b"#!/bin/sh\necho Kubernetes v1.37.1\n"


@pytest.fixture
def index_url(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a release index that contains only version 1.37.1."""
    folder = tmp_path / "served"
    folder.mkdir()
    archive = folder / f"envtest-v1.37.1-{PLATFORM}.tar.gz"
    with tarfile.open(archive, "w:gz") as archive_file:
        for name in envtest.PROGRAMS:
            tar_info = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            tar_info.size, tar_info.mode = len(PROGRAM_SCRIPT), 0o755
            archive_file.addfile(tar_info, io.BytesIO(PROGRAM_SCRIPT))
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        digest = hashlib.sha512(archive.read_bytes()).hexdigest()
        (folder / "index.yaml").write_text(INDEX_TEMPLATE.format(archive=archive.name, digest=digest, url=url))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{url}/index.yaml"
        server.shutdown()


def test_release_in_index_is_downloaded(tmp_path: Path, index_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(envtest.INDEX_VARIABLE, index_url)
    assert envtest.find_downloaded(tmp_path, "v1.37.2") is None

    envtest.download(go_install.ensure_go(build.get_cache_dir()), tmp_path, "v1.37.2")

    directory = envtest.find_downloaded(tmp_path, "v1.37.2")
    assert directory
    assert {file.name for file in directory.iterdir()} == set(envtest.PROGRAMS)
    assert envtest.find_downloaded(tmp_path, "v1.35.0") is None


def test_release_missing_from_index_is_reported_and_leaves_no_files(
    tmp_path: Path, index_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(envtest.INDEX_VARIABLE, index_url)

    envtest.download(go_install.ensure_go(build.get_cache_dir()), tmp_path, "v1.35.0")

    assert "cannot download them (" in capsys.readouterr().out
    assert list(tmp_path.glob("envtest*")) == []


def test_only_controllers_are_built_if_other_programs_were_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{go.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(envtest.ASSETS_VARIABLE, raising=False)
    cache_dir = build.get_cache_dir() / "envtest-1.37" / "k8s" / f"1.37.1-{PLATFORM}"
    cache_dir.mkdir(parents=True)
    for name in envtest.PROGRAMS:
        (cache_dir / name).write_bytes(PROGRAM_SCRIPT)
        (cache_dir / name).chmod(0o755)

    folder = build.ensure_programs()

    assert folder == build.get_target_dir() != build._get_build_dir(build.KUBERNETES)
    assert all((folder / name).resolve() == cache_dir / name for name in envtest.PROGRAMS)
    assert os.access(folder / "kwok", os.R_OK)
    assert not build._get_build_dir(build.KUBERNETES).exists()
