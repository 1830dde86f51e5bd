"""The claimed requirements, and the pytest mark of the tests that prove them.

`python -m tests.proofs` prints docs/requirements.md, which is generated from this list and from the marks of all tests.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "requirements.md"
MARK = "proves"
COLLECTED = pytest.StashKey["Collection"]()
"""Stash key of the tests found by a run that collects all of them."""
TARGETS = {"e2e": "e2e", "real": "e2e-real", "installs": "e2e-installs", "slow": "test-all", "alone": "test-all"}
"""Mark of a test → the make target that runs it; `make test` runs tests without any of these marks."""
CHAPTERS = {
    "X": "All of it",
    "NMO": "The operator of medik8s",
    "KNM": "The operator of KubeVirt",
    "DRN": "Draining nodes of virtual machines",
    "OSV": "Maintenance by console, command line and object",
    "5, top": "The kinds of OpenShift and KubeVirt",
    "MUT": "The upgrade mutex",
    "C": "Where the documents contradict each other",
}
REQUIREMENTS = {
    "X-1": "Each step is a small HTTP function: an event in, one object changed, the next event out.",
    "X-2": "An event is a hint: repeated, late or out of order it leads to the same end.",
    "X-3": "What the sources missed, a tick finds; where nothing is to be done it writes nothing.",
    "X-3a": "A tick also finds lost events of mutex kinds, VMIs, HyperConverged and the certificates' Secrets.",
    "X-4": "Triggers filter by exact attributes, one kind to one set of functions.",
    "X-5": "A deletion waits for its node to be given back, however long everything is down.",
    "X-6": "Conflicts are read again, closed budgets waited for, refusals told, failures tried again.",
    "X-6a": "Each request of each step may fail in each way: cured, the step ends as without the failure.",
    "X-7": "Three API groups, one engine; a node named twice is held until both objects are gone.",
    "NMO-1": "The API is served under its name and short name, and its sample applies unchanged.",
    "NMO-2": "`spec.nodeName` is required text, `spec.reason` is free and may change.",
    "NMO-3": "The node is cordoned, and no new pod is scheduled there.",
    "NMO-4": "Two taints without value are added; what is there already stays as and where it is.",
    "NMO-5": "Cordon and taints are complete before the first eviction; without them there is none.",
    "NMO-6": "Pods leave through the eviction subresource; who may not go yet stays pending.",
    "NMO-7": "DaemonSet pods stay, are named in a warning, and count in the total alone.",
    "NMO-8": "Pods that no controller makes again leave too, and are named in a warning.",
    "NMO-8a": "The warning is one line in the words of the documents.",
    "NMO-9": "Static pods stay, finished pods leave, emptyDir holds nobody back.",
    "NMO-10": "`Running`, then `Succeeded` at 100 percent with nothing pending; progress never goes back.",
    "NMO-11": "The two counts are taken before the first eviction, and stay.",
    "NMO-12": "`pendingPods` shrinks; `lastUpdate` moves with each write, and no write is for its sake.",
    "NMO-13": "`lastError` says what is wrong now, and is gone after a clean pass.",
    "NMO-14": "Deleting gives the node back: schedulable, our taints off, nothing else touched.",
    "NMO-15": "`kubectl delete` returns promptly, also amid a drain; the name is free again.",
    "NMO-16": "A finalizer of our own holds the object; the older operator's is taken off as well.",
    "NMO-17": "The log has the lines that operators grep for, once for each action.",
    "NMO-17a": "A deletion's log begins as the documents' does; records carry their keys, taints are JSON.",
    "NMO-18": "A webhook refuses and warns at the door; without it the rules hold all the same.",
    "NMO-19": "An unknown node is refused at the door; past it `Failed`, no write elsewhere, taken up when it comes.",
    "NMO-20": "A node that is deleted takes its maintenance along.",
    "NMO-21": "`spec.nodeName` cannot be changed.",
    "NMO-22": "One maintenance for a node: a second is refused; past the door `Failed`, its deletion frees nothing.",
    "NMO-23": "A control-plane node is refused when etcd would lose its quorum; one that is down already never is.",
    "NMO-24": "One command installs, again it changes nothing; without Knative it fails, and nothing works by half.",
    "NMO-25": "One command gathers what explains a maintenance, or names each right that is missing.",
    "NMO-25a": "The archive also has mutex kinds, machines, HyperConverged, and of certificates names and dates only.",
    "NMO-26": "`make check` and `make cluster-functest` fail with what they check; one target pushes the image.",
    "NMO-26a": "Make targets deploy, try the product on a cluster, build and push its image; or say why not, and fail.",
    "NMO-27": "Kubernetes Events tell begin, success, failure and end; a lease for each node is respected.",
    "NMO-27a": "The lease is that of all remediators of medik8s; without it nothing begins, and who loses it gives up.",
    "NMO-27b": "A node is excluded from remediation while it is maintained, unless it was so before.",
    "KNM-1": "This group is served beside the first and does the same.",
    "KNM-1a": "The document's sample has the document's name, and its commands work as written.",
    "KNM-2": "The status has all its fields, `totalPods` in this spelling too.",
    "KNM-3": "`totalPods` and `evictionPods` are counted at the start.",
    "KNM-4": "The drain taint of this group is `kubevirt.io/drain`; one that is there with a value is kept.",
    "KNM-5": "Log records are JSON with the documented keys and messages.",
    "KNM-6": "The pods left are those that `kubectl drain` leaves.",
    "KNM-7": "The document's make targets exist; `container-build` and `container-push` are two of them.",
    "DRN-1": "Our drain takes the documented flags, old spelling and new, and does as `kubectl drain` does.",
    "DRN-1a": "`spec.drain` carries kubectl's flags; what they refuse is a blocked pod, with flag and remedy.",
    "DRN-2": "emptyDir: gone with its flag; without it nothing is evicted, and the pod is named.",
    "DRN-3": "DaemonSets: left alone with their flag; without it nothing is evicted, and the pod is named.",
    "DRN-4": "Pods without controller: gone with force; without it nothing is evicted, and the pod is named.",
    "DRN-5": "A pod selector limits the drain; one that cannot be read is refused before the cordon.",
    "DRN-6": "A node cordoned or drained by hand stays so until it is uncordoned by hand.",
    "DRN-7": "A virtual machine that says `evictionStrategy: LiveMigrate` is migrated, and no other.",
    "DRN-8": "A drain taint, set by hand or by us, makes one migration for each such machine, within bounds.",
    "DRN-9": "A budget keeps each of them, comes and goes with it; a failed migration is tried again.",
    "DRN-10": "Where KubeVirt itself is installed we migrate, protect and label nothing.",
    "DRN-11": "One without a strategy is shut down, and restarted elsewhere if its run strategy says so.",
    "DRN-12": "The oldest API is created and used by the document's own two files.",
    "DRN-13": "Under it the node is not schedulable; node and log have both taints in the document's order.",
    "DRN-14": "The files of the stepwise install create in their order, and its workloads become ready.",
    "DRN-15": "Beside HyperConverged it installs into that namespace; of two installs one acts, and the other waits.",
    "DRN-15a": "That install serves the oldest API too.",
    "DRN-16": "The walk-through: a machine is started, its node drained, and it is Scheduling, then Running elsewhere.",
    "DRN-16a": "An instance has interfaces, with address, mac and name.",
    "OSV-1": "Command line and object are two ways to the same end.",
    "OSV-2": "One that can be migrated is; one that cannot stays, and says why.",
    "OSV-3": "Who is shut down is restarted elsewhere by its run strategy, and by Manual not at all.",
    "OSV-4": "A machine that names no strategy has none.",
    "OSV-5": "With the object no new workload comes and those that can go leave; without it the node takes them again.",
    "OSV-6": "What left does not come back by itself.",
    "OSV-7": "The console starts a maintenance, of one node or several, after a confirmation and for those who may.",
    "OSV-8": "The console stops it in the same way, and offers only what fits the node's state.",
    "OSV-9": "The console shows progress, pending pods, the latest error and the reason.",
    "OSV-10": "Drain and uncordon are commands of kubectl with the documented flags.",
    "OSV-10a": "Cordon is a command, too: cordon, drain and uncordon one after another do as those of kubectl.",
    "OSV-11": "The document's object is applied and deleted by its file, with the document's words printed.",
    "OSV-12": "`kubectl describe node` shows that the node is not schedulable, and when it is again, once each.",
    "OSV-12a": "Ours beside a real kubelet: its Event, which may come later, has words of its own.",
    "OSV-13": "`kubectl get NodeMaintenance -o yaml` lists the tasks in the documented fields.",
    "OSV-14": "Who has no right to it starts no maintenance.",
    "OSV-15": "The object moves work away and no more: on a node that is not ready it keeps its state and waits.",
    "OSV-20": "Certificates are renewed with no manual step; what is missing or corrupt is issued again at once.",
    "OSV-21": "KubeVirt's every day, CDI's every 15 days, MAC pool's every year; none begins in the future.",
    "OSV-22": "Old and new authority are published together before a server changes: no client is locked out.",
    "OSV-23": "A label picks the Secrets, its value the component; what has no label is never touched.",
    "OSV-30": "Fifteen CPU models are always obsolete: no node is labelled with one.",
    "OSV-31": "Models that HyperConverged names are obsolete too, until it names them no more.",
    "OSV-32": "The least model is Penryn where none is named; an unknown one is told, and changes nothing.",
    "OSV-33": "Features are labelled that the least model has not; what no label can be named is told.",
    "OSV-34": "The features of Penryn and Haswell are those of the document.",
    "OSV-35": "A Haswell is labelled with the features that the document prints.",
    "OSV-36": "Labels have KubeVirt's names; older forms go, and labels of others stay.",
    "OSV-37": "Who asks for a CPU model runs on labelled nodes only, and waits while there is none.",
    "OSV-38": "What nodes offer is told in ConfigMaps; what cannot be read there is told, and changes nothing.",
    "OSV-39": "A node that is annotated to be skipped keeps its labels as they are, and catches up afterwards.",
    "5, top": "Tests have the real kinds of OpenShift and KubeVirt, which accept or refuse the documents' objects.",
    "MUT-1": "The accounts may do what document 004 lists and no more; a refusal is told and stops the run.",
    "MUT-1a": "The accounts together have the document's rights, and create Jobs where an administrator lists it.",
    "MUT-2": "A node without a version stops the run before it begins, by name.",
    "MUT-3": "The canary is there, not paused, selects workers only, and is in no target; else nothing is touched.",
    "MUT-4": "One overlay installs the mutex beside the product.",
    "MUT-4a": "The document's release steps have a counterpart.",
    "MUT-10": "A rule's Jobs are judged by the API server in a dry run, at each change; no Job is created.",
    "MUT-11": "A rule changes nothing but its own status.",
    "MUT-12": "A rule whose label would be too long is invalid, and says so.",
    "MUT-13": "A rule's name may have dots.",
    "MUT-20": "A target is valid when its pools are there, and lists their nodes, each once.",
    "MUT-21": "Who belongs to a pool is told by its whole selector, in an order that is always the same.",
    "MUT-22": "A target changes nothing else; its list follows nodes and pools, and a run keeps its own.",
    "MUT-30": "What a run config names is judged whenever it changes; what becomes valid lets the run begin.",
    "MUT-31": "Versions are compared as semantic versions; without one that is wanted nothing is written.",
    "MUT-32": "Before the control plane is upgraded nothing is touched.",
    "MUT-33": "Pools are paused before labels, labels before the canary, the canary before any Job.",
    "MUT-34": "Pausing twice is pausing once; pools that were paused before are named, and go on at the end.",
    "MUT-35": "Each node of each target has a label for each rule, upgraded already or not.",
    "MUT-36": "The canary takes whoever carries no label of the run, also when its own file is applied amid the run.",
    "MUT-37": "A target's pool keeps its expressions, and takes whoever carries the labels.",
    "MUT-38": "Workers in no target are named in a warning before anything is edited.",
    "MUT-40": "Jobs run one at a time, in the order of the rules.",
    "MUT-41": "A Job is its rule's, told of node and rule, elsewhere than on its node; cleanup Jobs alike.",
    "MUT-42": "Each Job is created once, however often events come; one that vanished stops the run.",
    "MUT-43": "Labels go when all Jobs of the node are complete, in one write; taken off early they come back.",
    "MUT-44": "At most one node is released and unfinished, over all pools, targets and runs.",
    "MUT-45": "The node is done when it carries the version that is wanted now; it may not take for ever.",
    "MUT-46": "Cleanup Jobs follow the upgrade, before the next node; one that fails stops the run.",
    "MUT-47": "A failed Job stops the run: labels, pauses and canary stay, later nodes are untouched.",
    "MUT-48": "A retry resumes at the failed rule of the failed node; finished nodes are left alone.",
    "MUT-49": "In the end pools and canary are as they were, and no node has a label of the run.",
    "MUT-50": "A finished run writes nothing; a new version is a new run.",
    "MUT-51": "A run that is deleted, in whatever state, gives everything back and upgrades nobody.",
    "MUT-52": "Requests are verified with the cluster's CA, unless the run that they are for says otherwise.",
    "C1": "`totalpods` and `totalPods` are both there, with one value.",
    "C2": "Each group is a CRD of its own, with one schema.",
    "C3": "The group selects the drain taint; either key has virtual machines migrate.",
    "C4": "A taint is matched by key and effect, whatever its value.",
    "C5": "Log records name the cluster-scoped object: an empty namespace, and the name of the NodeMaintenance.",
    "C6": "`Failed` is the phase of an unknown node and of a second maintenance.",
    "C7": "Bare resource names reach the group whose document uses them.",
    "C8": "The deletion of a NodeMaintenance makes its node schedulable, and moves no pod.",
    "C9": "The cordon leaves the node's readiness alone.",
    "C10": "A maintenance powers no node off: the node stays Ready, and no other object than a drain's is written.",
    "C11": "A drain takes `--delete-local-data` and `--delete-emptydir-data` alike.",
    "C12": "The least CPU model is read as `minCPUModel`, and as `minCPU`.",
    "C13": "A Haswell is labelled with `smep`, too.",
    "C14": "The strategy is `LiveMigrate`; `LiveMigration` is the gate of that feature.",
    "C15": "Run strategies: `Always` is the word, and `running: true` says the same.",
    "C16": "Who is shut down is recreated on another node unless its strategy is Manual.",
    "C17": "Machines are migrated; who has no strategy is restarted.",
    "C18": "HyperConverged is found by its name in any namespace; of two the oldest counts.",
    "C19": "The status has `drainProgress` and `lastUpdate` in all three API groups.",
    "C20": "`lastError` is the latest error of any kind.",
    "C21": "`evictionPods` is the number of pods to evict at the start, and stays.",
    "C22": "A node that was cordoned by hand before is schedulable after its maintenance.",
    "C23": "The ClusterVersion is `version`, or `cluster` as the document has it; its history a list, or text.",
    "C24": "The canary's own expressions are replaced during a run, and restored.",
    "C25": "Canary and targets are both edited.",
    "C26": "A run pauses pools once the control plane is upgraded and a worker is not; sooner only if it says so.",
    "C27": "The version is the label's value.",
    "C28": "The samples have no namespace, and are applied into the one that they name.",
    "C29": "A node is skipped while its annotation says `true`; `false` ends that.",
    "C30": "`container-build-and-push-community` and `container-build container-push` make and push the same image.",
    "C31": "Logs are lines of JSON with the messages of both documents.",
    "C32": "Cordon and taints come in any order, and before the first eviction.",
}
_LONG = "each of its proofs takes more than five seconds"
NOT_IN_MAKE_TEST = {"KNM-6": _LONG, "DRN-15a": _LONG, "OSV-1": _LONG, "X-6a": "it is about every request of every step"}
"""Requirement → the reason why `make test` does not prove it."""
HEAD = """# Requirements

