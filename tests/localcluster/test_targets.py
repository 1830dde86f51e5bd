"""The make targets for an existing cluster: `deploy`, `cluster-functest`, and those of the container image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localcluster.deploy import apply, preflight
from localcluster.processes import free_port
from localcluster.programs import build
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from tests.localcluster.commands import ROOT, kubectl
from tests.proofs import proves

IMAGE = ("container-build-and-push-community", "IMAGE=registry.example/nodemaintenance", "VERSION=1.2.3")


def make(target: str, *variables: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a make target in the repository."""
    tools = os.pathsep.join([str(build.servers()), os.environ["PATH"]])
    return make_in(ROOT, target, *variables, **{"PATH": tools, **environment})


def make_in(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in a directory."""
    command, more = ["make", "--no-print-directory", *words], {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=more, capture_output=True, text=True, check=False, timeout=120)


def on(directory: Path) -> dict[str, str]:
    """Return the environment that selects the directory's cluster as the current one."""
    return {"KUBECONFIG": str(directory / state_directory.KUBECONFIG)}


def everything(directory: Path) -> str:
    """Return name and resourceVersion of all objects that an install creates."""
    kinds = "crd,namespace,clusterrole,clusterrolebinding"
    kinds_inside = "serviceaccount,role,rolebinding,service,deployment,configmap,networkpolicy"
    version = "-o=jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}"
    return kubectl(directory, "get", kinds, version) + kubectl(directory, "get", kinds_inside, "-A", version)


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_nothing_where_knative_is_missing(up: Path) -> None:
    """Check that `deploy` names every missing kind and applies nothing if Knative is not installed."""
    before = everything(up)

    done = make("deploy", **on(up))

    assert done.returncode != 0
    assert (
        "error: the cluster does not serve Broker (eventing.knative.dev/v1), Trigger (eventing.knative.dev/v1),"
        in done.stderr
    )
    assert "Service (serving.knative.dev/v1)" in done.stderr
    assert "nothing was applied; install Knative first" in done.stderr
    assert everything(up) == before


@pytest.mark.slow
@proves("NMO-26a")
def test_deploy_applies_an_overlay_whose_kinds_are_served(up: Path, tmp_path: Path) -> None:
    """Check that `deploy` applies the overlay of another directory, and that a second run changes nothing.

    Its objects need no namespace.
    """
    overlay = tmp_path / "my overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [map.yaml, service.yaml]\n"
    )
    (overlay / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine, namespace: default}\n")
    (overlay / "service.yaml").write_text(
        "apiVersion: v1\nkind: Service\nmetadata: {name: mine}\nspec: {ports: [{port: 80}]}\n"
    )

    first, second = (make("deploy", f"OVERLAY={overlay}", **on(up)) for _ in range(2))

    assert (first.returncode, first.stdout) == (0, "configmap/mine created\nservice/mine created\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "configmap/mine unchanged\nservice/mine unchanged\n")


@proves("NMO-26a")
def test_deploy_says_that_no_cluster_answers(tmp_path: Path) -> None:
    """Check that `deploy` reports an unreachable API server."""
    file = tmp_path / "kubeconfig"
    cluster = f"{{name: gone, cluster: {{server: 'http://127.0.0.1:{free_port()}'}}}}"
    context = "{name: gone, context: {cluster: gone, user: ''}}"
    file.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: gone\nclusters: [{cluster}]\ncontexts: [{context}]\n"
    )

    done = make("deploy", KUBECONFIG=str(file))

    assert done.returncode != 0
    assert "error: no cluster answers, nothing was applied: " in done.stderr
    assert "refused" in done.stderr


@pytest.mark.parametrize("overlay", ["pigeon", "~nobody-of-that-name/pigeon"])
def test_an_unknown_overlay_is_refused(overlay: str) -> None:
    """Check that an unknown overlay, or an unknown user's home, is rejected with the list of overlays."""
    with pytest.raises(LocalClusterError, match=rf"OVERLAY={overlay} is no folder .* one of compact, func, .*plain"):
        apply.folder_of(overlay)


