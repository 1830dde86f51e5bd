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
COLLECTION_KEY = pytest.StashKey["Collection"]()
"""Stash key of the tests found by a run that collects all of them."""
TARGET_BY_MARK = {"e2e": "e2e", "real": "e2e-real", "installs": "e2e-installs", "slow": "test-all", "alone": "test-all"}
"""Mark of a test → the make target that runs it; `make test` runs tests without any of these marks."""
CHAPTERS = {
    "X": "The whole product",
    "NMO": "The operator of medik8s",
    "KNM": "The operator of KubeVirt",
    "DRN": "Draining nodes of virtual machines",
    "OSV": "Maintenance by console, command line and object",
    "5, top": "The kinds of OpenShift and KubeVirt",
    "MUT": "The upgrade mutex",
    "C": "Contradictions between the documents",
}
REQUIREMENTS = {
    "X-1": "Each step is a small HTTP function: it consumes an event, changes one object and emits the next event.",
    "X-2": "An event is a hint: a repeated, late or reordered event leads to the same end state.",
    "X-3": "A tick finds what the event sources missed, and writes nothing if nothing is due.",
    "X-3a": "A tick also finds lost events of mutex kinds, VMIs, HyperConverged and the certificates' Secrets.",
    "X-4": "Triggers filter by exact attributes; each event type goes to a fixed set of functions.",
    "X-5": "A deletion waits until its node is restored, however long all functions are down.",
    "X-6": "Steps retry after conflicts and failures, wait for exhausted budgets, and report refusals.",
    "X-6a": "Each request of each step may fail in each way; after a retry the step ends as without the failure.",
    "X-7": "One engine serves three API groups; a node with two maintenances is restored after both are deleted.",
    "NMO-1": "The API is served under its name and short name, and its sample applies unchanged.",
    "NMO-2": "`spec.nodeName` is a required string; `spec.reason` is any string and may change.",
    "NMO-3": "The node is cordoned, and no new pod is scheduled to it.",
    "NMO-4": "Two taints without a value are added; existing taints keep their value and place.",
    "NMO-5": "Cordon and taints are complete before the first eviction; without them, no pod is evicted.",
    "NMO-6": "Pods are evicted through the eviction subresource; pods that may not be evicted yet stay pending.",
    "NMO-7": "DaemonSet pods stay; a warning names them, and they count only in the total.",
    "NMO-8": "Pods that no controller recreates are evicted too, and a warning names them.",
    "NMO-8a": "The warning is one line with the documents' wording.",
    "NMO-9": "Static pods stay, finished pods are evicted, and emptyDir volumes do not delay the drain.",
    "NMO-10": "The phase is `Running`, then `Succeeded` at 100 percent without pending pods; progress never decreases.",
    "NMO-11": "The two counts are computed before the first eviction and do not change.",
    "NMO-12": "`pendingPods` shrinks; each status write updates `lastUpdate`, and no write changes only this field.",
    "NMO-13": "`lastError` states the current error, and a pass without errors clears it.",
    "NMO-14": "A deletion restores the node: it is schedulable without our taints, and nothing else is changed.",
    "NMO-15": "`kubectl delete` returns promptly even during a drain, and the name can be used again.",
    "NMO-16": "Our finalizer holds the object; the older operator's finalizer is removed too.",
    "NMO-17": "The log has the lines that administrators search for, once per action.",
    "NMO-17a": "The log of a deletion begins with the documents' lines; records have their keys, and taints are JSON.",
    "NMO-18": "A webhook rejects invalid maintenances and returns warnings; without it, the same rules apply.",
    "NMO-19": "The webhook rejects an unknown node; without it the phase is `Failed` until the node is created.",
    "NMO-20": "The deletion of a node deletes its maintenance.",
    "NMO-21": "`spec.nodeName` cannot be changed.",
    "NMO-22": "A second maintenance of a node is rejected or `Failed`; its deletion does not restore the node.",
    "NMO-23": "A control-plane node is rejected if etcd would lose its quorum; a node that is already down never is.",
    "NMO-24": "One command installs; a repetition changes nothing; without Knative it fails and nothing runs.",
    "NMO-25": "One command collects what explains a maintenance, or names each missing permission.",
    "NMO-25a": "The archive also has mutex kinds, VMs and HyperConverged, and only names and dates of certificates.",
    "NMO-26": "`make check` and `make cluster-functest` fail if a check fails; one target pushes the image.",
    "NMO-26a": "Make targets deploy, test on a cluster, build and push the image, or fail with the reason.",
    "NMO-27": "Kubernetes Events report begin, success, failure and end; another tool's Lease of a node is respected.",
    "NMO-27a": "Remediators of medik8s share the Lease; a maintenance begins only with it, and fails if it loses it.",
    "NMO-27b": "A node is excluded from remediation during its maintenance, and keeps an earlier exclusion.",
    "KNM-1": "This API group is served next to the first one and has the same effect.",
    "KNM-1a": "The document's sample has the document's name, and its commands work as written.",
    "KNM-2": "The status has all its fields, also `totalPods` with this spelling.",
    "KNM-3": "`totalPods` and `evictionPods` are counted at the start.",
    "KNM-4": "The drain taint of this group is `kubevirt.io/drain`; an existing one with a value is kept.",
    "KNM-5": "Log records are JSON with the documented keys and messages.",
    "KNM-6": "The remaining pods are those that `kubectl drain` leaves.",
    "KNM-7": "The document's make targets exist; `container-build` and `container-push` are two of them.",
    "DRN-1": "Our drain accepts the documented flags in both spellings, and has the effect of `kubectl drain`.",
    "DRN-1a": "`spec.drain` has kubectl's flags; a pod that a flag refuses is blocked, with the flag and the remedy.",
    "DRN-2": "Pods with emptyDir volumes are evicted only with their flag; otherwise no pod is, and they are named.",
    "DRN-3": "DaemonSet pods are ignored only with their flag; otherwise no pod is evicted, and they are named.",
    "DRN-4": "Pods without a controller are evicted only with force; otherwise no pod is, and they are named.",
    "DRN-5": "A pod selector limits the drain; an invalid one is rejected before the cordon.",
    "DRN-6": "A node that an administrator cordoned or drained stays so until the administrator uncordons it.",
    "DRN-7": "Only virtual machines with `evictionStrategy: LiveMigrate` are migrated.",
    "DRN-8": "A drain taint, set by hand or by us, creates one migration per such virtual machine, within limits.",
    "DRN-9": "A budget protects each of them and is deleted with it; a failed migration is retried.",
    "DRN-10": "If KubeVirt is installed, we create no migrations, budgets or labels.",
    "DRN-11": "A virtual machine without a strategy is shut down, and restarts elsewhere by its run strategy.",
    "DRN-12": "The oldest API is created and used with the document's own two files.",
    "DRN-13": "With it, the node is not schedulable; node and log have both taints in the document's order.",
    "DRN-14": "The files of the stepwise install can be created in their order, and its workloads become ready.",
    "DRN-15": "Next to HyperConverged it installs into that namespace; of two installs, one is active.",
    "DRN-15a": "That install serves the oldest API too.",
    "DRN-16": "The tutorial works: a drained node's virtual machine is Scheduling, then Running on another node.",
    "DRN-16a": "A VMI has interfaces with address, MAC and name.",
    "OSV-1": "The command line and the object lead to the same result.",
    "OSV-2": "A migratable virtual machine is migrated; another one stays, and its status states the reason.",
    "OSV-3": "A virtual machine that was shut down restarts elsewhere by its run strategy, with Manual not at all.",
    "OSV-4": "A virtual machine without an eviction strategy has no default strategy.",
    "OSV-5": "With the object, no new workload is scheduled and pods leave; without it, the node is schedulable.",
    "OSV-6": "Workloads that left the node do not return by themselves.",
    "OSV-7": "The console starts a maintenance of one or several nodes, after a confirmation and an access check.",
    "OSV-8": "The console stops it in the same way, and offers only actions that fit the node's state.",
    "OSV-9": "The console shows progress, pending pods, the latest error and the reason.",
    "OSV-10": "Drain and uncordon are commands of kubectl with the documented flags.",
    "OSV-10a": "Cordon is a command too: cordon, drain and uncordon in sequence have the effect of kubectl's.",
    "OSV-11": "The document's object is applied and deleted with its file, and prints the documented output.",
    "OSV-12": "`kubectl describe node` shows once each that the node is unschedulable and schedulable again.",
    "OSV-12a": "Our Event differs from that of a real kubelet, which may come later.",
    "OSV-13": "`kubectl get NodeMaintenance -o yaml` lists the tasks in the documented fields.",
    "OSV-14": "A user without the permission starts no maintenance.",
    "OSV-15": "The object only evicts workloads: on a node that is not ready, it keeps its state and waits.",
    "OSV-20": "Certificates are renewed without a manual step; a missing or corrupt one is reissued at once.",
    "OSV-21": "KubeVirt's are renewed daily, CDI's every 15 days, MAC pool's yearly; none begins in the future.",
    "OSV-22": "The old and the new CA are published together before a server changes, so no client is locked out.",
    "OSV-23": "A label selects the Secrets, and its value the component; unlabelled Secrets are never written.",
    "OSV-30": "Fifteen CPU models are always obsolete: no node is labelled with one.",
    "OSV-31": "Models that HyperConverged names are obsolete too, until it no longer names them.",
    "OSV-32": "The minimum model is Penryn by default; an unknown one is reported and changes nothing.",
    "OSV-33": "Features beyond the minimum model are labelled; those with invalid label names are reported.",
    "OSV-34": "The features of Penryn and Haswell are those of the document.",
    "OSV-35": "A Haswell is labelled with the features that the document lists.",
    "OSV-36": "Labels have KubeVirt's names; older forms are removed, and labels of other programs stay.",
    "OSV-37": "A pod that selects a CPU model runs only on labelled nodes, and waits while there are none.",
    "OSV-38": "ConfigMaps list the nodes' capabilities; an invalid entry is reported and changes nothing.",
    "OSV-39": "A node with the skip annotation keeps its labels, and is labelled after the annotation ends.",
    "5, top": "Tests use the real kinds of OpenShift and KubeVirt, which accept or reject the documents' objects.",
    "MUT-1": "The accounts have only the rights that document 004 lists; a refusal is reported and halts the run.",
    "MUT-1a": "The accounts together have the document's rights, and create Jobs where an administrator allows it.",
    "MUT-2": "A node without a version is named and halts the run before it begins.",
    "MUT-3": "The canary must exist, be unpaused, select only workers and be in no target; otherwise no run begins.",
    "MUT-4": "One overlay installs the mutex in addition to the product.",
    "MUT-4a": "The document's release steps have a counterpart.",
    "MUT-10": "A dry run validates a rule's Jobs at each change; no Job is created.",
    "MUT-11": "The check of a rule writes only the rule's status.",
    "MUT-12": "A rule whose label would be too long is invalid, with the reason.",
    "MUT-13": "A rule's name may have dots.",
    "MUT-20": "A target is valid if its pools exist, and lists each of their nodes once.",
    "MUT-21": "A pool's whole selector determines its nodes, in an order that is always the same.",
    "MUT-22": "A target's list of nodes follows nodes and pools; it writes nothing else, and a run keeps its own list.",
    "MUT-30": "The objects that a run config names are checked at each change; the run begins when all are valid.",
    "MUT-31": "Versions are compared as semantic versions; without a desired version nothing is written.",
    "MUT-32": "Before the control plane is upgraded, no pool or node is changed.",
    "MUT-33": "Pools are paused before labels are set, labels precede the canary, and the canary precedes any Job.",
    "MUT-34": "Pausing is idempotent; pools that were already paused are named, and unpaused at the end.",
    "MUT-35": "Each node of each target has a label for each rule, upgraded or not.",
    "MUT-36": "The canary selects nodes without the run's labels, even if its own file is applied during the run.",
    "MUT-37": "A target's pool keeps its expressions, and selects nodes with the labels.",
    "MUT-38": "A warning names the workers outside all targets before a pool is edited.",
    "MUT-40": "Jobs run one at a time, in the order of the rules.",
    "MUT-41": "A Job has its rule's template, variables for node and rule, and avoids its node; cleanup Jobs too.",
    "MUT-42": "Each Job is created once, however often events arrive; a Job that disappeared halts the run.",
    "MUT-43": "When all Jobs of a node are complete, one write removes its labels; labels removed earlier return.",
    "MUT-44": "At most one node is released and not done, over all pools, targets and runs.",
    "MUT-45": "A node is done when it has the currently desired version; a timeout limits the wait.",
    "MUT-46": "Cleanup Jobs follow the upgrade and precede the next node; a failed one halts the run.",
    "MUT-47": "A failed Job halts the run: labels, pauses and canary stay, and later nodes are unchanged.",
    "MUT-48": "A retry resumes at the failed rule of the failed node; finished nodes are left alone.",
    "MUT-49": "At the end, pools and canary are restored, and no node has a label of the run.",
    "MUT-50": "A finished run writes nothing; a new version starts a new run.",
    "MUT-51": "A deleted run, in any state, restores everything and upgrades no node.",
    "MUT-52": "Requests verify the cluster's CA unless their run disables it.",
    "C1": "The status has both `totalpods` and `totalPods`, with the same value.",
    "C2": "Each group has a CRD of its own, with the same schema.",
    "C3": "The group selects the drain taint; each of the keys makes virtual machines migrate.",
    "C4": "A taint is matched by key and effect, whatever its value.",
    "C5": "Log records name the cluster-scoped object: an empty namespace, and the name of the NodeMaintenance.",
    "C6": "`Failed` is the phase for an unknown node and for a second maintenance.",
    "C7": "Bare resource names select the group whose document uses them.",
    "C8": "The deletion of a NodeMaintenance makes its node schedulable, and moves no pod.",
    "C9": "The cordon does not change the node's readiness.",
    "C10": "A maintenance powers no node off: the node stays Ready, and only objects of a drain are written.",
    "C11": "A drain accepts both `--delete-local-data` and `--delete-emptydir-data`.",
    "C12": "The minimum CPU model is read from `minCPUModel` and from `minCPU`.",
    "C13": "A Haswell is labelled with `smep` too.",
    "C14": "The strategy is `LiveMigrate`; `LiveMigration` is the feature gate.",
    "C15": "The run strategy is `Always`, and `running: true` is equivalent.",
    "C16": "A virtual machine that was shut down is recreated on another node unless its strategy is Manual.",
    "C17": "Virtual machines are migrated; those without a strategy are restarted.",
    "C18": "HyperConverged is found by its name in any namespace; of several the oldest applies.",
    "C19": "The status has `drainProgress` and `lastUpdate` in all three API groups.",
    "C20": "`lastError` is the latest error of any kind.",
    "C21": "`evictionPods` is the number of pods to evict at the start, and does not change.",
    "C22": "A node that was cordoned by hand is schedulable after its maintenance.",
    "C23": "The ClusterVersion is `version`, or `cluster` as in the document; its history is a list, or a string.",
    "C24": "The canary's own expressions are replaced during a run, and restored.",
    "C25": "Canary and targets are both edited.",
    "C26": "A run pauses pools when the control plane is upgraded and a worker is not, or earlier if configured.",
    "C27": "The version is the label's value.",
    "C28": "The samples have no namespace, and are applied to the one that they name.",
    "C29": "A node is skipped while its annotation is `true`; `false` ends that.",
    "C30": "`container-build-and-push-community` and `container-build container-push` build and push one image.",
    "C31": "Logs are lines of JSON with the messages of both documents.",
    "C32": "Cordon and taints come in any order, and before the first eviction.",
}
_SLOW_REASON = "each of its proofs takes more than five seconds"
NOT_IN_MAKE_TEST = {
    "KNM-6": _SLOW_REASON,
    "DRN-15a": _SLOW_REASON,
    "OSV-1": _SLOW_REASON,
    "X-6a": "it covers every request of every step",
}
"""Requirement → the reason why `make test` does not prove it."""
PAGE_HEAD = """# Requirements

The requirements, and the tests that prove them. A test proves a requirement if it has the mark `@proves` of
`tests/proofs.py` with the requirement's id. The last section lists the tests that `make test` leaves out.
`make requirements` writes this page; a test fails if the page is not up to date.
"""
LEFT_OUT_HEAD = """## Tests that `make test` leaves out

`make test-all` runs the tests marked `slow` or `alone`; `make e2e`, `make e2e-real` and `make e2e-installs` run
the tests with their own marks.

| file | target | tests |
|---|---|---|"""


