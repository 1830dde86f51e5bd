"""Tests of replays: they change nothing that is in its desired state, and the functions reply as recorded."""

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
from eventing.replay.function_client import post
from eventing.replay.object_changes import POD, objects_in
from functions.app import FUNCTIONS
from kube.install_lease import CLAIM
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import Flow
from localcluster.processes import free_port
from localcluster.product import Product
from localcluster.servers import ROOT
from tests.chain.patched_functions import edited
from tests.chain.journal_reading import recording, run
from tests.chain.environment import Scene
from tests.postgresql import PostgreSQL
from tests.proofs import proves
from tests.workload import is_dry

DRY = "--dry-run=server"


def replay(scene: Scene, uid: str, *words: str) -> Result:
    """Replay all events of a maintenance."""
    base = () if {"--functions", "--in-process"} & set(words) else ("--functions", scene.product.functions_url)
    return run(scene, "replay", "--maintenance", uid, *base, *words)


def drain(scene: Scene) -> tuple[str, str, list[str]]:
    """Drain a node whose pods have a budget; return the maintenance's path and uid, and the pods' names."""
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, 3)
    scene.budget(namespace, {"app": "web"}, allowed=1, minAvailable=2)
    scene.allow(namespace, other)
    names = [f"{namespace}/{pod['metadata']['name']}" for pod in scene.pods_on(node)]
    path = scene.maintain(node)
    scene.reaches(path)
    return path, scene.admin.get(path)["metadata"]["uid"], names


@pytest.mark.slow
@proves("X-2")
def test_a_whole_cycle_delivered_again_after_its_end_changes_nothing(scene: Scene) -> None:
    """X-2: all events of a deleted maintenance, delivered twice more in random order, cause no write."""
    node = scene.node()
    path = scene.maintain_with_pods(node, 4)
    uid = scene.admin.get(path)["metadata"]["uid"]
    with Flow(scene.product.delivery_log) as flow:
        scene.delete(path)
        scene.gone(path)
        flow.await_type(events.NODE_RESTORED, 10)
    scene.tick()  # wait until the events of the cycle are processed and recorded
    with closing(Journal(scene.journal)) as book:
        cycle = [entry.event for entry in book.select() if uid in str(entry.event.get_data())]
    kinds = {event.get_type() for event in cycle}
    assert {events.MAINTENANCE_BEGUN, events.NODE_TAINTED, events.PODS_EVICTED, events.NODE_DRAINED} <= kinds
    assert {events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.NODE_RESTORED} <= kinds
    fresh = scene.pods(node, 2)
    before = len(scene.our_writes())

    again = cycle * 2
    random.Random(4).shuffle(again)
    for event in again:
        for name in FUNCTIONS:
            assert post(event, f"{scene.product.functions_url}/{name}").status_code in (200, 204)
        assert post(event, scene.product.broker_url).status_code == 202
    scene.tick()  # wait until the events that they caused are processed, too

    assert scene.our_writes()[before:] == []
    assert scene.evictions(fresh) == []
    assert not scene.spec(node).get("unschedulable")
    assert len(scene.pods_on(node)) == 2


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL) -> Iterator[Scene]:
    """Yield another cluster, whose product keeps its journal in PostgreSQL."""
    folder, url = tmp_path_factory.mktemp("elsewhere"), postgresql.database()
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install(cluster)
        product = Product(cluster, folder / "product")
        product.functions.env["DATABASE_URL"] = url
        with product:
            scene = Scene(cluster, product, url)
            yield scene
            scene.admin.close()


@pytest.fixture(params=["scene", "elsewhere"], ids=["SQLite", "PostgreSQL"])
def on_either(request: pytest.FixtureRequest) -> Scene:
    """Return each of the two environments in turn."""
    scene: Scene = request.getfixturevalue(request.param)
    return scene


@pytest.mark.slow
def test_a_dry_replay_of_a_finished_maintenance_finds_no_difference(on_either: Scene) -> None:
    """X-2: a dry replay of a succeeded maintenance finds no difference, neither before nor after its deletion."""
    scene = on_either
    path, uid, pods = drain(scene)
    kinds = {entry.event.get_type() for entry in recording(scene, uid)}
    assert {events.BUDGET_OPENED, events.PODS_EVICTED, events.PODS_GONE, events.NODE_DRAINED} <= kinds
    before = len(scene.audit())

    finished = replay(scene, uid, DRY)

    scene.delete(path)
    scene.gone(path)
    ours = [entry for entry in scene.audit()[before:] if is_dry(entry)]
    recording(scene, uid)
    before = len(scene.our_writes())
    deleted = replay(scene, uid, DRY)

    name = path.rpartition("/")[2]
    assert (finished.exit_code, deleted.exit_code) == (0, 0), finished.output + deleted.output
    assert all(f"pod {pod} no longer exists" in finished.stdout for pod in pods)
    assert f"nodemaintenance {name} no longer exists" not in finished.stdout
    assert f"nodemaintenance {name} no longer exists" in deleted.stdout
    assert " 0 different" in finished.stdout
    assert " 0 different" in deleted.stdout
    assert all(is_dry(entry) for entry in scene.our_writes()[before:])
    assert ours == []  # the desired state was reached, so that even a dry-run write was not needed


