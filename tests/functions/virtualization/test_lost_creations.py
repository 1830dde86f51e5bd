"""Tests of migrations whose creation had no response, on a real API server: retries, backoff and migration slots."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from kube.virtualization.migration_claims import CLAIM_PATH, NOBODY, claimed, refused
from tests.fault_proxy import RESET, SILENCE, Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.functions.virtualization.conftest import Machines
from tests.functions.virtualization.test_migrate import finish
from tests.kubevirt import edit, vmi
from tests.proofs import proves

FAULTS = {
    "an error": Fault(500, "failed calling webhook"),
    "a restart": Fault(503, "the server is going away"),
    "too many requests": Fault(429, "too many requests"),
    "a connection that breaks": RESET,
    "silence": SILENCE,
}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_one_whose_creation_has_no_answer_once_is_created_by_the_same_event(
    machines: Machines, functions: Functions, faults: Faults, spoiled: Functions, fault: Fault
) -> None:
    """Check that a migration whose creation had no response is created when its event is redelivered.

    The first pass still creates the other migration. The missing one keeps its slot and its claim, and no failure is
    recorded.
    """
    for number in range(3):
        machines.create(vmi(f"vm-{number}", machines.node))
    event = tick()
    faults.spoil(lambda request: fault if request == "create virtualmachineinstancemigrations 1" else None)
    assert spoiled.post("migrate", event).status_code == 503
    faults.speak_again()

    made, lease = machines.migrations(), machines.admin.get(CLAIM_PATH)
    assert len(made) == 1
    assert [claim.attempt for claim in claimed(lease).values()] == [event.get_id()]
    assert refused(lease, datetime.now(timezone.utc)) == {}
    functions.answer("migrate", tick())
    assert machines.migrations() == made

    functions.answer("migrate", event)
    assert sorted(machines.migrations().values()) == ["vm-0", "vm-1"]
    assert claimed(machines.admin.get(CLAIM_PATH)) == {}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize(
    ("fault", "may_come"),
    [(FAULTS["an error"], False), (Fault(504, "timeout"), True), (RESET, True)],
    ids=["an error", "the server's timeout", "a connection that breaks"],
)
def test_one_whose_creation_has_no_answer_twice_rests(
    machines: Machines, functions: Functions, faults: Faults, spoiled: Functions, fault: Fault, *, may_come: bool
) -> None:
    """Check that a migration whose creation had no response twice backs off, with the error in the Lease.

    If the API server may still create it, it keeps its slot, but no attempt owns its claim. Otherwise another migration
    gets the slot.
    """
    for number in range(3):
        machines.create(vmi(f"vm-{number}", machines.node))
    event = tick()
    for status in (503, 204):
        faults.spoil(lambda request: fault if request == "create virtualmachineinstancemigrations 1" else None)
        assert spoiled.post("migrate", event).status_code == status
    faults.speak_again()

    made, lease = machines.migrations(), machines.admin.get(CLAIM_PATH)
    (resting,) = refused(lease, datetime.now(timezone.utc))
    assert resting not in made
    assert len(made) == (1 if may_come else 2)
    assert {name: claim.attempt for name, claim in claimed(lease).items()} == ({resting: NOBODY} if may_come else {})
    functions.answer("migrate", event)
    assert machines.migrations() == made

    (moved, *_) = made.values()
    finish(machines, moved, "Succeeded")
    edit(machines.admin, {"metadata": {"namespace": machines.work.namespace, "name": moved}}, nodeName="other")
    functions.answer("migrate", tick())
    assert len(machines.migrations()) == 2
    assert resting not in machines.migrations()
