"""The requirements that the project claims to meet, and the pytest mark for the tests that prove them.

`python -m tests.proofs` generates docs/requirements.md from the requirements and from the marks of all tests.
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
"""Stash key of the collected tests; it is set only if the run collects all tests."""
TARGET_BY_MARK = {
    "e2e": "e2e",
    "real": "e2e-real",
    "installs": "e2e-installs",
    "distribution": "test-distribution",
    "slow": "test-all",
    "alone": "test-all",
}
"""Map from pytest mark to the make target that runs tests with it; `make test` runs the tests without these marks."""
CHAPTERS = {
    "X": "The whole product",
    "NMO": "The medik8s operator",
    "KNM": "The KubeVirt operator",
    "DRN": "Draining nodes of virtual machines",
    "OSV": "Maintenance by console, command line and object",
    "5, top": "Tests use the real CRDs of OpenShift and KubeVirt, which accept or reject the documented objects.",
    "MUT": "The upgrade mutex",
    "C": "Contradictions between the documents",
}
REQUIREMENTS = {
    "X-1": "Each step is a small HTTP function: it consumes an event, changes one object and emits the next event.",
    "X-2": "An event is a hint: a repeated, late or reordered event leads to the same end state.",
    "X-3": "A tick finds the changes that event sources missed, and writes nothing if no change was missed.",
    "X-3a": "A tick also finds missed changes of mutex objects, VMIs, HyperConvergeds and certificate Secrets.",
    "X-4": "Triggers filter by exact attribute values, and each event type has a fixed set of consuming functions.",
    "X-5": "A deleted NodeMaintenance exists until its node is restored, even if all functions are down for a time.",
    "X-6": "Steps retry after conflicts and errors, wait until PDBs allow evictions, and report rejected requests.",
    "X-6a": "If any request of a step fails, a retry leads to the same result as a step without the failure.",
    "X-7": "The same functions serve three API groups. A node with two maintenances is restored after both end.",
    "NMO-1": "The API is served under its documented name and short name, and its sample applies without changes.",
    "NMO-2": "`spec.nodeName` is a required string; `spec.reason` accepts any string and may be changed.",
    "NMO-3": "The node is cordoned, and the scheduler assigns no new pod to the node.",
    "NMO-4": "The node gets two taints without a value; its other taints keep their values and their order.",
    "NMO-5": "The node is cordoned and tainted before the first pod is evicted.",
    "NMO-6": "Pods are evicted through the eviction subresource; pods that cannot be evicted yet stay pending.",
    "NMO-7": "DaemonSet pods stay on the node; a warning names these pods, and only `totalpods` counts them.",
    "NMO-8": "Pods that no controller recreates are also evicted, and a warning names these pods.",
    "NMO-8a": "One log line with the documented wording names the DaemonSet pods and the pods without a controller.",
    "NMO-9": "Static pods stay on the node, finished pods are evicted, and emptyDir volumes do not delay the drain.",
    "NMO-10": "The phase is `Running`, then `Succeeded` at 100 percent without pending pods; progress only increases.",
    "NMO-11": "`totalpods` and `evictionPods` are counted before the first eviction, and do not change afterwards.",
    "NMO-12": "`pendingPods` shrinks; each status write updates `lastUpdate`, and no write changes only `lastUpdate`.",
    "NMO-13": "`lastError` contains the current error, and a pass without errors clears the field.",
    "NMO-14": "When a maintenance is deleted, its node loses cordon and drain taints; no other field changes.",
    "NMO-15": "`kubectl delete` returns immediately, even during a drain, and the object's name can be used again.",
    "NMO-16": "A finalizer keeps a deleted object until its node is restored; an old operator's finalizer is removed.",
    "NMO-17": "The log contains each line that administrators search for, once per action.",
    "NMO-17a": "The log of a deletion begins with the documented lines; records have documented keys and JSON taints.",
    "NMO-18": "A webhook rejects invalid maintenances and returns warnings; without it, `begin` has the same rules.",
    "NMO-19": "The webhook rejects an unknown node; without the webhook, the phase is `Failed` until the node exists.",
    "NMO-20": "When a node is deleted, its maintenance is also deleted.",
    "NMO-21": "`spec.nodeName` is immutable.",
    "NMO-22": "A second maintenance of a node is rejected or `Failed`; its deletion does not restore the node.",
    "NMO-23": "A maintenance is rejected if etcd would lose its quorum, unless the control-plane node is already down.",
    "NMO-24": "One command installs the product; a second run changes nothing; without Knative, it starts nothing.",
    "NMO-25": "One command collects all data about a maintenance, and names each missing permission.",
    "NMO-25a": "The archive also contains mutex objects, VMs, HyperConverged objects, and the dates of certificates.",
    "NMO-26": "`make check` and `make cluster-functest` fail if a check fails; one target builds and pushes the image.",
    "NMO-26a": "Makefile targets deploy, test on a cluster, build and push the image, or fail and print the reason.",
    "NMO-27": "Kubernetes Events report begin, success, failure and end; another tool's Lease delays the maintenance.",
    "NMO-27a": "The node's Lease is shared with medik8s remediators; a maintenance that loses the Lease is `Failed`.",
    "NMO-27b": "A node under maintenance is excluded from remediation; an earlier exclusion label is kept afterwards.",
    "KNM-1": "`nodemaintenance.kubevirt.io` is served next to `nodemaintenance.medik8s.io`, with the same effect.",
    "KNM-1a": "The documented sample exists under its documented name, and the documented commands work as written.",
    "KNM-2": "The status has all documented fields, including `totalPods` with this spelling.",
    "KNM-3": "`totalPods` and `evictionPods` are counted when the maintenance begins.",
    "KNM-4": "The drain taint of KubeVirt's API group is `kubevirt.io/drain`; an existing taint keeps its value.",
    "KNM-5": "Log records are JSON with the documented keys and messages.",
    "KNM-6": "After a drain, the same pods remain on the node as after `kubectl drain`.",
    "KNM-7": "The documented Makefile targets exist, including `container-build` and `container-push`.",
    "DRN-1": "The `drain` command accepts each documented flag in both spellings, and behaves like `kubectl drain`.",
    "DRN-1a": "`spec.drain` has a field for each kubectl flag; a blocked pod's entry names the field and the remedy.",
    "DRN-2": "Without `--delete-emptydir-data`, `drain` evicts no pod if pods have emptyDir volumes, and names them.",
    "DRN-3": "Without `--ignore-daemonsets`, `drain` evicts no pod if DaemonSets own pods, and names these pods.",
    "DRN-4": "Without `--force`, `drain` evicts no pod if pods have no controller, and names these pods.",
    "DRN-5": "A pod selector limits the drain to matching pods; an invalid selector is rejected before the cordon.",
    "DRN-6": "A node that an administrator cordoned or drained stays cordoned until the administrator uncordons it.",
    "DRN-7": "Only virtual machines with `evictionStrategy: LiveMigrate` are migrated.",
    "DRN-8": "A drain taint from any client causes one migration per `LiveMigrate` VM, within the migration limits.",
    "DRN-9": "A PDB protects each `LiveMigrate` VM, and is deleted with the VM; a failed migration is retried.",
    "DRN-10": "If KubeVirt is installed, the product creates no migrations, PDBs or CPU labels.",
    "DRN-11": "A VM without an eviction strategy is shut down; its run strategy restarts it on another node.",
    "DRN-12": "The oldest API group is installed and used with the two documented files.",
    "DRN-13": "The oldest API group's maintenance cordons its node; node and log show both taints in documented order.",
    "DRN-14": "The files of the stepwise install apply in the documented order, and all workloads become ready.",
    "DRN-15": "The product can be installed in HyperConverged's namespace; only one of two installs is active.",
    "DRN-15a": "An install in HyperConverged's namespace also serves the oldest API group.",
    "DRN-16": "As documented, a drained node's VM is first in phase Scheduling, then Running on another node.",
    "DRN-16a": "The status of a VMI lists the VMI's network interfaces with IP address, MAC address and name.",
    "OSV-1": "`kubectl maintenance start` and an applied NodeMaintenance lead to the same result.",
    "OSV-2": "A VM that can be migrated is migrated; any other VM stays on the node, and its status has the reason.",
    "OSV-3": "A VM that was shut down restarts on another node, unless its run strategy is `Manual`.",
    "OSV-4": "The product sets no default eviction strategy on a virtual machine.",
    "OSV-5": "A maintenance evicts the node's pods and prevents new pods; afterwards, the node is schedulable.",
    "OSV-6": "Evicted workloads are not moved back to the node after the maintenance.",
    "OSV-7": "The console starts maintenances of one or several nodes, after a confirmation and an access check.",
    "OSV-8": "The console stops a maintenance after the same checks; a node's menu has only actions for its state.",
    "OSV-9": "The console shows a maintenance's progress, pending pods, latest error and reason.",
    "OSV-10": "`drain` and `uncordon` are kubectl commands with the documented flags.",
    "OSV-10a": "`cordon` is also a command; `cordon`, `drain` and `uncordon` have the effect of kubectl's commands.",
    "OSV-11": "The documented file creates and deletes a NodeMaintenance, and kubectl prints the documented output.",
    "OSV-12": "`kubectl describe node` shows one Event for the cordon of a node, and one for its uncordon.",
    "OSV-12a": "The product's Event and the kubelet's Event for the same cordon have different reasons.",
    "OSV-13": "`kubectl get NodeMaintenance -o yaml` lists the maintenances with the documented fields.",
    "OSV-14": "A user without permission cannot start a maintenance.",
    "OSV-15": "A maintenance only evicts pods; on a node that is not Ready, it waits until the pods are deleted.",
    "OSV-20": "Certificates are renewed automatically; a missing or corrupt certificate is reissued immediately.",
    "OSV-21": "KubeVirt's certificates are renewed daily, CDI's every 15 days, MAC pool's yearly; none is post-dated.",
    "OSV-22": "Old and new CA are published together before a server certificate changes; no client is locked out.",
    "OSV-23": "A label selects the Secrets, and its value the component; the product writes only labelled Secrets.",
    "OSV-30": "Fifteen CPU models are always obsolete, so no node gets a label for them.",
    "OSV-31": "CPU models that HyperConverged lists are obsolete until HyperConverged no longer lists them.",
    "OSV-32": "The default minimum CPU model is Penryn; an unknown model is reported, and changes no label.",
    "OSV-33": "CPU features that the minimum model lacks get labels; features with invalid names are reported.",
    "OSV-34": "The CPU models Penryn and Haswell have the documented features.",
    "OSV-35": "A node with a Haswell CPU gets labels for the documented features.",
    "OSV-36": "CPU labels have KubeVirt's names; older forms are removed, and labels of other programs are kept.",
    "OSV-37": "A pod that selects a CPU model runs only on a node with the model's label, and otherwise stays Pending.",
    "OSV-38": "ConfigMaps describe the CPUs of the nodes; an invalid entry is reported, and changes no label.",
    "OSV-39": "A node with the skip annotation keeps its labels; its labels are updated without the annotation.",
    "5, top": "Tests use the real CRDs of OpenShift and KubeVirt, which accept or reject the documented objects.",
    "MUT-1": "The mutex's ServiceAccounts have only documented permissions; a denial is reported and halts the run.",
    "MUT-1a": "The mutex's ServiceAccounts together have the documented permissions; Jobs run in permitted namespaces.",
    "MUT-2": "A run does not begin while a node lacks its version label, and its status names that node.",
    "MUT-3": "A run begins only if the canary exists, is not paused, selects only workers and is in no target.",
    "MUT-4": "One overlay installs the product with the upgrade mutex.",
    "MUT-4a": "docs/release.md describes each documented release step with an existing make target.",
    "MUT-10": "Every change of a MutexRule is validated with a dry run of its Jobs, which creates no Job.",
    "MUT-11": "The validation of a MutexRule writes only the rule's status.",
    "MUT-12": "A MutexRule is invalid if its label would be too long, and its status states this reason.",
    "MUT-13": "The name of a MutexRule may contain dots.",
    "MUT-20": "A MutexTarget is valid if its pools exist; its status lists each node of these pools once.",
    "MUT-21": "A pool's matchLabels and matchExpressions select its nodes, which always have the same order.",
    "MUT-22": "A target's check writes only its status, with the current nodes; a run keeps its initial node list.",
    "MUT-30": "The objects of a MutexRunConfig are validated on every change; a run begins when all are valid.",
    "MUT-31": "Versions are compared as semantic versions; without a desired version, the run writes nothing.",
    "MUT-32": "Until the control plane is upgraded, the run changes no pool and no node.",
    "MUT-33": "A run pauses the pools, then labels the nodes, then edits the canary, and only then creates Jobs.",
    "MUT-34": "Pausing a pool is idempotent; pools that were already paused are reported, and unpaused at the end.",
    "MUT-35": "Each node of each target gets a label for each rule, even if the node is already upgraded.",
    "MUT-36": "The canary selects nodes without the run's labels, even if its manifest is applied during the run.",
    "MUT-37": "During a run, a target's pool keeps its expressions, and selects only nodes with the run's labels.",
    "MUT-38": "Before a run edits the pools, a warning names the workers that belong to no target.",
    "MUT-40": "A run's Jobs run one at a time, in the order of the rules.",
    "MUT-41": "A Job has its rule's template, gets node and rule as variables, and does not run on that node.",
    "MUT-42": "Each Job is created once, even if events are repeated; a run halts if its Job disappears.",
    "MUT-43": "After all Jobs of a node, one write removes the run's labels; labels removed earlier are added again.",
    "MUT-44": "At most one node is released and not done, across all pools, targets and runs.",
    "MUT-45": "A node is done when it has the currently desired version; the wait for the version has a timeout.",
    "MUT-46": "Cleanup Jobs run after a node's upgrade and before the next node; a failed cleanup Job halts the run.",
    "MUT-47": "A failed Job halts the run: labels, pauses and canary are kept, and later nodes are unchanged.",
    "MUT-48": "A retry resumes a halted run at the failed rule of the failed node, and skips finished nodes.",
    "MUT-49": "At the end of a run, the pools and the canary are restored, and no node has a label of the run.",
    "MUT-50": "A finished run writes nothing; a new desired version starts a new run.",
    "MUT-51": "A run that is deleted in any state restores pools and nodes, and upgrades no more nodes.",
    "MUT-52": "Requests verify the API server's certificate, unless the run disables TLS verification.",
    "C1": "The status has both `totalpods` and `totalPods`, with the same value.",
    "C2": "Each API group has its own NodeMaintenance CRD, with the same schema.",
    "C3": "The API group determines the drain taint; each drain taint key causes migrations of virtual machines.",
    "C4": "A drain taint is recognized by its key and effect, regardless of its value.",
    "C5": "Log records about a NodeMaintenance contain its name and an empty namespace.",
    "C6": "The phase is `Failed` if the node does not exist, or if it already has a maintenance.",
    "C7": "A resource name without an API group selects the group whose documentation uses this name.",
    "C8": "When a NodeMaintenance is deleted, its node becomes schedulable, and no pod is moved.",
    "C9": "The cordon does not change the node's condition `Ready`.",
    "C10": "A maintenance does not power off its node: the node stays Ready, and only the drain's objects change.",
    "C11": "A drain accepts both `--delete-local-data` and `--delete-emptydir-data`.",
    "C12": "The minimum CPU model is read from `minCPUModel` and from `minCPU`.",
    "C13": "A node with a Haswell CPU also gets a label for the feature `smep`.",
    "C14": "The name of the eviction strategy is `LiveMigrate`; `LiveMigration` is the name of the feature gate.",
    "C15": "The documented run strategy is `Always`; `running: true` is equivalent.",
    "C16": "A VM that was shut down is recreated on another node, unless its run strategy is `Manual`.",
    "C17": "VMs with `LiveMigrate` are migrated; VMs without an eviction strategy are shut down and restarted.",
    "C18": "HyperConverged is found by its name in any namespace; the oldest of several takes precedence.",
    "C19": "The status contains `drainProgress` and `lastUpdate` in all three API groups.",
    "C20": "`lastError` contains the latest error of any kind.",
    "C21": "`evictionPods` is the number of pods to evict at the beginning of the drain, and does not change.",
    "C22": "A node that was cordoned manually is schedulable after its maintenance.",
    "C23": "The ClusterVersion is named `version`, or `cluster` as documented; its history is a list or a string.",
    "C24": "A run replaces the canary's own matchExpressions, and restores them at its end.",
    "C25": "A run edits both the canary and the pools of its targets.",
    "C26": "A run pauses pools when the control plane is upgraded and a worker is not, or earlier if configured.",
    "C27": "The version of a node is the value of the node's version label.",
    "C28": "The samples contain no namespace in their metadata, and work in the namespace that their fields name.",
    "C29": "A node is skipped while its skip annotation is `true`; a node with `false` is not skipped.",
    "C30": "`container-build-and-push-community` and `container-build container-push` build and push one image.",
    "C31": "Log lines are JSON objects with the messages of both documents.",
    "C32": "The cordon and the taints may be applied in any order, but before the first eviction.",
}
_SLOW_REASON = "each test that proves the requirement takes more than five seconds"
NOT_IN_MAKE_TEST = {
    "KNM-6": _SLOW_REASON,
    "DRN-15a": _SLOW_REASON,
    "OSV-1": _SLOW_REASON,
    "X-6a": "the test covers every request of every step",
}
"""Map from requirement that `make test` does not prove to the reason."""
PAGE_HEAD = """# Requirements

