"""Tests for `check-run`, which checks that all objects named in a MutexRunConfig exist and are valid."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.mutex import pools
from kube.mutex.objects import RULE_KIND, RUN_KIND, build_object_path, get_condition
from kube.mutex.versions import WORKER_LABEL
from kube.paths import Object
from localcluster.audit_log import AuditLog
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import UpgradeScenario, build_rule_spec
from tests.proofs import proves


def check_run(upgrade: UpgradeScenario, run_config: Object | None = None) -> tuple[str, str]:
    upgrade.functions.invoke("check-run", upgrade.build_event(events.RUN_CHECK_PENDING, mutex_object=run_config))
    condition = get_condition(upgrade.read_object(run_config or upgrade.run_config), "ConfigValidated")
    return condition["status"], condition["message"]


@proves("MUT-3", "MUT-30")
@pytest.mark.parametrize(
    ("spec", "expected_message"),
    [
        ({"paused": True}, "is paused"),
        ({"nodeSelector": {"matchLabels": {WORKER_LABEL: None, "role": "blue"}}}, "must have"),
        ({"nodeSelector": None}, "must have"),
    ],
)
def test_unsuitable_canary_pool_is_reported(
    upgrade: UpgradeScenario, audit_after_setup: AuditLog, spec: Object, expected_message: str
) -> None:
    """Check that the run config's condition reports an unsuitable canary pool, and that no pool or node is written."""
    upgrade.check_rule_and_target()
    upgrade.administrator_client.patch(pools.build_pool_path("canary"), {"spec": spec})
    status, message = check_run(upgrade)
    assert (status, expected_message in message) == ("False", True)
    assert {entry["objectRef"]["resource"] for entry in audit_after_setup.list_writes_by()} <= {
        *("jobs", "mutexrules", "mutextargets", "mutexrunconfigs")
    }


@proves("MUT-3")
def test_missing_canary_pool_and_canary_pool_in_target_are_reported(upgrade: UpgradeScenario) -> None:
    """Check that the run config's condition reports a missing canary pool, and a canary pool that a target contains."""
    upgrade.check_rule_and_target()
    spec = upgrade.run_config["spec"]
    run_config_with_missing_canary = upgrade.create_object(RUN_KIND, "absent", {**spec, "canary": {"name": "none"}})
    assert "MachineConfigPool none not found" in check_run(upgrade, run_config_with_missing_canary)[1]
    run_config_with_target_as_canary = upgrade.create_object(RUN_KIND, "doubled", {**spec, "canary": {"name": "blue"}})
    assert "is also in a target" in check_run(upgrade, run_config_with_target_as_canary)[1]
    assert check_run(upgrade)[0] == "True"


@proves("MUT-30")
def test_missing_and_invalid_rules_and_targets_are_named(upgrade: UpgradeScenario) -> None:
    """Check that the run config's condition names each missing or invalid rule and target, and each empty list.

    Without a MutexRule, no label would keep the nodes from being upgraded.
    """
    references = {"mutexRules": [{"name": "other"}], "mutexTargets": [{"name": "all"}]}
    invalid_run_config = upgrade.create_object(RUN_KIND, "bad", {"canary": {"name": "canary"}, **references})
    status, message = check_run(upgrade, invalid_run_config)
    assert status == "False"
    assert "spec.mutexRules: node-upgrade-mutex-operator/other not found" in message
    assert "spec.mutexTargets: node-upgrade-mutex-operator/all is not validated yet" in message
    upgrade.administrator_client.patch(
        build_object_path(upgrade.rule), {"spec": {"jobSpec": {"template": {"spec": {"containers": []}}}}}
    )
    upgrade.check_rule_and_target()
    assert "spec.mutexRules: node-upgrade-mutex-operator/only is invalid: spec.jobSpec:" in check_run(upgrade)[1]
    empty_run_config = upgrade.create_object(
        RUN_KIND, "empty", {"canary": {"name": "canary"}, "mutexRules": [], "mutexTargets": []}
    )
    empty_config_message = check_run(upgrade, empty_run_config)[1]
    assert "spec.mutexRules: the list is empty" in empty_config_message
    assert "spec.mutexTargets: the list is empty" in empty_config_message


@proves("MUT-30", "MUT-51")
def test_deleted_rule_of_active_run_is_reported(upgrade: UpgradeScenario) -> None:
    """Check that the condition reports a deleted rule of the active run, even if the run config names another rule now.

    The run waits until the deleted rule exists again.
    """
    upgrade.advance_to_jobs()
    other_rule = upgrade.create_object(RULE_KIND, "other", build_rule_spec())
    upgrade.functions.invoke("check-rule", build_resource_event(events.RESOURCE_ADDED, other_rule, RULE_KIND))
    upgrade.administrator_client.patch(
        build_object_path(upgrade.run_config), {"spec": {"mutexRules": [{"name": "other"}]}}
    )
    assert check_run(upgrade)[0] == "True"
    upgrade.administrator_client.delete(build_object_path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.RUN_CHECK_PENDING]
    assert "rules of the active run: node-upgrade-mutex-operator/only not found" in check_run(upgrade)[1]
    assert upgrade.resync_by_tick() == []


def test_check_run_ignores_event_of_own_status_write(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """X-2: `check-run` ignores the update event that its status write causes, and reacts only to other changes."""
    upgrade.check_rule_and_target()
    check_run(upgrade)
    hint = build_resource_event(events.RESOURCE_UPDATED, upgrade.read_object(upgrade.run_config), RUN_KIND)
    count = len(audit_after_setup.list_writes_by())
    assert upgrade.functions.invoke("check-run", hint) is None
    assert len(audit_after_setup.list_writes_by()) == count


@pytest.mark.parametrize(
    "spec",
    [
        {"skipTLSVerify": "no"},
        {"canary": {}},
        {"canary": None},
        {"mutexRules": [{"namespace": "x"}]},
        {"mutexRules": None},
    ],
)
def test_crd_rejects_invalid_run_config(upgrade: UpgradeScenario, spec: Object) -> None:
    """Table 5.1: The CRD rejects a MutexRunConfig with a missing or invalid field."""
    run_spec = {name: value for name, value in {**upgrade.run_config["spec"], **spec}.items() if value is not None}
    with pytest.raises(Rejected, match=next(iter(spec))):
        upgrade.create_object(RUN_KIND, "refused", run_spec)


def test_deletion_of_run_config_with_active_run_triggers_restore(upgrade: UpgradeScenario) -> None:
    """MUT-51: `check-run` replies `run.restore_pending` if the MutexRunConfig is deleted during a run."""
    upgrade.advance_to_jobs()
    upgrade.administrator_client.run(
        upgrade.administrator_client.api.request("DELETE", build_object_path(upgrade.run_config))
    )
    hint = build_resource_event(events.RESOURCE_UPDATED, upgrade.read_object(upgrade.run_config), RUN_KIND)
    reply = upgrade.functions.invoke("check-run", hint)
    assert reply is not None
    assert reply.get_type() == events.RUN_RESTORE_PENDING