@pytest.mark.slow
def test_dry_writes_are_dry(scene: Scene) -> None:
    """X-2: a dry replay for a node that was uncordoned since makes dry-run writes, with the recorded replies."""
    path, uid, _ = drain(scene)
    node = scene.admin.get(path)["spec"]["nodeName"]
    recording(scene, uid)
    scene.product.delivery.kill()  # otherwise guard would cordon the node again
    try:
        scene.cluster.kubectl("uncordon", node)
        scene.cluster.kubectl("taint", "node", node, "medik8s.io/drain-")
        before = len(scene.our_writes())

        answered = replay(scene, uid, DRY, "--function", "cordon", "--function", "taint", "-o", "json")

        written = scene.our_writes()[before:]
        assert {entry["objectRef"]["resource"] for entry in written} >= {"nodes"}
        assert all(is_dry(entry) for entry in written)
        assert not scene.spec(node).get("unschedulable")
        report = json.loads(answered.stdout)
        assert answered.exit_code == 0, answered.output
        assert {row["result"] for row in report["answers"] if row["then"]} == {"same"}
    finally:
        scene.product.start_delivery()
    scene.delete(path)
    scene.gone(path)


@pytest.mark.slow
def test_a_budget_that_opened_explains_what_a_blocked_drain_answers_now(scene: Scene) -> None:
    """X-2: the replay explains its different replies by the budget that now allows an eviction, and names no pod.

    The last line distinguishes a dry run from a replay that evicts.
    """
    node, namespace = scene.node(), scene.namespace()
    scene.deployment(namespace, node, 3)
    scene.budget(namespace, {"app": "web"}, allowed=0, minAvailable=3)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    found = recording(scene, scene.admin.get(path)["metadata"]["uid"])
    (event, *_) = [entry.event.get_id() for entry in found if entry.event.get_type() == events.NODE_TAINTED]
    words = ("--id", event, "--function", "evict", "--functions", scene.product.functions_url)
    scene.product.delivery.kill()  # otherwise the drain would continue
    try:
        budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/budget"
        scene.admin.patch(budget, {"spec": {"minAvailable": 2}})
        scene.reaches(budget, lambda item: item["status"]["disruptionsAllowed"] == 1)

        dry, real = run(scene, "replay", *words, DRY), run(scene, "replay", *words, "--yes")
    finally:
        scene.product.start_delivery()

    why = f": poddisruptionbudget {namespace}/budget needs 2 healthy pods and has 3 now"
    assert (dry.exit_code, real.exit_code) == (0, 0), dry.output + real.output
    assert dry.stdout.count(why) == dry.stdout.count("data.") > 1
    assert dry.stdout.endswith(", 0 different; a dry run: no write was kept\n")
    assert real.stdout.endswith(", 0 different; each write was kept, 1 eviction among them\n")
    scene.delete(path)
    scene.gone(path)


def test_a_real_replay_of_a_finished_maintenance_changes_nothing(scene: Scene) -> None:
    """X-2: a replay of a succeeded maintenance writes nothing, and its replies are not published."""
    path, uid, _ = drain(scene)
    scene.tick()
    known = {entry.event.get_id() for entry in recording(scene, uid)}
    before = len(scene.our_writes())

    done = replay(scene, uid, "--yes")

    scene.tick()  # wait for the events that a published reply would cause
    assert done.exit_code == 0, done.output
    assert scene.our_writes()[before:] == []
    assert {entry.event.get_id() for entry in recording(scene, uid)} == known
    scene.delete(path)
    scene.gone(path)


EDITS = {
    "cordon says more": (
        "functions/maintenance/cordon.py",
        "data=again(event))]",
        'data={"by": "hand"})]',
        events.MAINTENANCE_BEGUN,
        ["data.by", "- nothing", "+ hand"],
    ),
    "taint says nothing": (
        "functions/maintenance/taint.py",
        "return [events.event(events.NODE_TAINTED, ",
        "return [] and [events.event(events.NODE_TAINTED, ",
        events.NODE_CORDONED,
        ["answer", "- node.tainted", "+ nothing"],
    ),
    "status refuses": (
        "functions/maintenance/status.py",
        "    for _ in range(ATTEMPTS):",
        '    raise Retry("by hand")\n    for _ in range(ATTEMPTS):',
        events.NODE_DRAINED,
        ["status", "- 204", "+ 503 by hand"],
    ),
}


