"""Tests for commands with several nodes, selected by name, by label or with `--all`; each node has its own result."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from click.testing import CliRunner

from console.cli import cli
from console.operations.maintenance_preview import DELETION_WARNING
from kube.client.api import MERGE_PATCH
from kube.nodes import build_node_path
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.console.commands.test_interrupted import interrupt_process, start_command
from tests.console.commands.workload_objects import (
    build_budget,
    build_controller,
    build_pod,
    create_and_wait,
    is_cordoned,
    list_pods,
)
from tests.console.conftest import CreateNode, RunCommand

NAME_PREFIX = "nodemaintenance.nodemaintenance.medik8s.io/"


@pytest.fixture
def node_pair(create_node: CreateNode) -> tuple[str, str]:
    """Return the names of two new nodes."""
    return create_node(), create_node()


@pytest.fixture
def labelled_pair(installed_cluster: LocalCluster, node_pair: tuple[str, str]) -> tuple[str, str, str]:
    """Return the names of two nodes, and a label selector that matches only these two nodes."""
    pool = f"pool-{node_pair[0]}"
    client = installed_cluster.get_client()
    for node in node_pair:
        client.run(client.api.patch(build_node_path(node), {"metadata": {"labels": {"pool": pool}}}, MERGE_PATCH))
    return (*node_pair, f"pool={pool}")


@pytest.fixture
def maintained_pair(product: Product, node_pair: tuple[str, str], run_command: RunCommand) -> Iterator[tuple[str, str]]:
    """Yield the names of two nodes while the functions run, and delete their maintenances after the test."""
    yield node_pair
    for node in node_pair:
        run_command("stop", node)


def test_cordon_and_uncordon_continue_after_unknown_node(
    installed_cluster: LocalCluster, run_command: RunCommand, node_pair: tuple[str, str]
) -> None:
    """OSV-10a: an unknown node among several causes one line on stderr and exit status 1; the others are processed."""
    first, second = node_pair

    cordon_result = run_command("cordon", f"node/{first}", "no-such-node", second, first)
    uncordon_result = run_command("uncordon", f"nodes/{first}", second, "-o", "name")

    assert cordon_result.exit_code == 1
    assert cordon_result.stdout == f"node/{first} cordoned\nnode/{second} cordoned\n"
    assert cordon_result.stderr.startswith('Error: node "no-such-node" not found: ')
    assert cordon_result.stderr.count("\n") == 1
    assert (uncordon_result.exit_code, uncordon_result.stdout) == (0, f"node/{first}\nnode/{second}\n")
    assert not is_cordoned(installed_cluster, first)


def test_selector_selects_nodes_and_output_is_list(
    run_command: RunCommand, labelled_pair: tuple[str, str, str]
) -> None:
    first, second, selector = labelled_pair

    report = json.loads(run_command("cordon", "-l", selector, "-o", "json").stdout)
    yaml_report = yaml.safe_load(run_command("uncordon", "-l", selector, "-o", "yaml").stdout)
    one_node_report = yaml.safe_load(run_command("cordon", first, "-o", "yaml").stdout)

    expected_nodes = sorted((first, second))
    assert report == {"items": [{"node": node, "schedulable": False, "changed": True} for node in expected_nodes]}
    assert [item["changed"] for item in yaml_report["items"]] == [True, True]
    assert one_node_report == {"node": first, "schedulable": False, "changed": True}


@pytest.mark.parametrize(
    ("selector", "exit_status", "message"),
    [
        ("pool=no-such-pool", 1, 'found no node that matches "pool=no-such-pool": see kubectl get nodes --show-labels'),
        ("==", 2, "Invalid value for --selector: "),
    ],
)
def test_label_selector_without_matching_node_is_error(
    run_command: RunCommand, selector: str, exit_status: int, message: str
) -> None:
    result = run_command("cordon", "-l", selector)

    assert result.exit_code == exit_status
    assert message in result.stderr


def test_all_option_asks_and_changes_nothing_without_confirmation(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that `--all` asks for confirmation, and that a closed stdin does not confirm."""
    result = run_command("cordon", "--all")

    assert result.exit_code == 2
    assert "Cordon " in result.stderr
    assert result.stderr.endswith("no confirmation, nothing was done: use --yes, or name the nodes\n")
    assert not is_cordoned(installed_cluster, node_name)