The requirements, and the tests that prove them. A test proves a requirement if it has the mark `@proves` of
`tests/proofs.py` with the requirement's id. The last section lists the tests that `make test` leaves out.
`make requirements` writes this page; a test fails if the page is not up to date.
"""
LEFT_OUT = """## Tests that `make test` leaves out

`make test-all` runs the tests marked `slow` or `alone`; `make e2e`, `make e2e-real` and `make e2e-installs` run
the tests with their own marks.

| file | target | tests |
|---|---|---|"""


def proves(*ids: str) -> pytest.MarkDecorator:
    """Return the mark of a test that proves these requirements. Raises `ValueError` for an unknown id."""
    unknown = [each for each in ids if each not in REQUIREMENTS]
    if unknown or not ids:
        raise ValueError(f"no requirement: {', '.join(unknown) or 'none is named'}")
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)(*ids)
    return mark


@dataclass
class Collection:
    """The collected tests by name, without their parameters.

    Attributes:
        proofs: Requirement → tests that prove it.
        targets: Test → the make target that runs it.
    """

    proofs: dict[str, list[str]]
    targets: dict[str, str]


def collection(items: Iterable[pytest.Item]) -> Collection:
    """Return which requirements the tests prove, and which make target runs each test."""
    tests: dict[str, dict[str, None]] = {each: {} for each in REQUIREMENTS}
    targets: dict[str, str] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        target = next((TARGETS[mark.name] for mark in item.iter_markers() if mark.name in TARGETS), "test")
        targets[name] = target if targets.get(name, target) == target else "test"  # only some parameters are slow
        for each in {each for mark in item.iter_markers(MARK) for each in mark.args}:
            tests[each][name] = None
    return Collection({each: list(found) for each, found in tests.items()}, targets)


def collects_all(config: pytest.Config) -> bool:
    """Return whether this run of pytest collects every test, independently of which ones it then selects."""
    less = any(config.getoption(option, None) for option in ("lf", "ignore", "ignore_glob"))
    return not less and [Path(argument).resolve() for argument in config.args] == [ROOT / "tests"]


class Collector:
    """A pytest plugin that records which requirements the tests prove."""

    def __init__(self) -> None:
        self.found = collection([])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.found = collection(session.items)


def collect() -> Collection:
    """Collect all tests, including those for real engines, without running them.

    Raises `RuntimeError` with the output of pytest if the collection fails.
    """
    collector, output = Collector(), io.StringIO()
    with redirect_stdout(output):
        words = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", str(ROOT / "tests")]
        code = pytest.main(words, [collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return collector.found


def page(found: Collection) -> str:
    """Return the text of docs/requirements.md."""
    lines = [HEAD]
    for prefix, title in CHAPTERS.items():
        lines += [f"## {title}", "", "| id | must hold | proved by `make test` | proved by other targets |"]
        lines += ["|---|---|---|---|"]
        lines += [_row(each, found) for each in REQUIREMENTS if _prefix(each) == prefix]
        lines.append("")
    return "\n".join([*lines, LEFT_OUT, *_left_out(found), ""])


def _left_out(found: Collection) -> Iterator[str]:
    """Yield a row for each file and target of the tests that `make test` leaves out."""
    files: dict[tuple[str, str], list[str]] = {}
    for test, target in found.targets.items():
        if target != "test":
            files.setdefault((test.partition("::")[0], target), []).append(test.rpartition("::")[2])
    for (file, target), tests in sorted(files.items()):
        yield f"| [{file}](../{file}) | {target} | {'<br>'.join(tests)} |"


def _prefix(requirement: str) -> str:
    return requirement.partition("-")[0].rstrip("0123456789")


def _row(requirement: str, found: Collection) -> str:
    columns: tuple[list[str], list[str]] = ([], [])
    for test in found.proofs[requirement]:
        columns[found.targets[test] != "test"].append(f"[{test.rpartition('::')[2]}](../{test.partition('::')[0]})")
    return f"| {requirement} | {REQUIREMENTS[requirement]} | {'<br>'.join(columns[0])} | {'<br>'.join(columns[1])} |"


if __name__ == "__main__":
    sys.stdout.write(page(collect()))