def test_an_overlay_is_found_in_one_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `~` is expanded, since quotes prevent the shell from doing so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").touch()

    assert apply.folder_of("~/mine") == tmp_path / "mine"


def test_what_names_no_namespace_is_looked_for_where_kubectl_puts_it() -> None:
    """Check that an object without a namespace gets kubectl's default one, and a cluster-scoped object none."""
    broker, service = (
        {"kind": "Broker", "metadata": {"name": "b"}},
        {"kind": "Service", "metadata": {"namespace": "own"}},
    )
    role = {"kind": "ClusterRole", "metadata": {"name": "r"}}

    found = preflight.placed([broker, service, role], "home")

    assert preflight.spaces(found) == ["home", "own"]
    assert found[2] == role


def test_what_an_overlay_defines_itself_need_not_be_there() -> None:
    """Check that a kind whose CustomResourceDefinition is in the overlay is not required from the cluster."""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {"group": "example.com", "names": {"kind": "Thing"}, "versions": [{"name": "v1"}]},
    }
    thing = {"apiVersion": "example.com/v1", "kind": "Thing"}
    trigger = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger"}

    assert preflight.needed([definition, thing, trigger]) == {
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("eventing.knative.dev/v1", "Trigger"),
    }


@pytest.mark.parametrize(
    ("spec", "is_named"),
    [
        ({"template": {"spec": {"containers": [{"image": preflight.PLACEHOLDER}]}}}, True),
        (
            {"jobTemplate": {"spec": {"template": {"spec": {"initContainers": [{"image": preflight.PLACEHOLDER}]}}}}},
            True,
        ),
        ({"template": {"spec": {"containers": [{"name": "no-image"}, {"image": "registry.example/mine"}]}}}, False),
        ({"encryptedData": {"key": "AgB"}, "template": {"metadata": {"name": "signing"}}}, False),
        ({"template": {"spec": {"volumes": None}}}, False),
        ({"template": "words"}, False),
        (None, False),
    ],
    ids=["deployment", "cron-job", "other-image", "sealed-secret", "no-containers", "text", "null"],
)
def test_an_object_of_any_kind_may_be_beside_those_that_run_the_image(spec: Any, is_named: bool) -> None:
    """Check that only pod templates count as images to run; other kinds may have a field named `template`."""
    found = preflight.nameless([{"kind": "Thing", "metadata": {"name": "t"}, "spec": spec}, {"metadata": {}}])

    assert found == (["Thing t"] if is_named else [])


@pytest.mark.slow
@proves("NMO-26", "NMO-26a", "KNM-7")
def test_the_functional_test_drains_the_node_it_is_told(up: Path) -> None:
    """Check that the functional test drains the named node until Succeeded, and restores it."""
    before = kubectl(up, "get", "node", "node-2", "-o", "jsonpath={.spec}")

    done = make("cluster-functest", "NODE=node-2", **on(up))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "node node-2 goes out of service\n" in done.stdout
    assert "  Succeeded, 100 %\n" in done.stdout
    assert done.stdout.endswith("node node-2 is back in service\n")
    assert kubectl(up, "get", "node", "node-2", "-o", "jsonpath={.spec}") == before


@pytest.mark.slow
@proves("NMO-26a")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            (),
            "error: no node was named, and none is touched unasked: make cluster-functest NODE=..., one of node-1",
        ),
        (("NODE=node-9",), "error: there is no node node-9: make cluster-functest NODE=..., one of node-1"),
    ],
    ids=["none", "unknown"],
)
def test_the_functional_test_touches_no_node_unasked(up: Path, variables: tuple[str, ...], message: str) -> None:
    """Check that the functional test changes nothing without the name of an existing node, and lists the nodes."""
    before = kubectl(up, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}")

    done = make("cluster-functest", *variables, **on(up))

    assert done.returncode != 0
    assert message in done.stderr
    assert kubectl(up, "get", "nodes", "-o", "jsonpath={.items[*].metadata.generation} {.items[*].spec}") == before
    assert "functest-" not in kubectl(up, "get", "nodemaintenances.nodemaintenance.medik8s.io", "-o", "name")


