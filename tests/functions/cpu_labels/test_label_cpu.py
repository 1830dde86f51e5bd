"""`label-cpu` on a real API server: which nodes get which labels, by one patch each, and what changes nothing."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone

import pytest

from eventing import events
from functions import installs as acting
from functions.data import data_of
from kube import install_claim
from kube.cpu import hyperconverged, lookup
from kube.cpu.models import features_of
from kube.cpu.node_patch import FEATURE, MARK, MODEL, SKIP
from kube.cpu.problems import ILLEGAL_NAME, MALFORMED_INPUT, SEVERAL, SKIP_UNREAD, UNKNOWN_MODEL, UNKNOWN_NODE
from kube.door.api_errors import Rejected
from kube.install_claim import Account
from kube.nodes import NODES
from kube.paths import LEASES, NAMESPACE
from tests.faults import SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import HASWELL, Labelling, patched, reference
from tests.functions.hints import tick
from tests.kube.cpu.test_models import PRINTED
from tests.proofs import proves
from tests.workload import OURS as ACCOUNTS
from tests.workload import Audit, Workload, pod_on, written

ABOVE_PENRYN = {FEATURE + name for name in (*PRINTED.split(), "smep")}
OLDER = "feature.node.kubernetes.io/cpu-feature-avx"
FOREIGN = "host-model-cpu.node.kubevirt.io/Haswell"


def on_two_pages(labelling: Labelling, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the nodes that are there come on two pages, the last one on the second; returns their names."""
    nodes = [node["metadata"]["name"] for node in labelling.admin.list(NODES)["items"]]
    monkeypatch.setattr(lookup, "PAGE", len(nodes) - 1)
    return nodes


