"""Assigns groups of tests to xdist workers, and gives tests that measure time exclusive use of the machine.

A group contains the tests that use the same cluster, so that no worker starts a cluster for a single test. Tests wait
most of the time, so there is one more worker than cores. With more workers, the functions would exceed their limit of
1.6 s per response.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ENGINES = ("knative+components", "rabbitmq+components", "knative", "rabbitmq")
"""Engines by which end-to-end tests are parametrized; a group's name can contain such an engine."""
END_TO_END = "tests/e2e"
GROUPS = (
    (f"{END_TO_END}[knative]",),
    (f"{END_TO_END}[rabbitmq]",),
    (f"{END_TO_END}[knative+components]",),
    (f"{END_TO_END}[rabbitmq+components]",),
    (f"{END_TO_END}/test_admission.py",),
    (END_TO_END,),
    ("tests/chaos",),
    ("tests/real/test_installed_product.py",),
    ("tests/real",),
    ("tests/eventing/journal/test_large_journal.py",),
    tuple(
        f"tests/chain/test_{name}.py"
        for name in ("audit", "observability", "readme", "replay", "finished_maintenances")
    ),
    ("tests/chain/mutex",),
    (
        "tests/chain/virtualization",
        "tests/chain/cpu_labels",
        "tests/chain/node_conditions",
        "tests/chain/notifications",
    ),
    ("tests/chain",),
    ("tests/functions",),
    ("tests/console",),
    ("tests/functions/maintenance",),
    ("tests/console/web",),
    ("tests/manifests",),
    ("tests/eventing",),
    ("tests/kube", "tests/func"),
    ("tests/eventing/local",),
    ("tests/localcluster",),
    ("tests",),
)
"""Groups of tests. A test belongs to the group that names its file or, failing that, its nearest parent directory.

A name that contains the test's engine takes precedence over the same name without the engine.
"""


def find_group_index(test_id: str) -> int:
    """Return the index of a test's group in `GROUPS`; the test id begins with a path relative to the repository."""
    name, _, parameters = test_id.partition("::")
    engine = next((engine for engine in ENGINES if engine in parameters.partition("[")[2]), "")
    paths = (name, *map(str, Path(name).parents))
    candidates = [path + suffix for path in paths for suffix in ((f"[{engine}]", "") if engine else ("",))]
    return next(index for candidate in candidates for index, names in enumerate(GROUPS) if candidate in names)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """An xdist scheduler that assigns each group as a whole to the next free worker."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the index of the test's group as its scope."""
        return str(find_group_index(nodeid))

    def _reschedule(self, node: WorkerController) -> None:
        """Assign the next group to a worker that has at most one test left.

        The base class does this when two tests are left. At the end of a run, a worker would then reserve several small
        groups while other workers are idle.
        """
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)


class MachineLock:
    """A lock across processes that many tests can share, or that one test can hold exclusively.

    Args:
        directory: The directory of the lock files, which all workers of this work tree share.
    """

    def __init__(self, directory: Path) -> None:
        self._gate_file, self._lock_file = directory / "gate", directory / "lock"

    @contextmanager
    def hold_shared_lock(self) -> Iterator[None]:
        """Hold the lock together with other tests; wait while a test holds or requests it exclusively."""
        with self._hold(fcntl.LOCK_SH):
            yield

    @contextmanager
    def hold_exclusive_lock(self) -> Iterator[None]:
        """Hold the lock exclusively, after all other holders have released it."""
        with self._hold(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _hold(self, operation: int) -> Iterator[None]:
        """Hold the lock; a waiting process locks the gate file, so that later processes cannot overtake it."""
        with self._lock_file.open("w") as lock_file:
            with self._gate_file.open("w") as gate_file:
                fcntl.flock(gate_file, fcntl.LOCK_EX)
                fcntl.flock(lock_file, operation)
            yield