@proves("NMO-26a")
def test_an_image_needs_an_engine(tmp_path: Path) -> None:
    """Check that the image target fails with a message if no container engine works."""
    for tool in Path("/usr/bin").iterdir():
        if tool.name not in ("podman", "docker", "buildah"):
            (tmp_path / tool.name).symlink_to(tool)

    done = make(*IMAGE, PATH=str(tmp_path))

    assert done.returncode != 0
    assert "error: none of podman, docker and buildah is there, or works, to build an image with\n" in done.stderr


@proves("NMO-26a")
def test_an_image_is_built_and_pushed_under_its_version(tmp_path: Path) -> None:
    """Check that the image is built and pushed with its version tag; a shell script replaces the engine."""
    engine = tmp_path / "podman"
    engine.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != "$FAILING" ]\n')
    engine.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    good = make(*IMAGE, PATH=path)
    bad = make(*IMAGE, PATH=path, FAILING="build")

    name = "registry.example/nodemaintenance:v1.2.3"
    assert good.returncode == 0, good.stderr
    assert bad.returncode != 0
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if line != "info"]
    build, listing, push, failing = calls
    assert build.startswith("build --file Dockerfile --build-arg BASE=python:3.13-slim --build-arg VERSION=1.2.3 ")
    assert build.endswith(f"--tag {name} .")
    assert listing.endswith("--target sbom --output type=local,dest=build .")
    assert (push, failing) == (f"push {name}", build)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Return a directory whose `podman` logs its calls, and fails if `FAILING` is its first argument."""
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != "$FAILING" ]\n')
    program.chmod(0o755)
    return tmp_path


def calls_of(engine: Path) -> list[str]:
    """Return the engine's calls since the last time, except for `info`."""
    file = engine / "calls"
    lines = file.read_text().splitlines()
    file.unlink()
    return [line for line in lines if line != "info"]


@proves("C30", "KNM-7", "NMO-26")
def test_the_targets_of_either_document_build_and_push_the_same_image(engine: Path) -> None:
    """Check that both documents' targets make the same engine calls, and fail if the engine fails."""
    words, path = IMAGE[1:], f"{engine}:{os.environ['PATH']}"
    known = {}
    for targets in ("container-build-and-push-community",), ("container-build", "container-push"):
        assert make(*targets, *words, PATH=path).returncode == 0
        known[targets] = calls_of(engine)
        for failing in ("build", "push"):
            assert make(*targets, *words, PATH=path, FAILING=failing).returncode != 0
            assert calls_of(engine)[-1].startswith(failing)

    first, second = known.values()
    assert first == second
    assert [call.split()[0] for call in first] == ["build", "build", "push"]


@proves("NMO-26", "KNM-7")
@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "pytest"])
def test_check_fails_where_a_linter_or_a_test_does(tmp_path: Path, failing: str) -> None:
    """Check that `make check` fails if a linter or a test fails; scripts replace Python and the linters."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "ruff", "mypy"):
        (programs / name).write_text(
            f'#!/bin/sh\ncall="{name} $*"\necho "$call" >> calls\ncase "$call" in *"$FAILING"*) exit 3;; esac\n'
        )
        (programs / name).chmod(0o755)
    for name in ("requirements-dev.lock", "pyproject.toml", ".venv/.stamp"):
        (tmp_path / name).touch()

    done = make_in(tmp_path, "check", PYTHON=".venv/bin/python", FAILING=failing or "nothing")

    assert (done.returncode == 0) is (failing == ""), done.stdout + done.stderr
    if not failing:
        calls = (tmp_path / "calls").read_text()
        assert all(call in calls for call in ("ruff check .", "ruff format --check .", "mypy ", "python -m pytest "))