def proves(*ids: str) -> pytest.MarkDecorator:
    """Return the mark of a test that proves these requirements. Raises `ValueError` for an unknown id."""
    unknown = [each for each in ids if each not in REQUIREMENTS]
    if unknown or not ids:
        raise ValueError(f"unknown requirement ids: {', '.join(unknown)}" if unknown else "no requirement ids")
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


def build_collection(items: Iterable[pytest.Item]) -> Collection:
    """Return which requirements the tests prove, and which make target runs each test."""
    tests: dict[str, dict[str, None]] = {each: {} for each in REQUIREMENTS}
    targets: dict[str, str] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        target = next(
            (TARGET_BY_MARK[mark.name] for mark in item.iter_markers() if mark.name in TARGET_BY_MARK), "test"
        )
        targets[name] = target if targets.get(name, target) == target else "test"  # only some parameters are slow
        for each in {each for mark in item.iter_markers(MARK) for each in mark.args}:
            tests[each][name] = None
    return Collection({each: list(test_ids) for each, test_ids in tests.items()}, targets)


def collects_all(config: pytest.Config) -> bool:
    """Return whether this run of pytest collects every test, independently of which ones it then selects."""
    is_partial = any(config.getoption(option, None) for option in ("lf", "ignore", "ignore_glob"))
    return not is_partial and [Path(argument).resolve() for argument in config.args] == [ROOT / "tests"]


