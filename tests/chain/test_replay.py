"""Tests for event replays: functions reply as recorded, and write nothing if objects have their desired state."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from eventing import events
from eventing.journal.entries import Entry
from eventing.journal.store import Journal
from eventing.replay.function_client import post_event
from eventing.replay.object_changes import POD_KIND, find_recorded_objects
from functions.app import FUNCTIONS
from kube.install_lease import LEASE_NAME
from localcluster import product as localproduct
from localcluster.audit_log import is_dry_run
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import EventLogFollower
from localcluster.processes import reserve_port
from localcluster.product import Product
from localcluster.servers import ROOT
from tests.chain.environment import EventChainEnvironment
from tests.chain.journal_reading import run_command, wait_for_recorded_events
from tests.chain.patched_functions import serve_patched_functions
from tests.postgresql import PostgreSQL
from tests.proofs import proves

DRY_RUN_OPTION = "--dry-run=server"


def replay_maintenance(environment: EventChainEnvironment, uid: str, *arguments: str) -> Result:
    """Replay all events of a maintenance."""
    location_options = (
        () if {"--functions", "--in-process"} & set(arguments) else ("--functions", environment.product.functions_url)
    )
    return run_command(environment, "replay", "--maintenance", uid, *location_options, *arguments)


def drain_node_with_budget(environment: EventChainEnvironment) -> tuple[str, str, list[str]]:
    """Drain a node whose pods have a PodDisruptionBudget; return the maintenance's path and uid, and the pod names."""
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 3)
    environment.create_budget(namespace, {"app": "web"}, disruptions_allowed=1, minAvailable=2)
    environment.allow_deployment_on_node(namespace, other_node)
    names = [f"{namespace}/{pod['metadata']['name']}" for pod in environment.list_pods_on(node)]
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    return path, environment.client.get(path)["metadata"]["uid"], names


@pytest.mark.slow
@proves("X-2")
def test_redelivered_events_of_deleted_maintenance_cause_no_writes(environment: EventChainEnvironment) -> None:
    """X-2: redelivering all events of a deleted maintenance twice in random order causes no writes."""
    node = environment.create_node()
    path = environment.drain_node_with_pods(node, 4)
    uid = environment.client.get(path)["metadata"]["uid"]
    with EventLogFollower(environment.product.delivery_log) as event_log:
        environment.request_deletion(path)
        environment.wait_for_deletion(path)
        event_log.wait_for_events(events.NODE_RESTORED, 10)
    environment.send_tick()  # Wait until the maintenance's events are processed and recorded.
    with closing(Journal(environment.journal)) as journal:
        maintenance_events = [entry.event for entry in journal.select() if uid in str(entry.event.get_data())]
    event_types = {event.get_type() for event in maintenance_events}
    assert {events.MAINTENANCE_BEGUN, events.NODE_TAINTED, events.PODS_EVICTED, events.NODE_DRAINED} <= event_types
    assert {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.NODE_RESTORED} <= event_types
    new_pods = environment.create_pods(node, 2)
    write_count_before = len(environment.list_product_writes())

    duplicates = maintenance_events * 2
    random.Random(4).shuffle(duplicates)
    for event in duplicates:
        for name in FUNCTIONS:
            assert post_event(event, f"{environment.product.functions_url}/{name}").status_code in (200, 204)
        assert post_event(event, environment.product.broker_url).status_code == 202
    environment.send_tick()  # Wait until the events caused by the duplicates are processed, too.

    assert environment.list_product_writes()[write_count_before:] == []
    assert environment.list_evictions(new_pods) == []
    assert not environment.get_node_spec(node).get("unschedulable")
    assert len(environment.list_pods_on(node)) == 2


@pytest.fixture(scope="module")
def second_environment(
    tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL
) -> Iterator[EventChainEnvironment]:
    """Yield the environment of a second cluster, in which the product stores its journal in PostgreSQL."""
    folder, url = tmp_path_factory.mktemp("other"), postgresql.create_database()
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install_manifests(cluster)
        product = Product(cluster, folder / "product")
        product.functions.env["DATABASE_URL"] = url
        with product:
            postgresql_environment = EventChainEnvironment(cluster, product, url)
            yield postgresql_environment
            postgresql_environment.client.close()


@pytest.fixture(params=["environment", "second_environment"], ids=["SQLite", "PostgreSQL"])
def sqlite_or_postgresql_environment(request: pytest.FixtureRequest) -> EventChainEnvironment:
    """Return the environment in which the product stores its journal in SQLite or PostgreSQL."""
    selected_environment: EventChainEnvironment = request.getfixturevalue(request.param)
    return selected_environment