@pytest.mark.slow
def test_a_recording_is_replayed_on_another_cluster(
    scene: Scene, elsewhere: Scene, drained: str, tmp_path: Path
) -> None:
    """X-2: a recording from another cluster can be imported, shown and replayed without a difference.

    The replay lists the objects that do not exist on this cluster.
    """
    entries = recording(scene, drained)
    lines = run(scene, "events", "--maintenance", drained, "-o", "jsonl").stdout
    (tmp_path / "recording.jsonl").write_text(lines)
    journal = ("--journal", str(tmp_path / "journal.db"))
    before = len(elsewhere.our_writes())

    taken = run(elsewhere, "events", "--import", str(tmp_path / "recording.jsonl"), *journal)
    shown = run(elsewhere, "events", "--maintenance", drained, "-o", "tree", *journal)
    found = replay(elsewhere, drained, DRY, *journal)

    name, node = entries[0].event.get_extension("name"), entries[0].node
    pods = {str(thing) for thing in objects_in(entries) if thing.kind == POD}
    assert taken.exit_code == 0, taken.output
    assert "node.drained" in shown.stdout
    assert found.exit_code == 0, found.output
    assert f"nodemaintenance {name} no longer exists" in found.stdout
    assert f"node {node} no longer exists" in found.stdout
    assert len(pods) == 3
    assert all(f"{pod} no longer exists" in found.stdout for pod in pods)
    assert " 0 different" in found.stdout
    assert "not recorded" not in found.stdout
    written = [write for write in elsewhere.our_writes()[before:] if write["objectRef"].get("name") != CLAIM]
    assert written == []  # except for the install's lease, written at the first tick


@pytest.fixture(scope="module")
def drained(scene: Scene) -> Iterator[str]:
    """Yield the uid of a finished, completely recorded maintenance whose drain no tick began a second time."""
    for _ in range(5):
        path, uid, _ = drain(scene)
        steps = Counter(entry.event.get_type() for entry in recording(scene, uid))
        if steps[events.MAINTENANCE_BEGUN] == steps[events.NODE_CORDONED] == 1:
            break
        scene.delete(path)
        scene.gone(path)
    yield uid
    scene.delete(path)
    scene.gone(path)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "old", "new", "kind", "diff"), EDITS.values(), ids=EDITS)
def test_a_changed_function_is_found(
    scene: Scene, drained: str, tmp_path: Path, file: str, old: str, new: str, kind: str, diff: list[str]
) -> None:
    """X-2: a replay against changed functions exits with 1, and its diff names event, function and field."""
    changed = next(entry for entry in recording(scene, drained) if entry.event.get_type() == kind)

    with edited(scene, tmp_path, file, old, new, free_port()) as url:
        found = replay(scene, drained, DRY, "--functions", url)

    shown = [line.strip() for line in found.stdout.splitlines()]
    head = next(
        number for number, line in enumerate(shown) if line.endswith(changed.event.get_id()) and "differs" in line
    )
    assert found.exit_code == 1
    assert Path(file).stem in shown[head]
    assert shown[head + 1 : head + 4] == diff


def test_part_of_a_maintenance_can_be_replayed(scene: Scene, drained: str) -> None:
    """X-2: a replay can be limited to events from one step until another, and to one function."""
    found = replay(scene, drained, DRY, "--from", "node.cordoned", "--until", "node.tainted", "-o", "json")
    alone = replay(scene, drained, DRY, "--function", "taint", "--from", "node.cordoned", "--until", "node.cordoned")

    rows = json.loads(found.stdout)["answers"]
    assert {("node.cordoned", "taint"), ("node.tainted", "evict")} <= {
        (row["type"].removeprefix("dev.nodemaintenance."), row["function"]) for row in rows
    }
    assert events.MAINTENANCE_BEGUN not in {row["type"] for row in rows}
    assert alone.exit_code == 0
    assert alone.stdout.splitlines()[-1] == "1 event, 1 answer: 1 the same, 0 different; a dry run: no write was kept"


def test_one_event_runs_in_this_process(scene: Scene, drained: str) -> None:
    """X-2: an event can be replayed in the command's own process, with the user's rights and without a server."""
    (begun,) = [entry for entry in recording(scene, drained) if entry.event.get_type() == events.MAINTENANCE_BEGUN]

    found = run(scene, "replay", "--id", begun.event.get_id(), "--in-process", DRY)

    assert found.exit_code == 0, found.output
    assert {"cordon", "status"} <= set(found.stdout.split())


