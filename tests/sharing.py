"""Shares the tests among workers: a group of folders is one worker's, and some tests want the machine for themselves.

A group keeps together what uses the same cluster, so that no worker starts one for a single test. Much of a run is
waiting, so there is a worker more than cores; but a function has 1.6 s for its answer, and with many it misses that.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ENGINES = ("knative+wings", "rabbitmq+wings", "knative", "rabbitmq")
"""An end-to-end test names its engine among its parameters, which is part of the name of its group."""
END_TO_END = "tests/e2e"
GROUPS = (
    (f"{END_TO_END}[knative]",),
    (f"{END_TO_END}[rabbitmq]",),
    (f"{END_TO_END}[knative+wings]",),
    (f"{END_TO_END}[rabbitmq+wings]",),
    (f"{END_TO_END}/test_admission.py",),
    (END_TO_END,),
    ("tests/chaos",),
    ("tests/real/test_shipped.py",),
    ("tests/real",),
    ("tests/eventing/journal/test_million.py",),
    tuple(f"tests/chain/test_{name}.py" for name in ("audit", "observability", "readme", "replay", "resting")),
    ("tests/chain/mutex",),
    ("tests/chain/virtualization", "tests/chain/cpu_labels"),
    ("tests/chain",),
    ("tests/functions/maintenance",),
    ("tests/functions",),
    ("tests/console/web",),
    ("tests/localcluster",),
    ("tests/manifests",),
    ("tests/eventing/local",),
    ("tests/eventing",),
    ("tests/console",),
    ("tests/kube", "tests/func"),
    ("tests",),
)
"""A test belongs to the group that names its file, or else the nearest folder above it; better with its engine."""


def group_of(test: str) -> int:
    """Give the place in `GROUPS` of a test by its id, whose path is relative to the root of the repository."""
    name, _, parameters = test.partition("::")
    engine = next((engine for engine in ENGINES if engine in parameters.partition("[")[2]), "")
    above = (name, *map(str, Path(name).parents))
    named = [each + suffix for each in above for suffix in ((f"[{engine}]", "") if engine else ("",))]
    return next(number for each in named for number, names in enumerate(GROUPS) if each in names)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each group as a whole to the worker that is free first."""

    def _split_scope(self, nodeid: str) -> str:
        """Name the group of a test."""
        return str(group_of(nodeid))

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker its next group with the last test of one; two tests earlier, as is usual, it takes more of a
        few small groups at the end than it has time for, and the others have nothing to do."""
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)


class Machine:
    """Lets many tests run side by side, or one alone, across processes.

    In: a folder that all workers of this work tree have in common.
    """

    def __init__(self, folder: Path) -> None:
        self._door, self._room = folder / "door", folder / "room"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be there beside others; wait while one is alone, or waits to be."""
        with self._entered(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until all others have left, and keep them out."""
        with self._entered(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _entered(self, kind: int) -> Iterator[None]:
        """Who waits to be alone stands in the door, so that nobody slips in before."""
        with self._room.open("w") as room:
            with self._door.open("w") as door:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(room, kind)
            yield