@proves("OSV-30", "OSV-33", "OSV-35", "OSV-36", "OSV-38", "C13")
def test_a_node_is_labelled_with_what_it_offers(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Not with a model that is always obsolete, nor with what the least model has; by one patch, and once."""
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
    """Its label goes and returns; what is always obsolete stays so, and is written nowhere."""
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
    """`486` without quotes."""
    with pytest.raises(Rejected, match="must be of type string"):
        labelling.wish({"cpuModels": [486]})


@proves("OSV-32", "C12")
@pytest.mark.parametrize("field", ["minCPUModel", "minCPU"])
def test_the_least_model_says_which_features_need_no_label(labelling: Labelling, work: Workload, field: str) -> None:
    """Without one it is Penryn; under either name."""
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
    """At the object whose field it is, once however often it is seen."""
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
    """A model that no table has, and a node that is not there: both are heeded all the same."""
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
    """The API server would refuse the whole patch."""
    node = work.node()
    labelling.offer({node: {"models": ["My CPU", "486x"], "features": ["sse4.1", "a b", "sse4.2"]}})

    labelling.changed()

    assert labelling.labels(node) == {f"{MODEL}486x", f"{FEATURE}sse4.2"}
    [said] = labelling.told(NAMESPACE, ILLEGAL_NAME)[-1:]
    assert f'data["{node}"] has "My CPU", "a b", which no label can be named' in said


@proves("OSV-33", "OSV-38")
def test_what_is_not_offered_any_more_is_taken_off(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """And all of it, with the mark, when nothing is said of the node any more; others' labels stay."""
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
    """It may be about any node, so none loses its labels by it; what can be read beside it holds, and it is told."""
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
    """Both are named; when one lets it go the other holds."""
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
    """Whichever namespace it is in; the other is told that it is not read."""
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
    """`false`, or no annotation, ends it at the next tick."""
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
    """Once, where `kubectl describe node` shows it."""
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
    """The scheduler knows the labels by their names alone."""
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
    """Its own labeller does it; when KubeVirt is removed the next tick takes over."""
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
    """That one may be told other things of the same nodes."""
    node, theirs = work.node(), Account("kubevirt-hyperconverged", "functions")
    labelling.offer({node: HASWELL})
    monkeypatch.setattr(acting, "CLAIMS", acting.Claims())  # what this process knew of the claim before
    work.admin.create(LEASES, install_claim.claim_of(theirs, datetime.now(timezone.utc)))

    labelling.changed()
    assert audit.writes_by() == []

    work.delete(install_claim.CLAIM_PATH)
    labelling.changed()
    assert patched(audit) == [node]


@proves("X-3", "OSV-38")
def test_what_was_lost_is_found_by_a_tick_and_a_second_one_writes_nothing(
    labelling: Labelling, work: Workload, audit: Audit
) -> None:
    """An event, or a label that somebody took off."""
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
    """The model that it names since is not labelled any more."""
    node = work.node()
    labelling.offer({node: HASWELL})
    labelling.tick()
    assert f"{MODEL}Haswell" in labelling.labels(node)
    labelling.wish({"cpuModels": ["Haswell"]})

    labelling.tick()

    assert f"{MODEL}Haswell" not in labelling.labels(node)


def test_the_status_of_hyperconverged_begins_no_round(labelling: Labelling, work: Workload, audit: Audit) -> None:
    """Its generation tells a change of the spec; what differs meanwhile is for the tick."""
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
    """Also of a HyperConverged whose status was written meanwhile; when the round has ended that begins none."""
    on_two_pages(labelling, monkeypatch)
    labelling.offer({labelling.work.node(): HASWELL})
    labelling.wish({})
    spec, status = reference(hyperconverged.KIND), reference(hyperconverged.KIND)

    assert all(labelling.functions.answer("label-cpu", event) for event in (spec, status, spec))
    assert labelling.go_on(spec) == 2

    assert labelling.functions.answer("label-cpu", status) is None


@proves("X-6")
def test_a_node_that_somebody_writes_meanwhile_is_read_again(hindered_labelling: Labelling, faults: Faults) -> None:
    """And left as it is, if he skipped it. The broker brings the event again."""
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
    """Whoever wrote it first may have known a later one, as another pod of this function does."""
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
    """It has what time the labels leave."""
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
    """As before an admission webhook that does not answer: no page is looked at again and again, and the last fails."""
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
    """The HyperConverged's status begins no other, and the last page's own event is tried again all the same."""
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
    """By the same event, which the broker brings again."""
    labelling, node = hindered_labelling, hindered_labelling.work.node()
    labelling.offer({node: HASWELL})
    labelling.wish({})
    faults.spoil(lambda request: Fault(500, "broken") if request == "patch nodes 1" else None)

    assert labelling.functions.post("label-cpu", reference(hyperconverged.KIND)).status_code == 503
    labelling.changed(hyperconverged.KIND)

    assert f"{MODEL}Haswell" in labelling.labels(node)


@proves("X-6")
def test_a_node_that_cannot_be_written_stops_no_other(hindered_labelling: Labelling, faults: Faults) -> None:
    """What is refused the next tick writes, what fails the next look; where all fails, the event is tried again."""
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
    """Nothing of it reaches the API server."""
    about = events.Reference("v1", "cpu-labels", "a-round", kind="Round")
    answer = functions.post("label-cpu", events.event(events.LABELS_DUE, "test", about, data={"after": after}))

    assert (answer.status_code, answer.text) == (400, "data.after is no text\n")


def test_a_place_that_the_server_does_not_know_is_the_beginning(labelling: Labelling, work: Workload) -> None:
    """It forgets them after some minutes."""
    node = work.node()
    labelling.offer({node: HASWELL})
    about = events.Reference("v1", "cpu-labels", "a-round", kind="Round")

    labelling.go_on(events.event(events.LABELS_DUE, "test", about, data={"after": "forgotten"}))

    assert f"{MODEL}Haswell" in labelling.labels(node)


@proves("X-3")
def test_a_tick_reaches_the_last_nodes_though_the_server_has_forgotten_the_pages_before(
    hindered_labelling: Labelling, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As etcd is compacted while ticks go round thousands: the answer to the old place has another one, as here."""
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
    """A Secret's change comes by the same type of event."""
    node = work.node()
    labelling.offer({node: HASWELL})

    labelling.changed("Secret")

    assert audit.writes_by() == []


def test_where_nothing_is_offered_a_tick_costs_two_requests(hindered_labelling: Labelling, faults: Faults) -> None:
    """ConfigMaps and marked nodes: none of either. Where something is, two more, and the claim."""
    labelling, work = hindered_labelling, hindered_labelling.work
    faults.spoil(lambda _request: None)
    labelling.functions.answer("label-cpu", tick())
    assert faults.seen == {"list configmaps": 1, "list nodes": 1}

    labelling.offer({work.node(): HASWELL})
    labelling.tick()
    faults.spoil(lambda _request: None)
    labelling.functions.answer("label-cpu", tick())

    looked = ("list configmaps", "list nodes", "list hyperconvergeds", "list kubevirts")
    del faults.seen["get leases"]  # whose the cluster is, is asked once a minute where somebody has the claim
    assert faults.seen == dict.fromkeys(looked, 1)


@proves("OSV-38")
def test_half_a_character_in_one_entry_stops_no_node(labelling: Labelling, work: Workload) -> None:
    """JSON may say one, and nobody can write it: that entry is malformed, and told."""
    node = work.node()
    labelling.offer({node: HASWELL, "other": '{"models": ["\\ud800"], "features": []}'})
    labelling.changed()
    assert labelling.labels(node)