def test_all_option_selects_all_nodes(run_command: RunCommand, node_name: str) -> None:
    """Check that `--all` selects every node; the dry run does not ask for confirmation, because it changes nothing."""
    names = run_command("drain", "--all", "--dry-run", "--force", "--ignore-daemonsets", "-o", "name").stdout

    assert f"node/{node_name}\n" in names


def test_misspelled_node_is_error_with_suggestion(run_command: RunCommand, node_name: str) -> None:
    past = f"; its recorded events: kubectl maintenance events --node {node_name}x -o tree"
    for command, note in (("cordon", ""), ("stop", ""), ("status", past)):
        result = run_command(command, f"{node_name}x")

        assert result.exit_code == 1
        assert result.stderr.endswith(f': did you mean "{node_name}"? See kubectl get nodes{note}\n')


def test_unknown_node_after_boolean_flag_is_usage_error(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that `--force maybe` changes no node, because `maybe` is probably meant as a value of the boolean flag."""
    result = run_command("drain", node_name, "--force", "maybe")

    assert result.exit_code == 2
    remedy = "the value of --force must follow an equals sign: write --force=true or --force=false"
    assert result.stderr.endswith(f'Error: node "maybe" not found: {remedy}\n')
    assert not is_cordoned(installed_cluster, node_name)


def test_client_dry_run_prints_note(run_command: RunCommand, node_name: str) -> None:
    result = run_command("start", node_name, "--dry-run=client")

    assert result.exit_code == 0
    assert result.stderr.startswith("Note: --dry-run=client has the same effect as --dry-run=server")


def test_dry_run_of_drain_lists_pods_below_their_nodes(
    installed_cluster: LocalCluster, run_command: RunCommand, node_pair: tuple[str, str]
) -> None:
    """DRN-1: the dry run of a drain of several nodes lists each pod below its node."""
    first, second = node_pair
    create_and_wait(installed_cluster, build_pod(f"bare-{first}", first), build_pod(f"bare-{second}", second))

    result = run_command("drain", first, second, "--force", "--dry-run")

    assert result.stdout.splitlines() == [
        *(f"node/{first}:", f"  would evict pod default/bare-{first}", f"node/{first} would be drained"),
        *(f"node/{second}:", f"  would evict pod default/bare-{second}", f"node/{second} would be drained"),
    ]


def test_drain_cordons_all_nodes_before_first_eviction(
    installed_cluster: LocalCluster, run_command: RunCommand, node_pair: tuple[str, str]
) -> None:
    """DRN-1: `drain` cordons all nodes first, and a node whose drain is refused does not stop the other drains."""
    first, second = node_pair
    create_and_wait(installed_cluster, build_pod(f"bare-{first}", first), build_controller("ReplicaSet", second))

    result = run_command("drain", first, second)

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:2] == [f"node/{first} cordoned", f"node/{second} cordoned"]
    assert lines[-1] == f"node/{second} drained"
    assert result.stderr.startswith(f'Error: unable to drain node "{first}"')
    assert (len(list_pods(installed_cluster, first)), list_pods(installed_cluster, second)) == (1, [])


def test_warnings_about_drain_options_are_printed_once(run_command: RunCommand, node_pair: tuple[str, str]) -> None:
    """Check that a warning about a drain option is printed once for two nodes."""
    result = run_command("start", *node_pair, "--dry-run", "--disable-eviction")

    assert result.stderr == f"Warning: {DELETION_WARNING}\n"


def test_ctrl_c_names_all_nodes_that_drain_has_cordoned(
    installed_cluster: LocalCluster, node_pair: tuple[str, str]
) -> None:
    """DRN-6: after Ctrl-C, `drain` of several nodes names every node that stays cordoned."""
    first, second = node_pair
    create_and_wait(installed_cluster, build_controller("ReplicaSet", first, replicas=1))
    create_and_wait(installed_cluster, build_budget(f"keep-{first}", first, minAvailable=1))

    with start_command(installed_cluster, "drain", first, second) as process:
        assert process.stdout
        assert any(line.startswith("waiting to evict pod ") for line in process.stdout)
        exit_status, message = interrupt_process(process)

    assert exit_status == 130
    assert f'nodes "{first}", "{second}" stay cordoned, 1 pod left: ' in message
    assert message.endswith(f"; to uncordon them, run kubectl maintenance uncordon {first} {second}")


def test_start_and_stop_of_several_nodes_wait_for_all(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_pair: tuple[str, str]
) -> None:
    """NMO-3, NMO-14: `start` and `stop` of several nodes wait for all nodes, and print one line per node."""
    first, second = maintained_pair
    create_and_wait(installed_cluster, build_pod(f"bare-{first}", first))

    start_result = run_command("start", first, "no-such-node", second, "--wait", "--timeout=60s")
    status_result = run_command("status", first, second, "-o", "json")
    wide_result = run_command("status", first, second, "-o", "wide")
    stop_result = run_command("stop", first, second)
    restored_result = run_command("status", first, second)

    assert start_result.exit_code == 1
    lines = start_result.stdout.splitlines()
    assert lines[:2] == [f"{NAME_PREFIX}{first} created", f"{NAME_PREFIX}{second} created"]
    assert {f"{node} Succeeded 100% 0 pending, 0 blocked" for node in maintained_pair} <= set(lines)
    assert len(set(lines)) == len(lines)
    assert start_result.stderr.startswith('Error: node "no-such-node" not found')
    items = json.loads(status_result.stdout)["items"]
    assert [(item["node"], len(item["maintenances"])) for item in items] == [(first, 1), (second, 1)]
    assert wide_result.stdout.splitlines()[0].split()[-3:] == ["MAINTENANCE", "REQUESTED", "BY"]
    assert any(line.split()[0] == first and first in line.split()[1:] for line in wide_result.stdout.splitlines()[1:])
    assert stop_result.stdout == "".join(
        f"node/{node} schedulable: {NAME_PREFIX}{node} deleted\n" for node in maintained_pair
    )
    assert restored_result.stdout == f"Node {first}: schedulable\nNode {second}: schedulable\n"


def test_stop_by_label_skips_nodes_without_maintenance(
    product: Product, run_command: RunCommand, labelled_pair: tuple[str, str, str]
) -> None:
    """NMO-14: `stop -l` skips matching nodes that have no maintenance."""
    first, _, selector = labelled_pair
    run_command("start", first, "--wait")

    result, second_result = run_command("stop", "-l", selector, "-o", "name"), run_command("stop", "-l", selector)

    assert (result.exit_code, result.stdout) == (0, f"{NAME_PREFIX}{first}\n")
    assert second_result.exit_code == 1
    assert "found no node in maintenance that matches" in second_result.stderr


def test_start_prints_names_and_yaml(run_command: RunCommand, maintained_pair: tuple[str, str]) -> None:
    first, second = maintained_pair

    name_result = run_command("start", first, "-o", "name")
    yaml_result = run_command("start", second, "--reason", "neue Platte für Käthe", "-o", "yaml")

    assert name_result.stdout == f"{NAME_PREFIX}{first}\n"
    assert yaml.safe_load(yaml_result.stdout)["spec"] == {"nodeName": second, "reason": "neue Platte für Käthe"}
    assert run_command("status", first, "-o", "name").stdout == f"{NAME_PREFIX}{first}\n"
    template = '{range .items[*]}{.node}={.maintenances[0].spec.nodeName}{"\\n"}{end}'
    fields = run_command("status", first, second, "-o", f"jsonpath={template}").stdout
    columns = run_command("status", "-o", "custom-columns=NODE:.spec.nodeName").stdout.splitlines()
    assert fields == f"{first}={first}\n{second}={second}\n"
    assert {*maintained_pair} <= set(columns[1:])


def test_watch_of_unknown_node_is_error(run_command: RunCommand, node_name: str) -> None:
    """NMO-19: `status --watch` of a node that does not exist ends with an error instead of waiting."""
    for names in (["no-such-node"], [node_name, "no-such-node"]):
        result = run_command("status", *names, "--watch")

        assert result.exit_code == 1
        assert result.stderr.startswith('Error: node "no-such-node" not found: ')
        past = "kubectl maintenance events --node no-such-node -o tree"
        assert result.stderr.endswith(f"ee kubectl get nodes; its recorded events: {past}\n")


def test_status_has_no_all_option() -> None:
    """Check that `status` has no option `--all`, because it shows all maintenances by default."""
    assert CliRunner().invoke(cli, ["status", "--all"]).exit_code == 2