This page lists the requirements, and the tests that prove them.
A test proves a requirement if it has the mark `@proves` of `tests/proofs.py` with the requirement's id.
The last section lists the tests that `make test` omits.
`make requirements` generates this page, and a test fails if the page is not up to date.
"""
LEFT_OUT_HEAD = """## Tests that `make test` omits

`make test-all` runs the tests with the mark `slow` or `alone`.
`make e2e`, `make e2e-real`, `make e2e-installs` and `make test-distribution` run the tests with their own marks.

| file | target | tests |
|---|---|---|"""


def proves(*requirement_ids: str) -> pytest.MarkDecorator:
    """Return the mark for a test that proves these requirements. Raises `ValueError` for an unknown or missing id."""
    unknown = [requirement for requirement in requirement_ids if requirement not in REQUIREMENTS]
    if unknown or not requirement_ids:
        raise ValueError(f"unknown requirement ids: {', '.join(unknown)}" if unknown else "no requirement ids")
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)(*requirement_ids)
    return mark


@dataclass
class Collection:
    """The names of the collected tests, without their parameters.

    Attributes:
        proofs: The tests that prove each requirement.
        targets: The make target that runs each test.
    """

    proofs: dict[str, list[str]]
    targets: dict[str, str]


def build_collection(items: Iterable[pytest.Item]) -> Collection:
    """Return the tests that prove each requirement, and the make target that runs each test."""
    tests: dict[str, dict[str, None]] = {requirement: {} for requirement in REQUIREMENTS}
    targets: dict[str, str] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        target = next(
            (TARGET_BY_MARK[mark.name] for mark in item.iter_markers() if mark.name in TARGET_BY_MARK), "test"
        )
        # Some parameters of a test may not be marked as slow.
        targets[name] = target if targets.get(name, target) == target else "test"
        for requirement in {requirement for mark in item.iter_markers(MARK) for requirement in mark.args}:
            tests[requirement][name] = None
    return Collection({requirement: list(test_ids) for requirement, test_ids in tests.items()}, targets)


def collects_all_tests(config: pytest.Config) -> bool:
    """Return whether this pytest run collects all tests, even if it then deselects most of them."""
    is_partial = any(config.getoption(option, None) for option in ("lf", "ignore", "ignore_glob"))
    return not is_partial and [Path(argument).resolve() for argument in config.args] == [ROOT / "tests"]


class Collector:
    """Pytest plugin that records which requirements the collected tests prove."""

    def __init__(self) -> None:
        self.collection = build_collection([])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collection = build_collection(session.items)


def collect_tests() -> Collection:
    """Collect all tests, including those for real engines, without running them.

    Raises `RuntimeError` with pytest's output if the collection fails.
    """
    collector, output = Collector(), io.StringIO()
    with redirect_stdout(output):
        arguments = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", str(ROOT / "tests")]
        exit_code = pytest.main(arguments, [collector])
    if exit_code != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return collector.collection


def render_page(collection: Collection) -> str:
    """Return the text of docs/requirements.md."""
    lines = [PAGE_HEAD]
    for prefix, title in CHAPTERS.items():
        lines += [f"## {title}", "", "| id | requirement | proved by `make test` | proved by other targets |"]
        lines += ["|---|---|---|---|"]
        lines += [
            _render_row(requirement, collection) for requirement in REQUIREMENTS if _get_prefix(requirement) == prefix
        ]
        lines.append("")
    return "\n".join([*lines, LEFT_OUT_HEAD, *_render_left_out_rows(collection), ""])


def _render_left_out_rows(collection: Collection) -> Iterator[str]:
    """Yield a row per file and make target for the tests that `make test` does not run."""
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
