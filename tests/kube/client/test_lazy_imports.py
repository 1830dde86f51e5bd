"""Tests for lazy package imports, after which a package behaves like one that was imported normally."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from kube.client.lazy_imports import defer_import
from tests.sources import ROOT

PACKAGE_CODE = """
from time import sleep
sleep({seconds})
from put_off import part
from put_off.part import VALUE as value
runs = globals().get("runs", 0) + 1
"""


@pytest.fixture
def package_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the path of the `__init__.py` of the package `put_off`, which is not imported yet."""
    package_directory = tmp_path / "put_off"
    package_directory.mkdir()
    (package_directory / "part.py").write_text("VALUE = 7\n")
    init_file = package_directory / "__init__.py"
    init_file.write_text(PACKAGE_CODE.format(seconds=0))
    monkeypatch.syspath_prepend(tmp_path)
    yield init_file
    for name in [name for name in sys.modules if name.partition(".")[0] == "put_off"]:
        del sys.modules[name]


@pytest.mark.usefixtures("package_init")
def test_submodule_is_imported_without_the_package_code() -> None:
    """Check that the package's code runs once at the first access to a name, and not when a submodule is imported."""
    defer_import("put_off")

    assert import_module("put_off.part").VALUE == 7
    module = sys.modules["put_off"]
    assert "runs" not in vars(module)
    assert (module.value, module.runs, module.runs) == (7, 1, 1)
    assert import_module("put_off") is module


@pytest.mark.usefixtures("package_init")
def test_imported_package_is_not_made_lazy() -> None:
    """Check that a package that is already imported is not changed."""
    package = import_module("put_off")
    defer_import("put_off")

    assert sys.modules["put_off"] is package
    assert package.runs == 1


@pytest.mark.usefixtures("package_init")
def test_missing_names_and_packages_raise_usual_errors() -> None:
    """Check that a missing name raises `AttributeError`, and a missing package `ModuleNotFoundError`."""
    defer_import("put_off")

    with pytest.raises(AttributeError, match="module 'put_off' has no attribute 'nothing'"):
        _ = sys.modules["put_off"].nothing
    with pytest.raises(ModuleNotFoundError, match="put_on"):
        defer_import("put_on")


def test_import_error_is_raised_at_each_access(package_init: Path) -> None:
    """Check that each access, and not only the first one, raises the error of the package's code."""
    package_init.write_text("raise RuntimeError('broken')")
    defer_import("put_off")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            _ = sys.modules["put_off"].value


def test_threads_wait_for_the_running_import(package_init: Path) -> None:
    """Check that concurrent accesses wait until the import has ended, so that no thread uses a partial package."""
    package_init.write_text(PACKAGE_CODE.format(seconds=0.2))
    defer_import("put_off")
    module, start_time = sys.modules["put_off"], time.perf_counter()

    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda _: (module.value, module.runs), range(4)))

    assert values == [(7, 1)] * 4
    assert time.perf_counter() - start_time >= 0.2


@pytest.mark.slow
def test_whole_kubernetes_package_is_still_importable() -> None:
    """Check that the whole `kubernetes` package can be imported in a process that uses the API client."""
    code = """
        import sys
        from kube.client import api
        assert "pydantic" not in sys.modules
        import kubernetes
        from kubernetes.aio import client
        from kubernetes.aio.config import kube_config, new_client_from_config
        api.load_kube_config
        print(kubernetes.client.CoreV1Api.__name__, client.ApiClient.__module__, new_client_from_config.__name__)
        from kubernetes import *
        print(config.__name__, watch.Watch.__name__)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert result.stdout.split("\n")[:2] == [
        "CoreV1Api kubernetes.aio.client.api_client new_client_from_config",
        "kubernetes.config Watch",
    ]