@pytest.mark.slow
def test_pdb_stops_inside_the_function(scene: Scene, drained: str) -> None:
    """X-2: `--pdb` stops at the function's first line, and the function's 1.6 s deadline does not apply meanwhile."""
    (cordoned,) = [entry for entry in recording(scene, drained) if entry.event.get_type() == events.NODE_CORDONED]
    script = f"from console.cli import main; import sys; sys.argv[1:] = {_words(scene, cordoned)!r}; main()"
    session = "p 'the event is', event.get_id()\nimport time; time.sleep(2)\nwhere\ncontinue\n"

    done = _talk(script, session)
    stopped = _talk(script, "quit\n")

    assert done.returncode == 0, done.stderr
    assert f"('the event is', '{cordoned.event.get_id()}')" in done.stderr
    assert "taint.py" in done.stderr
    assert "1 the same" in done.stdout
    assert stopped.returncode == 2
    assert stopped.stderr.endswith("Error: stopped in taint; nothing after it was replayed\n")


def _words(scene: Scene, entry: Entry) -> list[str]:
    options = ["--kubeconfig", str(scene.cluster.kubeconfig), "--journal", scene.journal]
    return ["replay", "--id", entry.event.get_id(), "--function", "taint", "--in-process", "--pdb", DRY, *options]


def _talk(script: str, session: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, input=session, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


WRONG = {
    "nothing named": (["--dry-run=server"], "Error: which events?"),
    "unknown id": (["--id", "nope", DRY], "Error: the journal holds no event nope"),
    "unknown maintenance": (
        ["--maintenance", "nope", DRY],
        "Error: the journal holds no event of NodeMaintenance nope",
    ),
    "pdb elsewhere": (["--id", "nope", "--pdb", DRY], "Error: --pdb stops in a function of this process"),
    "here and elsewhere": (
        ["--id", "nope", "--in-process", "--url", "http://here"],
        "Error: --in-process and --url: each says where functions run",
    ),
    "no journal": (["--id", "nope", DRY, "--journal", "/no/such/file"], "Error: there is no journal at /no/such/file"),
    "no dry run of that kind": (["--id", "nope", "--dry-run=client"], "Error: Invalid value for '--dry-run'"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_replay_is_one_line_and_exit_2(scene: Scene, words: list[str], said: str) -> None:
    """X-6: an invalid `replay` command exits with 2 and one line; exit status 1 means that there was a difference."""
    found = run(scene, "replay", *words)

    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in found.output


ASTRAY = {
    "nobody there": (["--functions", f"http://127.0.0.1:{free_port()}", DRY], "Error: begin fails now, 503 no answer"),
    "no URL": (["--functions", "here", DRY], "Error: Invalid value for '--functions': 'here' is not a URL"),
    "no such step": (["--from", "node.painted", DRY], "Error: --from node.painted: there are only"),
    "backwards": (["--from", "node.drained", "--until", "node.cordoned", DRY], "Error: --until node.cordoned comes"),
    "no such function": (["--function", "paint", DRY], "Error: there is no function paint: begin"),
    "no such function here": (["--in-process", "--function", "paint", DRY], "Error: there is no function paint: begin"),
    "not confirmed": ([], "Error: nobody confirmed: say --yes, or --dry-run=server"),
}


@pytest.mark.parametrize(("words", "said"), ASTRAY.values(), ids=ASTRAY)
def test_a_replay_that_leads_nowhere_is_one_line_and_exit_2(
    scene: Scene, drained: str, words: list[str], said: str
) -> None:
    """X-6: a replay that cannot run as asked exits with 2 and one line that contains the remedy."""
    found = replay(scene, drained, *words)

    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in found.output


@pytest.mark.parametrize("is_named", [True, False], ids=["by an option", "by the environment"])
def test_events_that_call_nobody_are_one_line_and_exit_2(
    scene: Scene, drained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """X-6: a replay for whose events no Trigger calls a function exits with 2, since that is not "no difference".

    `make env` sets `TRIGGERS` to the manifests of the installed components.
    """
    trigger = {"metadata": {"name": "record-on-everything"}, "spec": {"broker": "default"}}
    file = tmp_path / "triggers.yaml"
    file.write_text(json.dumps({"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", **trigger}))

    monkeypatch.setenv("TRIGGERS", "" if is_named else str(file))
    found = replay(scene, drained, DRY, *(("--manifests", str(file)) if is_named else ()))

    assert found.exit_code == 2
    assert found.stderr.startswith("Error: no Trigger calls a function for these events")
