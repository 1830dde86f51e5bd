"""Tests for `migrate` on a real API server if the creation of a migration gets no response."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from chaos.api_fault_proxy import CONNECTION_RESET, NO_RESPONSE, Fault, FaultProxy
from kube.virtualization.migration_claims import LEASE_PATH, NO_ATTEMPT, parse_claims, parse_refusals
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.functions.virtualization.conftest import VmiScenario
from tests.functions.virtualization.test_migrate import set_migration_phase
from tests.kubevirt import build_vmi, patch_vmi_status
from tests.proofs import proves

CREATION_FAULTS = {
    "server error": Fault(500, "failed calling webhook"),
    "restart": Fault(503, "the server is going away"),
    "too many requests": Fault(429, "too many requests"),
    "connection reset": CONNECTION_RESET,
    "no response": NO_RESPONSE,
}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize("fault", CREATION_FAULTS.values(), ids=CREATION_FAULTS)
def test_migration_is_created_by_redelivered_event_if_creation_got_no_response(
    vmi_scenario: VmiScenario, functions: Functions, fault_proxy: FaultProxy, proxied_functions: Functions, fault: Fault
) -> None:
    """Check that a migration whose creation got no response is created when the event is redelivered.

    The first pass still creates the other migration. The missing migration keeps its migration slot and its claim, and
    no failure is recorded.
    """
    for number in range(3):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    event = build_tick()
    fault_proxy.inject(lambda request: fault if request == "create virtualmachineinstancemigrations 1" else None)
    assert proxied_functions.post("migrate", event).status_code == 503
    fault_proxy.stop_faults()

    migrations, lease = vmi_scenario.map_migrations_to_vmis(), vmi_scenario.administrator_client.get(LEASE_PATH)
    assert len(migrations) == 1
    assert [claim.attempt for claim in parse_claims(lease).values()] == [event.get_id()]
    assert parse_refusals(lease, datetime.now(timezone.utc)) == {}
    functions.invoke("migrate", build_tick())
    assert vmi_scenario.map_migrations_to_vmis() == migrations

    functions.invoke("migrate", event)
    assert sorted(vmi_scenario.map_migrations_to_vmis().values()) == ["vm-0", "vm-1"]
    assert parse_claims(vmi_scenario.administrator_client.get(LEASE_PATH)) == {}


@proves("DRN-8", "X-2")
@pytest.mark.parametrize(
    ("fault", "may_still_be_created"),
    [(CREATION_FAULTS["server error"], False), (Fault(504, "timeout"), True), (CONNECTION_RESET, True)],
    ids=["server error", "server timeout", "connection reset"],
)
def test_migration_backs_off_if_creation_got_no_response_twice(
    vmi_scenario: VmiScenario,
    functions: Functions,
    fault_proxy: FaultProxy,
    proxied_functions: Functions,
    fault: Fault,
    *,
    may_still_be_created: bool,
) -> None:
    """Check that a migration whose creation got no response twice backs off, and that the Lease contains the error.

    While the API server may still create the migration, it keeps its slot, and its claim belongs to no attempt. After
    that, another migration gets the slot.
    """
    for number in range(3):
        vmi_scenario.create_vmi(build_vmi(f"vm-{number}", vmi_scenario.node))
    event = build_tick()
    for status in (503, 204):
        fault_proxy.inject(lambda request: fault if request == "create virtualmachineinstancemigrations 1" else None)
        assert proxied_functions.post("migrate", event).status_code == status
    fault_proxy.stop_faults()

    migrations, lease = vmi_scenario.map_migrations_to_vmis(), vmi_scenario.administrator_client.get(LEASE_PATH)
    (backing_off_name,) = parse_refusals(lease, datetime.now(timezone.utc))
    assert backing_off_name not in migrations
    assert len(migrations) == (1 if may_still_be_created else 2)
    assert {name: claim.attempt for name, claim in parse_claims(lease).items()} == (
        {backing_off_name: NO_ATTEMPT} if may_still_be_created else {}
    )
    functions.invoke("migrate", event)
    assert vmi_scenario.map_migrations_to_vmis() == migrations

    (migrated_vmi, *_) = migrations.values()
    set_migration_phase(vmi_scenario, migrated_vmi, "Succeeded")
    patch_vmi_status(
        vmi_scenario.administrator_client,
        {"metadata": {"namespace": vmi_scenario.workload.namespace, "name": migrated_vmi}},
        nodeName="other",
    )
    functions.invoke("migrate", build_tick())
    assert len(vmi_scenario.map_migrations_to_vmis()) == 2
    assert backing_off_name not in vmi_scenario.map_migrations_to_vmis()
