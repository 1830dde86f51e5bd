"""Tests of `label-cpu` on a real API server: the labels of each node, the patches, and changes without effect."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone

import pytest

from eventing import events
from functions import installs as acting
from functions.event_data import data_of
from kube import install_lease
from kube.cpu import hyperconverged, lookup
from kube.cpu.models import features_of
from kube.cpu.node_patch import FEATURE, MARK, MODEL, SKIP
from kube.cpu.problems import ILLEGAL_NAME, MALFORMED_INPUT, SEVERAL, SKIP_UNREAD, UNKNOWN_MODEL, UNKNOWN_NODE
from kube.client.api_errors import Rejected
from kube.install_lease import Account
from kube.nodes import NODES
from kube.paths import LEASES, NAMESPACE
from tests.fault_proxy import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import HASWELL, Labelling, patched, reference
from tests.functions.event_builders import tick
from tests.kube.cpu.test_models import PRINTED
from tests.proofs import proves
from tests.workload import OURS as ACCOUNTS
from tests.workload import Audit, Workload, pod_on, written

ABOVE_PENRYN = {FEATURE + name for name in (*PRINTED.split(), "smep")}
OLDER = "feature.node.kubernetes.io/cpu-feature-avx"
FOREIGN = "host-model-cpu.node.kubevirt.io/Haswell"


def on_two_pages(labelling: Labelling, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Set the page size so that the existing nodes fill two pages, the last node on the second; return their names."""
    nodes = [node["metadata"]["name"] for node in labelling.admin.list(NODES)["items"]]
    monkeypatch.setattr(lookup, "PAGE", len(nodes) - 1)
    return nodes