@pytest.mark.slow
def test_dry_replay_of_finished_maintenance_finds_no_differences(
    sqlite_or_postgresql_environment: EventChainEnvironment,
) -> None:
    """X-2: a dry replay of a finished maintenance finds no differences, whether before or after its deletion."""
    environment = sqlite_or_postgresql_environment
    path, uid, pods = drain_node_with_budget(environment)
    event_types = {entry.event.get_type() for entry in wait_for_recorded_events(environment, uid)}
    assert {events.BUDGET_OPENED, events.PODS_EVICTED, events.PODS_GONE, events.NODE_DRAINED} <= event_types
    write_count_before = len(environment.read_audit_log())

    finished_result = replay_maintenance(environment, uid, DRY_RUN_OPTION)

    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    dry_writes = [entry for entry in environment.read_audit_log()[write_count_before:] if is_dry_run(entry)]
    wait_for_recorded_events(environment, uid)
    write_count_before = len(environment.list_product_writes())
    deleted_result = replay_maintenance(environment, uid, DRY_RUN_OPTION)

    name = path.rpartition("/")[2]
    assert (finished_result.exit_code, deleted_result.exit_code) == (0, 0), (
        finished_result.output + deleted_result.output
    )
    assert all(f"pod {pod} no longer exists" in finished_result.stdout for pod in pods)
    assert f"nodemaintenance {name} no longer exists" not in finished_result.stdout
    assert f"nodemaintenance {name} no longer exists" in deleted_result.stdout
    assert " 0 different" in finished_result.stdout
    assert " 0 different" in deleted_result.stdout
    assert all(is_dry_run(entry) for entry in environment.list_product_writes()[write_count_before:])
    # Not even dry-run writes are needed, because the desired state has been reached.
    assert dry_writes == []


@pytest.mark.slow
def test_dry_replay_makes_only_dry_run_writes(environment: EventChainEnvironment) -> None:
    """X-2: a dry replay for a node that was uncordoned later makes only dry-run writes."""
    path, uid, _ = drain_node_with_budget(environment)
    node = environment.client.get(path)["spec"]["nodeName"]
    wait_for_recorded_events(environment, uid)
    environment.product.delivery.kill()  # Without the delivery, `guard` cannot cordon the node again.
    try:
        environment.cluster.kubectl("uncordon", node)
        environment.cluster.kubectl("taint", "node", node, "medik8s.io/drain-")
        write_count_before = len(environment.list_product_writes())

        result = replay_maintenance(
            environment, uid, DRY_RUN_OPTION, "--function", "cordon", "--function", "taint", "-o", "json"
        )

        writes = environment.list_product_writes()[write_count_before:]
        assert {entry["objectRef"]["resource"] for entry in writes} >= {"nodes"}
        assert all(is_dry_run(entry) for entry in writes)
        assert not environment.get_node_spec(node).get("unschedulable")
        report = json.loads(result.stdout)
        assert result.exit_code == 0, result.output
        assert {row["result"] for row in report["answers"] if row["then"]} == {"same"}
    finally:
        environment.product.start_delivery()
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.slow
def test_replay_explains_changed_reply_by_pdb_that_allows_eviction(environment: EventChainEnvironment) -> None:
    """X-2: a replay explains a changed reply by the PodDisruptionBudget that now allows an eviction.

    The last line of the output distinguishes a dry run from a replay that evicts pods.
    """
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 3)
    environment.create_budget(namespace, {"app": "web"}, disruptions_allowed=0, minAvailable=3)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path, lambda maintenance: bool((maintenance.get("status") or {}).get("blockedPods")))
    entries = wait_for_recorded_events(environment, environment.client.get(path)["metadata"]["uid"])
    (event, *_) = [entry.event.get_id() for entry in entries if entry.event.get_type() == events.NODE_TAINTED]
    arguments = ("--id", event, "--function", "evict", "--functions", environment.product.functions_url)
    environment.product.delivery.kill()  # Without the delivery, the drain cannot continue.
    try:
        budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget"
        environment.client.patch(budget, {"spec": {"minAvailable": 2}})
        environment.wait_for_state(budget, lambda budget: budget["status"]["disruptionsAllowed"] == 1)

        dry_result, real_result = (
            run_command(environment, "replay", *arguments, DRY_RUN_OPTION),
            run_command(environment, "replay", *arguments, "--yes"),
        )
    finally:
        environment.product.start_delivery()

    explanation = f": poddisruptionbudget {namespace}/budget needs 2 healthy pods and has 3 now"
    assert (dry_result.exit_code, real_result.exit_code) == (0, 0), dry_result.output + real_result.output
    assert dry_result.stdout.count(explanation) == dry_result.stdout.count("data.") > 1
    assert dry_result.stdout.endswith(", 0 different; dry run: no writes were stored\n")
    assert real_result.stdout.endswith(", 0 different; all writes were stored, including 1 eviction\n")
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def test_replay_of_finished_maintenance_writes_nothing(environment: EventChainEnvironment) -> None:
    """X-2: a replay of a finished maintenance writes nothing, and its replies are not published."""
    path, uid, _ = drain_node_with_budget(environment)
    environment.send_tick()
    recorded_ids = {entry.event.get_id() for entry in wait_for_recorded_events(environment, uid)}
    write_count_before = len(environment.list_product_writes())

    result = replay_maintenance(environment, uid, "--yes")

    environment.send_tick()  # Wait for the events that a published reply would cause.
    assert result.exit_code == 0, result.output
    assert environment.list_product_writes()[write_count_before:] == []
    assert {entry.event.get_id() for entry in wait_for_recorded_events(environment, uid)} == recorded_ids
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


