"""The real setup-envtest downloads prebuilt programs; a local server provides the index and the release."""

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

from localcluster.programs import assets, build, envtest, toolchain
from tests.localcluster.test_build import FakeGo

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PLACE = f"{sys.platform}-{MACHINES.get(platform.machine(), platform.machine())}"
INDEX = "releases:\n  v1.36.1:\n    {archive}:\n      hash: {digest}\n      selfLink: {url}/{archive}\n"
PROGRAM = b"#!/bin/sh\necho Kubernetes v1.36.1\n"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an index with one release, 1.36.1."""
    folder = tmp_path / "served"
    folder.mkdir()
    archive = folder / f"envtest-v1.36.1-{PLACE}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in assets.PROGRAMS:
            entry = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            entry.size, entry.mode = len(PROGRAM), 0o755
            packed.addfile(entry, io.BytesIO(PROGRAM))
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        digest = hashlib.sha512(archive.read_bytes()).hexdigest()
        (folder / "index.yaml").write_text(INDEX.format(archive=archive.name, digest=digest, url=url))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{url}/index.yaml"
        server.shutdown()


def test_a_release_that_is_offered_is_downloaded(tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(envtest.INDEX, index)
    assert envtest.downloaded(tmp_path, "v1.36.3") is None

    envtest.download(toolchain.go(build.cache()), tmp_path, "v1.36.3")

    found = envtest.downloaded(tmp_path, "v1.36.3")
    assert found
    assert {entry.name for entry in found.iterdir()} == set(assets.PROGRAMS)
    assert envtest.downloaded(tmp_path, "v1.35.0") is None


def test_without_a_release_the_reason_is_printed_and_nothing_is_left(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(envtest.INDEX, index)

    envtest.download(toolchain.go(build.cache()), tmp_path, "v1.35.0")

    assert "none to be had (" in capsys.readouterr().out
    assert list(tmp_path.glob("envtest*")) == []


def test_with_downloaded_programs_only_the_controllers_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = FakeGo(tmp_path)
    monkeypatch.setenv("PATH", f"{go.program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(assets.VARIABLE, raising=False)
    ready_made = build.cache() / "envtest-1.36" / "k8s" / f"1.36.1-{PLACE}"
    ready_made.mkdir(parents=True)
    for name in assets.PROGRAMS:
        (ready_made / name).write_bytes(PROGRAM)
        (ready_made / name).chmod(0o755)

    folder = build.servers()

    assert folder == build.target() != build._own(build.KUBERNETES)
    assert all((folder / name).resolve() == ready_made / name for name in assets.PROGRAMS)
    assert os.access(folder / "kwok", os.R_OK)
    assert not build._own(build.KUBERNETES).exists()