class Collector:
    """A pytest plugin that records which requirements the tests prove."""

    def __init__(self) -> None:
        self.collection = build_collection([])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collection = build_collection(session.items)


def collect_tests() -> Collection:
    """Collect all tests, including those for real engines, without running them.

    Raises `RuntimeError` with the output of pytest if the collection fails.
    """
    collector, output = Collector(), io.StringIO()
    with redirect_stdout(output):
        arguments = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", str(ROOT / "tests")]
        code = pytest.main(arguments, [collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return collector.collection


def render_page(collection: Collection) -> str:
    """Return the text of docs/requirements.md."""
    lines = [PAGE_HEAD]
    for prefix, title in CHAPTERS.items():
        lines += [f"## {title}", "", "| id | must hold | proved by `make test` | proved by other targets |"]
        lines += ["|---|---|---|---|"]
        lines += [_render_row(each, collection) for each in REQUIREMENTS if _get_prefix(each) == prefix]
        lines.append("")
    return "\n".join([*lines, LEFT_OUT_HEAD, *_render_left_out_rows(collection), ""])


def _render_left_out_rows(collection: Collection) -> Iterator[str]:
    """Yield a row for each file and target of the tests that `make test` leaves out."""
    files: dict[tuple[str, str], list[str]] = {}
    for test, target in collection.targets.items():
        if target != "test":
            files.setdefault((test.partition("::")[0], target), []).append(test.rpartition("::")[2])
    for (file, target), tests in sorted(files.items()):
        yield f"| [{file}](../{file}) | {target} | {'<br>'.join(tests)} |"


def _get_prefix(requirement: str) -> str:
    return requirement.partition("-")[0].rstrip("0123456789")


def _render_row(requirement: str, collection: Collection) -> str:
    columns: tuple[list[str], list[str]] = ([], [])
    for test in collection.proofs[requirement]:
        columns[collection.targets[test] != "test"].append(
            f"[{test.rpartition('::')[2]}](../{test.partition('::')[0]})"
        )
    return f"| {requirement} | {REQUIREMENTS[requirement]} | {'<br>'.join(columns[0])} | {'<br>'.join(columns[1])} |"


if __name__ == "__main__":
    sys.stdout.write(render_page(collect_tests()))