SOURCE_EDITS = {
    "cordon adds data": (
        "functions/maintenance/cordon.py",
        "data=copy_again_flag(event)",
        'data={"test": "forced"}',
        events.MAINTENANCE_BEGUN,
        ["data.test", "- nothing", "+ forced"],
    ),
    "taint emits nothing": (
        "functions/maintenance/taint.py",
        "return [events.build_event(events.NODE_TAINTED, ",
        "return [] and [events.build_event(events.NODE_TAINTED, ",
        events.NODE_CORDONED,
        ["answer", "- node.tainted", "+ nothing"],
    ),
    "status raises Retry": (
        "functions/maintenance/status.py",
        "    for _ in range(MAX_ATTEMPTS):",
        '    raise Retry("forced failure")\n    for _ in range(MAX_ATTEMPTS):',
        events.NODE_DRAINED,
        ["status", "- 204", "+ 503 forced failure"],
    ),
}


@pytest.mark.slow
def test_imported_recording_is_replayed_on_other_cluster(
    environment: EventChainEnvironment,
    second_environment: EventChainEnvironment,
    uid_of_drained_maintenance: str,
    tmp_path: Path,
) -> None:
    """X-2: a recording from another cluster can be imported, shown and replayed without differences.

    The replay lists the objects that do not exist on this cluster.
    """
    entries = wait_for_recorded_events(environment, uid_of_drained_maintenance)
    lines = run_command(environment, "events", "--maintenance", uid_of_drained_maintenance, "-o", "jsonl").stdout
    (tmp_path / "recording.jsonl").write_text(lines)
    journal = ("--journal", str(tmp_path / "journal.db"))
    write_count_before = len(second_environment.list_product_writes())

    import_result = run_command(second_environment, "events", "--import", str(tmp_path / "recording.jsonl"), *journal)
    tree_result = run_command(
        second_environment, "events", "--maintenance", uid_of_drained_maintenance, "-o", "tree", *journal
    )
    replay_result = replay_maintenance(second_environment, uid_of_drained_maintenance, DRY_RUN_OPTION, *journal)

    name, node = entries[0].event.get_extension("name"), entries[0].node
    pods = {str(reference) for reference in find_recorded_objects(entries) if reference.kind == POD_KIND}
    assert import_result.exit_code == 0, import_result.output
    assert "node.drained" in tree_result.stdout
    assert replay_result.exit_code == 0, replay_result.output
    assert f"nodemaintenance {name} no longer exists" in replay_result.stdout
    assert f"node {node} no longer exists" in replay_result.stdout
    assert len(pods) == 3
    assert all(f"{pod} no longer exists" in replay_result.stdout for pod in pods)
    assert " 0 different" in replay_result.stdout
    assert "not recorded" not in replay_result.stdout
    writes = [
        write
        for write in second_environment.list_product_writes()[write_count_before:]
        if write["objectRef"].get("name") != LEASE_NAME
    ]
    assert writes == []  # `writes` excludes the Lease of the active install, which the first tick writes.


