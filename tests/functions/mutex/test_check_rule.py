"""Tests of `check-rule`, which asks the API server by a dry run whether it accepts a rule's Jobs."""

from __future__ import annotations

from typing import Any

import pytest

from eventing import events
from kube.client.api import JSON_PATCH
from kube.client.api_errors import Rejected
from kube.mutex.objects import RULE, RULE_LABEL, condition
from kube.paths import Object
from tests.functions.event_builders import resource
from tests.functions.mutex.conftest import CONTAINER, Upgrade, job_spec, rule_spec
from tests.proofs import proves
from tests.workload import Audit, is_dry

BAD: tuple[tuple[str, Object, str], ...] = (
    ("unknown field", {"jobSpec": {**job_spec(), "tempalte": {}}}, "strict decoding error"),
    ("no containers", {"jobSpec": {"template": {"spec": {"restartPolicy": "Never"}}}}, "spec.jobSpec"),
    ("restart", {"jobSpec": {"template": {"spec": {"containers": [CONTAINER], "restartPolicy": "Always"}}}}, "restart"),
    ("selector", {"jobSpec": {**job_spec(), "selector": {"matchLabels": {"a": "b"}}}}, "selector"),
    ("template", {"jobSpec": {"template": "x"}}, "spec.jobSpec"),
    ("affinity", {"jobSpec": job_spec(affinity={"nodeAffinity": "x"})}, "spec.jobSpec"),
    ("cleanup", {"cleanUpJobSpec": {"template": {}}}, "spec.cleanUpJobSpec"),
    ("name", {"jobName": "Job Name"}, "spec.jobName"),
    ("namespace", {"jobNamespace": "nowhere"}, "rights/run-job.yaml"),
)


def judged(upgrade: Upgrade, rule: Object) -> tuple[str, str]:
    """Run `check-rule` and return the status and message of the rule's condition."""
    upgrade.functions.answer("check-rule", resource(events.RESOURCE_UPDATED, upgrade.again(rule), RULE))
    found = condition(upgrade.again(rule), "ValidConfig")
    return found["status"], found["message"]


@proves("MUT-10", "MUT-11")
@pytest.mark.parametrize(("spec", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_rule_is_told_why_and_a_mended_one_is_valid(
    upgrade: Upgrade, written: Audit, spec: Object, message: str
) -> None:
    """Check that an invalid rule gets the API server's message, and is valid once it is corrected.

    The step creates nothing, and writes only the rule's status.
    """
    rule = upgrade.create(RULE, "bad", rule_spec(**spec))
    status, said = judged(upgrade, rule)
    assert status == "False"
    assert message in said or "docs/mutex.md" in said
    upgrade.admin.patch(f"{RULES}/bad", [{"op": "add", "path": "/spec", "value": rule_spec()}], JSON_PATCH)
    assert judged(upgrade, rule) == ("True", "")
    writes = written.writes_by()
    assert {entry["objectRef"].get("subresource") for entry in writes if not is_dry(entry)} == {"status"}
    assert upgrade.jobs() == []


@proves("MUT-10")
def test_a_null_that_the_server_takes_makes_no_rule_invalid(upgrade: Upgrade) -> None:
    """Check that a null field in the Job's spec counts as absent, as it does for the API server."""
    rule = upgrade.create(RULE, "nulls", rule_spec(jobSpec=job_spec(affinity={"nodeAffinity": None})))
    assert judged(upgrade, rule) == ("True", "")


RULES = "/apis/openshift-optional.skrzypek.io/v1alpha1/namespaces/node-upgrade-mutex-operator/mutexrules"


@proves("MUT-12")
def test_a_name_that_makes_too_long_a_label_is_invalid(upgrade: Upgrade) -> None:
    """Check that a rule is invalid if its label has more than 63 characters, the API server's own limit."""
    space = "node-upgrade-mutex-operator"
    for length, status in ((63, "True"), (64, "False")):
        name = "r" * (length - len(space) - 1)
        rule = upgrade.create(RULE, name, rule_spec())
        assert judged(upgrade, rule)[0] == status
        label = f"{RULE_LABEL}{name}.{space}"
        if length == 63:
            upgrade.label(upgrade.nodes[0], {label: ""})
            continue
        with pytest.raises(Rejected, match="63"):
            upgrade.label(upgrade.nodes[0], {label: ""})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"jobName": ""}, "jobName"),
        ({"jobName": None}, "jobName"),
        ({"jobNamespace": None}, "jobNamespace"),
        ({"jobSpec": None}, "jobSpec"),
        ({"jobSpec": "text"}, "jobSpec"),
        ({"type": "ansible"}, "type"),
    ],
)
def test_the_schema_refuses(upgrade: Upgrade, spec: dict[str, Any], message: str) -> None:
    """Table 5.1: The CRD rejects a rule with a missing or invalid field."""
    wanted = {name: value for name, value in rule_spec(**spec).items() if value is not None}
    with pytest.raises(Rejected, match=message):
        upgrade.create(RULE, "refused", wanted)


def test_its_own_write_is_no_reason_to_ask_again(upgrade: Upgrade, written: Audit) -> None:
    """X-2: The step ignores the update event of its own status write; the first event gets the reply `rule.checked`."""
    first = upgrade.functions.answer("check-rule", resource(events.RESOURCE_ADDED, upgrade.rule, RULE))
    assert first is not None
    assert first.get_type() == events.RULE_CHECKED
    count = len(written.writes_by())
    assert (
        upgrade.functions.answer("check-rule", resource(events.RESOURCE_UPDATED, upgrade.again(upgrade.rule), RULE))
        is None
    )
    assert len(written.writes_by()) == count
