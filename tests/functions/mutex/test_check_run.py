"""Tests of `check-run`, which checks that all objects named by a run config exist and are valid."""

from __future__ import annotations

import pytest

from eventing import events
from kube.client.api_errors import Rejected
from kube.mutex import pools
from kube.mutex.objects import RULE, RUN, condition, path
from kube.mutex.versions import WORKER
from kube.paths import Object
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import Upgrade, rule_spec
from tests.proofs import proves
from tests.workload import Audit


def verdict(upgrade: Upgrade, item: Object | None = None) -> tuple[str, str]:
    upgrade.functions.answer("check-run", upgrade.said(events.RUN_FOUND, item=item))
    found = condition(upgrade.again(item or upgrade.run), "ConfigValidated")
    return found["status"], found["message"]


@proves("MUT-3", "MUT-30")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"paused": True}, "is paused"),
        ({"nodeSelector": {"matchLabels": {WORKER: None, "role": "blue"}}}, "must have"),
        ({"nodeSelector": None}, "must have"),
    ],
)
def test_a_pool_that_can_be_no_canary_is_told(upgrade: Upgrade, written: Audit, spec: Object, said: str) -> None:
    """Check that the condition reports an unsuitable canary pool, and that no pool or node is written."""
    upgrade.judge()
    upgrade.admin.patch(pools.pool_path("canary"), {"spec": spec})
    status, message = verdict(upgrade)
    assert (status, said in message) == ("False", True)
    assert {entry["objectRef"]["resource"] for entry in written.writes_by()} <= {
        *("jobs", "mutexrules", "mutextargets", "mutexrunconfigs")
    }


@proves("MUT-3")
def test_a_canary_that_is_not_there_or_a_target_too_is_told(upgrade: Upgrade) -> None:
    """Check that the condition reports a missing canary, and one that is also a target's pool."""
    upgrade.judge()
    spec = upgrade.run["spec"]
    absent = upgrade.create(RUN, "absent", {**spec, "canary": {"name": "none"}})
    assert "there is no MachineConfigPool none" in verdict(upgrade, absent)[1]
    doubled = upgrade.create(RUN, "doubled", {**spec, "canary": {"name": "blue"}})
    assert "is in a target, too" in verdict(upgrade, doubled)[1]
    assert verdict(upgrade)[0] == "True"


@proves("MUT-30")
def test_rules_and_targets_that_are_missing_or_invalid_are_named(upgrade: Upgrade) -> None:
    """Check that the condition names each missing or invalid rule and target, and that both lists must not be empty.

    Without a rule, no label would keep the nodes from being upgraded.
    """
    named = {"mutexRules": [{"name": "other"}], "mutexTargets": [{"name": "all"}]}
    run = upgrade.create(RUN, "bad", {"canary": {"name": "canary"}, **named})
    status, message = verdict(upgrade, run)
    assert status == "False"
    assert "mutexRules: there is no node-upgrade-mutex-operator/other" in message
    assert "mutexTargets: node-upgrade-mutex-operator/all is not judged yet" in message
    upgrade.admin.patch(path(upgrade.rule), {"spec": {"jobSpec": {"template": {"spec": {"containers": []}}}}})
    upgrade.judge()
    assert "mutexRules: node-upgrade-mutex-operator/only is not valid: spec.jobSpec:" in verdict(upgrade)[1]
    empty = upgrade.create(RUN, "empty", {"canary": {"name": "canary"}, "mutexRules": [], "mutexTargets": []})
    said = verdict(upgrade, empty)[1]
    assert ("mutexRules: none is named" in said, "mutexTargets: none is named" in said) == (True, True)


@proves("MUT-30", "MUT-51")
def test_a_rule_that_the_run_under_way_began_with_is_missed_when_it_is_gone(upgrade: Upgrade) -> None:
    """Check that the condition reports a deleted rule of the active run, even if the run config now names another rule.

    The run waits until the deleted rule exists again.
    """
    upgrade.start()
    other = upgrade.create(RULE, "other", rule_spec())
    upgrade.functions.answer("check-rule", resource(events.RESOURCE_ADDED, other, RULE))
    upgrade.admin.patch(path(upgrade.run), {"spec": {"mutexRules": [{"name": "other"}]}})
    assert verdict(upgrade)[0] == "True"
    upgrade.admin.delete(path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.RUN_FOUND]
    assert "the rules of the run under way: there is no node-upgrade-mutex-operator/only" in verdict(upgrade)[1]
    assert upgrade.told_by_a_tick() == []


def test_a_write_of_our_own_is_no_reason_to_look(upgrade: Upgrade, written: Audit) -> None:
    """X-2: The step ignores the update event of its own status write, and reacts only to a user's changes."""
    upgrade.judge()
    verdict(upgrade)
    hint = resource(events.RESOURCE_UPDATED, upgrade.again(upgrade.run), RUN)
    count = len(written.writes_by())
    assert upgrade.functions.answer("check-run", hint) is None
    assert len(written.writes_by()) == count


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
def test_the_schema_refuses(upgrade: Upgrade, spec: Object) -> None:
    """Table 5.1: The CRD rejects a run config with a missing or invalid field."""
    wanted = {name: value for name, value in {**upgrade.run["spec"], **spec}.items() if value is not None}
    with pytest.raises(Rejected, match=next(iter(spec))):
        upgrade.create(RUN, "refused", wanted)


def test_a_deleted_one_that_holds_pools_is_ended(upgrade: Upgrade) -> None:
    """MUT-51: The update event of a run config that is being deleted during a run gets the reply `run.ended`."""
    upgrade.start()
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    hint = resource(events.RESOURCE_UPDATED, upgrade.again(upgrade.run), RUN)
    reply = upgrade.functions.answer("check-run", hint)
    assert reply is not None
    assert reply.get_type() == events.RUN_ENDED