@pytest.fixture(scope="module")
def uid_of_drained_maintenance(environment: EventChainEnvironment) -> Iterator[str]:
    """Yield the uid of a finished, completely recorded maintenance whose first steps were not repeated by a tick."""
    for _ in range(5):
        path, uid, _ = drain_node_with_budget(environment)
        counts_by_type = Counter(entry.event.get_type() for entry in wait_for_recorded_events(environment, uid))
        if counts_by_type[events.MAINTENANCE_BEGUN] == counts_by_type[events.NODE_CORDONED] == 1:
            break
        environment.request_deletion(path)
        environment.wait_for_deletion(path)
    yield uid
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "old", "new", "event_type", "expected_diff"), SOURCE_EDITS.values(), ids=SOURCE_EDITS)
def test_replay_detects_modified_function(
    environment: EventChainEnvironment,
    uid_of_drained_maintenance: str,
    tmp_path: Path,
    file: str,
    old: str,
    new: str,
    event_type: str,
    expected_diff: list[str],
) -> None:
    """X-2: a replay with modified functions exits with 1, and its diff names the event, the function and the field."""
    expected_entry = next(
        entry
        for entry in wait_for_recorded_events(environment, uid_of_drained_maintenance)
        if entry.event.get_type() == event_type
    )

    with serve_patched_functions(environment, tmp_path, file, old, new, reserve_port()) as url:
        result = replay_maintenance(environment, uid_of_drained_maintenance, DRY_RUN_OPTION, "--functions", url)

    lines = [line.strip() for line in result.stdout.splitlines()]
    index = next(
        number
        for number, line in enumerate(lines)
        if line.endswith(expected_entry.event.get_id()) and "differs" in line
    )
    assert result.exit_code == 1
    assert Path(file).stem in lines[index]
    assert lines[index + 1 : index + 4] == expected_diff


def test_replay_can_be_limited_to_event_range_and_function(
    environment: EventChainEnvironment, uid_of_drained_maintenance: str
) -> None:
    """X-2: a replay can be limited to a range of event types and to one function."""
    result = replay_maintenance(
        environment,
        uid_of_drained_maintenance,
        DRY_RUN_OPTION,
        "--from",
        "node.cordoned",
        "--until",
        "node.tainted",
        "-o",
        "json",
    )
    limited_result = replay_maintenance(
        environment,
        uid_of_drained_maintenance,
        DRY_RUN_OPTION,
        "--function",
        "taint",
        "--from",
        "node.cordoned",
        "--until",
        "node.cordoned",
    )

    rows = json.loads(result.stdout)["answers"]
    assert {("node.cordoned", "taint"), ("node.tainted", "evict")} <= {
        (row["type"].removeprefix("dev.nodemaintenance."), row["function"]) for row in rows
    }
    assert events.MAINTENANCE_BEGUN not in {row["type"] for row in rows}
    assert limited_result.exit_code == 0
    assert (
        limited_result.stdout.splitlines()[-1]
        == "1 event, 1 response: 1 the same, 0 different; dry run: no writes were stored"
    )


def test_event_can_be_replayed_in_process(environment: EventChainEnvironment, uid_of_drained_maintenance: str) -> None:
    """X-2: an event can be replayed in the command's own process, with the user's permissions and without a server."""
    (begun_entry,) = [
        entry
        for entry in wait_for_recorded_events(environment, uid_of_drained_maintenance)
        if entry.event.get_type() == events.MAINTENANCE_BEGUN
    ]

    result = run_command(environment, "replay", "--id", begun_entry.event.get_id(), "--in-process", DRY_RUN_OPTION)

    assert result.exit_code == 0, result.output
    assert {"cordon", "status"} <= set(result.stdout.split())


@pytest.mark.slow
def test_pdb_option_stops_at_first_line_of_function(
    environment: EventChainEnvironment, uid_of_drained_maintenance: str
) -> None:
    """X-2: `--pdb` stops at the function's first line, and suspends the function's 1.6 s deadline."""
    (cordoned_entry,) = [
        entry
        for entry in wait_for_recorded_events(environment, uid_of_drained_maintenance)
        if entry.event.get_type() == events.NODE_CORDONED
    ]
    arguments = _build_pdb_arguments(environment, cordoned_entry)
    script = f"from console.cli import main; import sys; sys.argv[1:] = {arguments!r}; main()"
    session = "p 'the event is', event.get_id()\nimport time; time.sleep(2)\nwhere\ncontinue\n"

    finished_result = _run_with_input(script, session)
    quit_result = _run_with_input(script, "quit\n")

    assert finished_result.returncode == 0, finished_result.stderr
    assert f"('the event is', '{cordoned_entry.event.get_id()}')" in finished_result.stderr
    assert "taint.py" in finished_result.stderr
    assert "1 the same" in finished_result.stdout
    assert quit_result.returncode == 2
    assert quit_result.stderr.endswith(
        "Error: replay stopped by pdb in function taint: the remaining calls were not made\n"
    )