@proves("OSV-30", "OSV-33", "OSV-35", "OSV-36", "OSV-38", "C13")
def test_a_node_is_labelled_with_what_it_offers(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Check that a node gets its labels with a single patch, and that a second round patches nothing.

    Models that are always obsolete and features of the minimum model get no label.
    """
    node, other = work.node(), work.node()
    labelling.label(node, {OLDER: "true", FOREIGN: "true"})
    labelling.offer({node: HASWELL})

    labelling.changed()
    labelling.changed()

    assert labelling.labels(node) == {f"{MODEL}Haswell", f"{MODEL}Penryn", *ABOVE_PENRYN}
    found = work.read_node(node)["metadata"]["labels"]
    assert (found[FOREIGN], found[f"{MODEL}Haswell"], found[MARK]) == ("true", "true", "true")
    assert labelling.labels(other) == set()
    assert patched(audit) == [node]


@proves("OSV-30", "OSV-31")
def test_a_model_is_obsolete_while_hyperconverged_names_it(labelling: Labelling, work: Workload) -> None:
    """Check that a model's label disappears while HyperConverged lists the model, and returns afterwards.

    Models that are always obsolete stay so, and the step never writes them to HyperConverged.
    """
    node = work.node()
    labelling.offer({node: HASWELL})
    seen = []
    for names in (["Haswell", "Nobody", "Conroe"], ["Penryn"], []):
        said = labelling.wish({"cpuModels": names})
        labelling.changed("HyperConverged")
        assert said["spec"]["obsoleteCPUs"]["cpuModels"] == names
        seen.append({name.removeprefix(MODEL) for name in labelling.labels(node) if name.startswith(MODEL)})

    assert seen == [{"Penryn"}, {"Haswell"}, {"Haswell", "Penryn"}]


@proves("OSV-31")
def test_a_model_that_is_a_number_is_refused_by_the_kind(labelling: Labelling) -> None:
    """Check that the CRD rejects the model `486` without quotes, which YAML reads as a number."""
    with pytest.raises(Rejected, match="must be of type string"):
        labelling.wish({"cpuModels": [486]})


@proves("OSV-32", "C12")
@pytest.mark.parametrize("field", ["minCPUModel", "minCPU"])
def test_the_least_model_says_which_features_need_no_label(labelling: Labelling, work: Workload, field: str) -> None:
    """Check that features of the minimum model get no label, under either field name; the default is Penryn."""
    node = work.node()
    labelling.offer({node: HASWELL})
    features = []
    for told in (None, {field: "Penryn"}, {field: "Nehalem"}, {field: ""}):
        labelling.wish(told)
        labelling.changed("HyperConverged")
        features.append({name for name in labelling.labels(node) if name.startswith(FEATURE)})
    nehalem = {FEATURE + name for name in (features_of("Haswell") or set()) - (features_of("Nehalem") or set())}

    assert features == [ABOVE_PENRYN, ABOVE_PENRYN, nehalem, ABOVE_PENRYN]


@proves("OSV-32")
def test_an_unknown_least_model_changes_nothing_and_is_told(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Check that an unknown minimum model changes no label and causes one Event on the HyperConverged."""
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.wish({"minCPUModel": "Unheard"})

    labelling.changed("HyperConverged")
    labelling.tick()

    assert labelling.labels(node) == set()
    [said] = labelling.told(work.namespace, UNKNOWN_MODEL)
    assert 'spec.obsoleteCPUs.minCPUModel "Unheard" is not known: write a model of libvirt' in said
    assert [entry[:2] for entry in written(audit.writes_by())] == [("create", "events")]


@proves("OSV-31", "OSV-38")
def test_a_name_that_nobody_has_is_told(labelling: Labelling, work: Workload) -> None:
    """Check that an unknown model and an unknown node are recorded in Events, while valid entries still apply."""
    node = work.node()
    made = labelling.offer({node: HASWELL, "nodee-1": HASWELL})
    labelling.wish({"cpuModels": ["haswell", "Haswell"]})

    labelling.changed()
    labelling.changed("HyperConverged")

    assert f"{MODEL}Haswell" not in labelling.labels(node)
    assert f"{MODEL}Penryn" in labelling.labels(node)
    [model] = labelling.told(work.namespace, UNKNOWN_MODEL)
    assert "spec.obsoleteCPUs.cpuModels has haswell, in no table" in model
    named = f'{made["metadata"]["name"]} data["nodee-1"] names nodee-1, and no such node is there'
    assert any(said.startswith(named) for said in labelling.told(NAMESPACE, UNKNOWN_NODE))


@proves("OSV-33")
def test_what_no_label_can_be_named_is_skipped_and_told(labelling: Labelling, work: Workload) -> None:
    """Check that names that are invalid in a label are skipped and recorded in an Event.

    The API server would reject the whole patch because of a single invalid name.
    """
    node = work.node()
    labelling.offer({node: {"models": ["My CPU", "486x"], "features": ["sse4.1", "a b", "sse4.2"]}})

    labelling.changed()

    assert labelling.labels(node) == {f"{MODEL}486x", f"{FEATURE}sse4.2"}
    [said] = labelling.told(NAMESPACE, ILLEGAL_NAME)[-1:]
    assert f'data["{node}"] has "My CPU", "a b", which no label can be named' in said


@proves("OSV-33", "OSV-38")
def test_what_is_not_offered_any_more_is_taken_off(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Check that outdated labels are removed, and all of them if no ConfigMap names the node any more.

    The label that marks the node as managed is then removed too. Labels of other owners stay.
    """
    node = work.node()
    labelling.label(node, {FOREIGN: "true"})
    labelling.offer({node: HASWELL})
    labelling.changed()
    labelling.offer({node: {"models": ["Penryn"], "features": ["avx"]}})
    labelling.changed()
    assert labelling.labels(node) == {f"{MODEL}Penryn", f"{FEATURE}avx"}

    labelling.withdraw()
    labelling.functions.answer("label-cpu", reference(how=events.REFERENCE_DELETED))

    assert labelling.labels(node) == set()
    labels = work.read_node(node)["metadata"]["labels"]
    assert MARK not in labels
    assert FOREIGN in labels
    assert patched(audit) == [node] * 3


@proves("OSV-38")
@pytest.mark.parametrize("entry", ["{", '{"models": [486], "features": []}', '{"models": [], "cpu": "Unheard"}'])
def test_what_cannot_be_read_changes_nothing(labelling: Labelling, work: Workload, audit: Audit, entry: str) -> None:
    """Check that a malformed entry is recorded in one Event and removes no labels, while valid entries apply.

    The entry may be about any node, so no node loses its labels because of it.
    """
    node, other = work.node(), work.node()
    labelling.offer({node: HASWELL})
    labelling.changed()
    before = labelling.labels(node)

    made = labelling.offer({node: entry, other: HASWELL})
    labelling.changed()

    assert labelling.labels(node) == labelling.labels(other) == before
    assert patched(audit) == [node, other]
    reasons = (MALFORMED_INPUT, UNKNOWN_MODEL)
    events_of = labelling.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    told = [event for event in events_of if event["involvedObject"].get("uid") == made["metadata"]["uid"]]
    assert len(told) == 1
    assert told[0]["reason"] in reasons
    assert f'data["{node}"]' in told[0]["message"]


def test_a_node_in_two_places_is_left_as_it_is(labelling: Labelling, work: Workload) -> None:
    """Check that a node named by two ConfigMaps gets no labels until one of them no longer names it.

    An Event names both ConfigMaps.
    """
    node = work.node()
    labelling.offer({node: HASWELL}, "one")
    labelling.offer({node: {"models": ["Penryn"], "features": []}}, "two")
    labelling.changed()
    assert labelling.labels(node) == set()
    assert any(
        f'one data["{node}"] and two data["{node}"] both name' in said
        for said in labelling.told(NAMESPACE, MALFORMED_INPUT)
    )

    labelling.withdraw("one")
    labelling.changed()

    assert labelling.labels(node) == {f"{MODEL}Penryn"}


@proves("C18")
def test_of_two_hyperconvergeds_the_oldest_counts(labelling: Labelling, work: Workload) -> None:
    """Check that the oldest HyperConverged of all namespaces applies.

    The other one gets an Event that it is ignored.
    """
    node, elsewhere = work.node(), work.add_namespace()
    labelling.offer({node: HASWELL})
    first = labelling.wish({"cpuModels": ["Haswell"]})["metadata"]
    second = labelling.wish({"cpuModels": ["Penryn"]}, namespace=elsewhere)["metadata"]
    older, younger = sorted((first, second), key=lambda item: (item["creationTimestamp"], item["uid"]))

    labelling.changed("HyperConverged")

    obsolete = {first["uid"]: "Haswell", second["uid"]: "Penryn"}[older["uid"]]
    assert f"{MODEL}{obsolete}" not in labelling.labels(node)
    assert len(labelling.told(younger["namespace"], SEVERAL)) == 1


@proves("OSV-39", "C29")
def test_a_node_that_is_skipped_keeps_its_labels_and_catches_up(labelling: Labelling, work: Workload) -> None:
    """Check that an annotated node keeps its labels, and is relabelled by the first tick after the annotation ends.

    The annotation ends with the value `false` or with its removal.
    """
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.changed()
    for end in ("false", None):
        labelling.annotate(node, {SKIP: "true"})
        before = labelling.labels(node)
        labelling.wish({"cpuModels": ["Haswell"] if end else [], "minCPUModel": "Nehalem" if end else ""})
        labelling.changed("HyperConverged")
        labelling.tick()
        assert labelling.labels(node) == before

        labelling.annotate(node, {SKIP: end})
        labelling.tick()

        assert (f"{MODEL}Haswell" in labelling.labels(node)) is (end is None)
        assert (f"{FEATURE}sse4.2" in labelling.labels(node)) is (end is None)


@proves("OSV-39")
@pytest.mark.parametrize("value", ["", "yes"])
def test_an_annotation_that_says_neither_skips_nothing_and_is_told(
    labelling: Labelling, work: Workload, value: str
) -> None:
    """Check that an invalid value of the skip annotation has no effect and causes one Event.

    `kubectl describe node` shows the Event.
    """
    node = work.node()
    labelling.annotate(node, {SKIP: value})
    labelling.offer({node: HASWELL})

    labelling.changed()
    labelling.tick()

    assert f"{MODEL}Haswell" in labelling.labels(node)
    found = labelling.admin.list("/api/v1/namespaces/default/events", fields=f"reason={SKIP_UNREAD}")["items"]
    [event] = [event for event in found if event["involvedObject"]["name"] == node]
    assert f'is "{value}", and the node is labelled all the same: write "true"' in event["message"]


@proves("OSV-37")
def test_who_asks_for_a_model_waits_for_a_labelled_node(labelling: Labelling, work: Workload) -> None:
    """Check that a pod with a node selector for a CPU model is scheduled once a node has that label."""
    node = work.node()
    pod = pod_on("", "asks")
    del pod["spec"]["nodeName"]
    pod["spec"]["nodeSelector"] = {f"{MODEL}Haswell": "true"}
    where = f"/api/v1/namespaces/{work.namespace}/pods"
    work.admin.create(where, pod)

    def is_unschedulable(item: dict[str, object] | None) -> bool:
        status = (item or {}).get("status")
        told = status.get("conditions") if isinstance(status, dict) else None
        return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in told or [])

    work.wait_for(f"{where}/asks", is_unschedulable)
    labelling.offer({node: HASWELL})
    labelling.changed()

    bound = work.wait_for(f"{where}/asks", lambda item: bool(item and item["spec"].get("nodeName")))
    assert bound["spec"]["nodeName"] == node


@proves("DRN-10")
def test_where_kubevirt_is_installed_nothing_is_labelled(
    labelling: Labelling, work: Workload, audit: Audit, kubevirt: str
) -> None:
    """Check that `label-cpu` writes nothing while KubeVirt is installed, and labels nodes at the next tick afterwards.

    KubeVirt's own node-labeller writes these labels.
    """
    node = work.node()
    labelling.offer({node: HASWELL})

    labelling.changed()
    labelling.tick()
    assert labelling.labels(node) == set()
    assert audit.writes_by() == []

    work.delete(kubevirt)
    labelling.tick()

    assert f"{MODEL}Haswell" in labelling.labels(node)


@proves("DRN-15")
def test_while_another_install_has_the_claim_nothing_is_labelled(
    labelling: Labelling, work: Workload, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `label-cpu` writes nothing while another install holds the install lease.

    The other install may have other ConfigMaps for the same nodes.
    """
    node, theirs = work.node(), Account("kubevirt-hyperconverged", "functions")
    labelling.offer({node: HASWELL})
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())  # drop the cached holder of the lease
    work.admin.create(LEASES, install_lease.claim_of(theirs, datetime.now(timezone.utc)))

    labelling.changed()
    assert audit.writes_by() == []

    work.delete(install_lease.CLAIM_PATH)
    labelling.changed()
    assert patched(audit) == [node]


@proves("X-3", "OSV-38")
def test_what_was_lost_is_found_by_a_tick_and_a_second_one_writes_nothing(
    labelling: Labelling, work: Workload, audit: Audit
) -> None:
    """Check that a tick repairs a lost event or a removed label, and that the next tick writes nothing."""
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.tick()
    labelling.label(node, {f"{MODEL}Haswell": None})
    labelling.tick()
    assert patched(audit) == [node] * 2

    labelling.tick()

    assert f"{MODEL}Haswell" in labelling.labels(node)
    assert len(audit.writes_by(f"{ACCOUNTS}label-cpu")) == 2


@proves("X-3a", "OSV-31")
def test_a_change_of_hyperconverged_whose_event_was_lost_is_found_by_a_tick(
    labelling: Labelling, work: Workload
) -> None:
    """Check that a tick removes the label of a model that HyperConverged lists although the event was lost."""
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.tick()
    assert f"{MODEL}Haswell" in labelling.labels(node)
    labelling.wish({"cpuModels": ["Haswell"]})

    labelling.tick()

    assert f"{MODEL}Haswell" not in labelling.labels(node)


def test_the_status_of_hyperconverged_begins_no_round(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Check that an update of only the HyperConverged's status starts no round.

    The generation changes only with the spec. Ticks repair other differences.
    """
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.wish({})
    labelling.changed("HyperConverged")
    labelling.label(node, {f"{MODEL}Haswell": None})

    labelling.changed("HyperConverged")
    assert patched(audit) == [node]

    labelling.wish({"cpuModels": ["Penryn"]})
    labelling.changed("HyperConverged")
    assert labelling.labels(node) == {f"{MODEL}Haswell", *ABOVE_PENRYN}


@proves("X-2")
def test_a_round_whose_first_answer_is_lost_begins_by_the_same_event_again(
    labelling: Labelling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a redelivered event starts the round again if the first reply was lost.

    This also holds if an update of the HyperConverged's status arrived in between. After the end of the round, a status
    update starts no round.
    """
    on_two_pages(labelling, monkeypatch)
    labelling.offer({labelling.work.node(): HASWELL})
    labelling.wish({})
    spec, status = reference(hyperconverged.KIND), reference(hyperconverged.KIND)

    assert all(labelling.functions.answer("label-cpu", event) for event in (spec, status, spec))
    assert labelling.go_on(spec) == 2

    assert labelling.functions.answer("label-cpu", status) is None


@proves("X-6")
def test_a_node_that_somebody_writes_meanwhile_is_read_again(hindered_labelling: Labelling, faults: Faults) -> None:
    """Check that a node with a conflicting write is read again when the broker redelivers the event.

    A node that got the skip annotation meanwhile stays unchanged.
    """
    labelling, work = hindered_labelling, hindered_labelling.work
    skipped, labelled = work.node(), work.node()
    labelling.offer({"kind": {**HASWELL, "nodes": [skipped, labelled]}})

    def overtake(request: str) -> None:
        if request == "patch nodes 1":
            labelling.annotate(skipped, {SKIP: "true"})
            labelling.label(labelled, {OLDER: "true"})

    faults.spoil(overtake)
    answer = labelling.functions.post("label-cpu", reference())
    assert (answer.status_code, answer.text) == (503, "somebody else wrote it meanwhile\n")
    labelling.changed()

    assert labelling.labels(skipped) == set()
    assert labelling.labels(labelled) == {f"{MODEL}Haswell", f"{MODEL}Penryn", *ABOVE_PENRYN}
    assert faults.seen["patch nodes"] == 3


@proves("X-6")
def test_after_a_conflict_a_node_is_labelled_by_the_config_maps_as_they_are_then(
    hindered_labelling: Labelling, faults: Faults
) -> None:
    """Check that the labels after a conflict come from the latest ConfigMaps.

    The other writer, for example another replica of this function, may have used a newer ConfigMap.
    """
    labelling, (first, second) = hindered_labelling, sorted(hindered_labelling.work.node() for _ in range(2))
    labelling.offer({"kind": {**HASWELL, "nodes": [first, second]}})

    def overtake(request: str) -> None:
        if request == "patch nodes 1":
            labelling.offer({"kind": {"models": ["Penryn"], "features": [], "nodes": [first, second]}})
            labelling.label(first, {f"{MODEL}Penryn": "true", MARK: "true"})

    faults.spoil(overtake)
    labelling.changed()

    assert labelling.labels(first) == labelling.labels(second) == {f"{MODEL}Penryn"}


@proves("OSV-38")
def test_a_search_for_unknown_nodes_that_hangs_keeps_no_node_from_its_labels(
    hindered_labelling: Labelling, faults: Faults
) -> None:
    """Check that a hanging search for unknown nodes does not delay labels, because it runs after them."""
    labelling, node = hindered_labelling, hindered_labelling.work.node()
    labelling.offer({node: HASWELL})
    faults.spoil(lambda request: SILENCE if request == "list nodes 2" else None)

    labelling.changed()

    assert f"{MODEL}Haswell" in labelling.labels(node)


@pytest.mark.slow
@proves("X-6")
def test_a_round_ends_though_every_patch_hangs(
    hindered_labelling: Labelling, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a round ends even if every patch hangs, for example because of an admission webhook.

    No page is repeated, and the event of the last page fails, so the broker retries it.
    """
    labelling = hindered_labelling
    assert all(labelling.work.node() for _ in range(30))
    nodes = on_two_pages(labelling, monkeypatch)
    labelling.offer({"kind": {**HASWELL, "nodes": nodes}})
    faults.spoil(lambda request: SILENCE if request.startswith("patch nodes") else None)

    due = labelling.functions.answer("label-cpu", reference())
    assert due is not None
    last = labelling.functions.post("label-cpu", due)

    assert data_of(due)["after"]
    assert last.status_code == 503
    assert last.text.startswith("no answer from the API server")


@proves("X-6")
def test_a_round_whose_last_page_cannot_be_written_is_known_to_have_ended(
    hindered_labelling: Labelling, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a round counts as finished although its last page cannot be written.

    An update of the HyperConverged's status starts no other round, and the event of the last page is still retried.
    """
    labelling, work = hindered_labelling, hindered_labelling.work
    assert work.node()
    nodes = on_two_pages(labelling, monkeypatch)
    labelling.offer({nodes[-1]: HASWELL})
    labelling.wish({})
    faults.spoil(lambda request: Fault(500, "broken") if request.startswith("patch nodes") else None)

    last = labelling.functions.answer("label-cpu", reference(hyperconverged.KIND))
    assert last is not None
    assert labelling.functions.post("label-cpu", last).status_code == 503

    assert labelling.functions.answer("label-cpu", reference(hyperconverged.KIND)) is None
    faults.speak_again()
    assert labelling.functions.answer("label-cpu", last) is None
    assert f"{MODEL}Haswell" in labelling.labels(nodes[-1])


@proves("X-6")
def test_a_hyperconverged_whose_only_page_cannot_be_written_is_looked_at_again(
    hindered_labelling: Labelling, faults: Faults
) -> None:
    """Check that a redelivered HyperConverged event starts its round again if its only page could not be written."""
    labelling, node = hindered_labelling, hindered_labelling.work.node()
    labelling.offer({node: HASWELL})
    labelling.wish({})
    faults.spoil(lambda request: Fault(500, "broken") if request == "patch nodes 1" else None)

    assert labelling.functions.post("label-cpu", reference(hyperconverged.KIND)).status_code == 503
    labelling.changed(hyperconverged.KIND)

    assert f"{MODEL}Haswell" in labelling.labels(node)


@proves("X-6")
def test_a_node_that_cannot_be_written_stops_no_other(hindered_labelling: Labelling, faults: Faults) -> None:
    """Check that a node that cannot be patched does not stop the others.

    The next tick repeats a rejected patch, and the round repeats a failed one. If every patch of a page fails, the
    event is retried.
    """
    labelling, work = hindered_labelling, hindered_labelling.work
    nodes = [work.node(), work.node()]
    labelling.offer({"kind": {**HASWELL, "nodes": nodes}})

    faults.spoil(lambda request: Fault(500, "broken") if request.startswith("patch nodes") else None)
    answer = labelling.functions.post("label-cpu", reference())
    assert (answer.status_code, answer.text) == (503, "broken\n")
    faults.spoil(lambda request: Fault(403, "not you") if request == "patch nodes 1" else None)
    labelling.changed()
    assert sorted(map(bool, map(labelling.labels, nodes))) == [False, True]
    faults.speak_again()
    labelling.tick()
    assert all(map(labelling.labels, nodes))

    labelling.wish({"cpuModels": ["Haswell"]})
    faults.spoil(lambda request: Fault(500, "broken") if request == "patch nodes 1" else None)
    labelling.changed("HyperConverged")
    assert not any(f"{MODEL}Haswell" in labelling.labels(node) for node in nodes)


@proves("X-1")
@pytest.mark.parametrize("after", [7, ["a"], {"a": 1}, True])
def test_a_place_that_is_no_text_is_refused(functions: Functions, after: object) -> None:
    """Check that an invalid position in the event data gets 400 and causes no API request."""
    about = events.Reference("v1", "cpu-labels", "a-round", kind="Round")
    answer = functions.post("label-cpu", events.event(events.LABELS_DUE, "test", about, data={"after": after}))

    assert (answer.status_code, answer.text) == (400, "data.after is no text\n")


def test_a_place_that_the_server_does_not_know_is_the_beginning(labelling: Labelling, work: Workload) -> None:
    """Check that a round starts at the first page if the API server no longer accepts the continue token.

    Continue tokens expire after some minutes.
    """
    node = work.node()
    labelling.offer({node: HASWELL})
    about = events.Reference("v1", "cpu-labels", "a-round", kind="Round")

    labelling.go_on(events.event(events.LABELS_DUE, "test", about, data={"after": "forgotten"}))

    assert f"{MODEL}Haswell" in labelling.labels(node)


@proves("X-3")
def test_a_tick_reaches_the_last_nodes_though_the_server_has_forgotten_the_pages_before(
    hindered_labelling: Labelling, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that ticks reach the last page although the API server rejects the expired continue token.

    With thousands of nodes, etcd is compacted between ticks. The API server's 410 response has a fresh token, as in
    this test.
    """
    labelling = hindered_labelling
    assert all(labelling.work.node() for _ in range(2))
    nodes = on_two_pages(labelling, monkeypatch)
    place = json.dumps({"v": "meta.k8s.io/v1", "rv": -1, "start": f"{nodes[-2]}\0"}).encode()
    told = {"reason": "Expired", "metadata": {"continue": base64.urlsafe_b64encode(place).decode().rstrip("=")}}
    labelling.offer({nodes[-1]: HASWELL})
    faults.spoil(lambda request: Fault(410, "too old", body=told) if request == "list nodes 2" else None)

    for _ in range(2):
        labelling.functions.answer("label-cpu", tick())

    assert f"{MODEL}Haswell" in labelling.labels(nodes[-1])


def test_another_kind_concerns_nobody(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Check that an event of another kind is ignored; a Secret's update has the same event type."""
    node = work.node()
    labelling.offer({node: HASWELL})

    labelling.changed("Secret")

    assert audit.writes_by() == []


def test_where_nothing_is_offered_a_tick_costs_two_requests(hindered_labelling: Labelling, faults: Faults) -> None:
    """Check that a tick lists only ConfigMaps and managed nodes if neither exist.

    If they exist, it makes two more lists, and reads the install lease.
    """
    labelling, work = hindered_labelling, hindered_labelling.work
    faults.spoil(lambda _request: None)
    labelling.functions.answer("label-cpu", tick())
    assert faults.seen == {"list configmaps": 1, "list nodes": 1}

    labelling.offer({work.node(): HASWELL})
    labelling.tick()
    faults.spoil(lambda _request: None)
    labelling.functions.answer("label-cpu", tick())

    looked = ("list configmaps", "list nodes", "list hyperconvergeds", "list kubevirts")
    del faults.seen["get leases"]  # the install lease is read only about once a minute
    assert faults.seen == dict.fromkeys(looked, 1)


@proves("OSV-38")
def test_half_a_character_in_one_entry_stops_no_node(labelling: Labelling, work: Workload) -> None:
    """Check that an entry with a lone surrogate counts as malformed and does not affect other nodes.

    JSON can contain a lone surrogate, but it has no UTF-8 encoding.
    """
    node = work.node()
    labelling.offer({node: HASWELL, "other": '{"models": ["\\ud800"], "features": []}'})
    labelling.changed()
    assert labelling.labels(node)