def _build_pdb_arguments(environment: EventChainEnvironment, entry: Entry) -> list[str]:
    options = ["--kubeconfig", str(environment.cluster.kubeconfig), "--journal", environment.journal]
    return [
        "replay",
        "--id",
        entry.event.get_id(),
        "--function",
        "taint",
        "--in-process",
        "--pdb",
        DRY_RUN_OPTION,
        *options,
    ]


def _run_with_input(script: str, session: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, input=session, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


INVALID_COMMANDS = {
    "no selection": (["--dry-run=server"], "Error: no events selected: "),
    "unknown id": (["--id", "nope", DRY_RUN_OPTION], "Error: event nope not found in the journal"),
    "unknown maintenance": (
        ["--maintenance", "nope", DRY_RUN_OPTION],
        'Error: NodeMaintenance "nope" not found in the journal',
    ),
    "pdb in another process": (
        ["--id", "nope", "--pdb", DRY_RUN_OPTION],
        "Error: --pdb stops only in a function that runs in",
    ),
    "both locations": (
        ["--id", "nope", "--in-process", "--url", "http://here"],
        "Error: --in-process and --url: each specifies where functions run",
    ),
    "no journal": (
        ["--id", "nope", DRY_RUN_OPTION, "--journal", "/no/such/file"],
        "Error: journal /no/such/file not found",
    ),
    "unknown kind of dry run": (["--id", "nope", "--dry-run=client"], "Error: Invalid value for '--dry-run'"),
}


@pytest.mark.parametrize(("arguments", "expected_message"), INVALID_COMMANDS.values(), ids=INVALID_COMMANDS)
def test_invalid_replay_command_exits_with_2_and_one_line(
    environment: EventChainEnvironment, arguments: list[str], expected_message: str
) -> None:
    """X-6: an invalid `replay` command exits with 2 and one line, because status 1 means that responses differ."""
    result = run_command(environment, "replay", *arguments)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(expected_message)
    assert "Traceback" not in result.output


IMPOSSIBLE_REPLAYS = {
    "unreachable functions": (
        ["--functions", f"http://127.0.0.1:{reserve_port()}", DRY_RUN_OPTION],
        "Error: no response from http://127.0.0.1:",
    ),
    "not a URL": (
        ["--functions", "here", DRY_RUN_OPTION],
        "Error: Invalid value for '--functions': 'here' is not a URL",
    ),
    "unknown event type": (
        ["--from", "node.painted", DRY_RUN_OPTION],
        "Error: --from node.painted: no event has this type",
    ),
    "reversed range": (
        ["--from", "node.drained", "--until", "node.cordoned", DRY_RUN_OPTION],
        "Error: every event of --until node.cordoned is before",
    ),
    "unknown function": (
        ["--function", "paint", DRY_RUN_OPTION],
        'Error: function "paint" not found: name one of begin',
    ),
    "unknown function in process": (
        ["--in-process", "--function", "paint", DRY_RUN_OPTION],
        'Error: function "paint" not found: name one of begin',
    ),
    "not confirmed": ([], "Error: no confirmation, nothing was done: use --yes, or --dry-run=server"),
}


@pytest.mark.parametrize(("arguments", "expected_message"), IMPOSSIBLE_REPLAYS.values(), ids=IMPOSSIBLE_REPLAYS)
def test_impossible_replay_exits_with_2_and_remedy(
    environment: EventChainEnvironment, uid_of_drained_maintenance: str, arguments: list[str], expected_message: str
) -> None:
    """X-6: a replay that cannot run as requested exits with 2 and one line that contains the remedy."""
    result = replay_maintenance(environment, uid_of_drained_maintenance, *arguments)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(expected_message)
    assert "Traceback" not in result.output


@pytest.mark.parametrize("uses_option", [True, False], ids=["option", "environment variable"])
def test_replay_exits_with_2_if_no_trigger_matches(
    environment: EventChainEnvironment,
    uid_of_drained_maintenance: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uses_option: bool,
) -> None:
    """X-6: a replay exits with 2 if no Trigger delivers its events to a function, instead of reporting no differences.

    `make env` sets `TRIGGERS` to the manifests of the installed components.
    """
    trigger = {"metadata": {"name": "record-on-everything"}, "spec": {"broker": "default"}}
    file = tmp_path / "triggers.yaml"
    file.write_text(json.dumps({"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", **trigger}))

    monkeypatch.setenv("TRIGGERS", "" if uses_option else str(file))
    result = replay_maintenance(
        environment, uid_of_drained_maintenance, DRY_RUN_OPTION, *(("--manifests", str(file)) if uses_option else ())
    )

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: no Trigger delivers these events to a function")
