"""Tests for `check-rule`, which checks with a dry run whether the API server accepts the Jobs of a MutexRule."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventing import events
from kube.client.api import JSON_PATCH
from kube.client.api_errors import Rejected
from kube.mutex.objects import RULE_KIND, RULE_LABEL_PREFIX, get_condition
from kube.paths import Object
from localcluster.audit_log import AuditLog, is_dry_run
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from localcluster.programs import build
from tests.functions.event_builders import build_resource_event
from tests.functions.mutex.conftest import CONTAINER, UpgradeScenario, build_job_spec, build_rule_spec
from tests.functions.mutex.test_missing_permissions import has_access_review_result
from tests.proofs import proves

ROOT = Path(__file__).parents[3]
INVALID_RULE_SPECS: tuple[tuple[str, Object, str], ...] = (
    ("unknown field", {"jobSpec": {**build_job_spec(), "tempalte": {}}}, "strict decoding error"),
    ("no containers", {"jobSpec": {"template": {"spec": {"restartPolicy": "Never"}}}}, "spec.jobSpec"),
    ("restart", {"jobSpec": {"template": {"spec": {"containers": [CONTAINER], "restartPolicy": "Always"}}}}, "restart"),
    ("selector", {"jobSpec": {**build_job_spec(), "selector": {"matchLabels": {"a": "b"}}}}, "selector"),
    ("template", {"jobSpec": {"template": "x"}}, "spec.jobSpec"),
    ("affinity", {"jobSpec": build_job_spec(affinity={"nodeAffinity": "x"})}, "spec.jobSpec"),
    ("cleanup", {"cleanUpJobSpec": {"template": {}}}, "spec.cleanUpJobSpec"),
    ("name", {"jobName": "Job Name"}, "spec.jobName"),
    ("namespace", {"jobNamespace": "nowhere"}, "cannot create"),
)


def check_rule(upgrade: UpgradeScenario, rule: Object) -> tuple[str, str]:
    """Run `check-rule` for the MutexRule, and return the status and message of its condition."""
    upgrade.functions.invoke(
        "check-rule", build_resource_event(events.RESOURCE_UPDATED, upgrade.read_object(rule), RULE_KIND)
    )
    condition = get_condition(upgrade.read_object(rule), "ValidConfig")
    return condition["status"], condition["message"]


@proves("MUT-10", "MUT-11")
@pytest.mark.parametrize(
    ("spec", "message"), [case[1:] for case in INVALID_RULE_SPECS], ids=[case[0] for case in INVALID_RULE_SPECS]
)
def test_invalid_rule_reports_api_server_message_until_corrected(
    upgrade: UpgradeScenario, audit_after_setup: AuditLog, spec: Object, message: str
) -> None:
    """Check that the condition of an invalid MutexRule contains the API server's message until the rule is corrected.

    `check-rule` creates no Job, and writes only the rule's status.
    """
    rule = upgrade.create_object(RULE_KIND, "bad", build_rule_spec(**spec))
    status, condition_message = check_rule(upgrade, rule)
    assert status == "False"
    assert message in condition_message
    upgrade.administrator_client.patch(
        f"{RULES_PATH}/bad", [{"op": "add", "path": "/spec", "value": build_rule_spec()}], JSON_PATCH
    )
    assert check_rule(upgrade, rule) == ("True", "")
    writes = audit_after_setup.list_writes_by()
    assert {entry["objectRef"].get("subresource") for entry in writes if not is_dry_run(entry)} == {"status"}
    assert upgrade.list_jobs() == []


@proves("MUT-10")
def test_null_field_of_job_spec_is_treated_as_absent(upgrade: UpgradeScenario) -> None:
    """Check that `check-rule` treats a null field in the Job's spec as absent, like the API server."""
    rule = upgrade.create_object(
        RULE_KIND, "nulls", build_rule_spec(jobSpec=build_job_spec(affinity={"nodeAffinity": None}))
    )
    assert check_rule(upgrade, rule) == ("True", "")


@proves("MUT-1", "MUT-10")
def test_rule_of_another_namespace_is_valid_after_documented_remedy(
    upgrade: UpgradeScenario, idle_cluster: LocalCluster
) -> None:
    """Check that the condition names the missing Roles, and that the commands in docs/mutex.md copy and show them."""
    rule = upgrade.create_object(RULE_KIND, "shop", build_rule_spec(jobNamespace="shop"))
    status, message = check_rule(upgrade, rule)
    show_command = "kubectl get role,rolebinding check-rule run-job -n shop"
    copied = "Roles and RoleBindings check-rule and run-job from namespace node-upgrade-mutex-operator"
    assert status == "False"
    assert copied in message
    assert message.endswith(f"to see which of them are missing, run {show_command}")

    section = (ROOT / "docs/mutex.md").read_text().partition("### Namespaces of Jobs")[2].partition("###")[0]
    commands = [line.removeprefix("$ ") for line in section.splitlines() if line.startswith("$ ")]
    assert commands[-1] == show_command
    path = f"{build.ensure_programs()}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(idle_cluster.kubeconfig)}
    for command in commands:
        subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=True)

    review = {"group": "batch", "resource": "jobs", "verb": "create", "namespace": "shop"}
    for step in ("check-rule", "run-job"):
        client = upgrade.functions.clusters[step]
        wait_until_ready(
            f"permission of {step}", partial(has_access_review_result, client, review, True), idle_cluster.servers
        )
    reference = events.ObjectReference.from_object(upgrade.read_object(rule))
    upgrade.functions.invoke("check-rule", events.build_event(events.RULE_CHECK_PENDING, "resync-runs", reference))
    assert get_condition(upgrade.read_object(rule), "ValidConfig")["status"] == "True"
    idle_cluster.kubectl("delete", "namespace", "shop", "--wait=false")


RULES_PATH = "/apis/openshift-optional.skrzypek.io/v1alpha1/namespaces/node-upgrade-mutex-operator/mutexrules"


@proves("MUT-12")
def test_rule_with_too_long_label_is_invalid(upgrade: UpgradeScenario) -> None:
    """Check that a MutexRule is invalid if its node label exceeds the API server's limit of 63 characters."""
    namespace = "node-upgrade-mutex-operator"
    for length, status in ((63, "True"), (64, "False")):
        name = "r" * (length - len(namespace) - 1)
        rule = upgrade.create_object(RULE_KIND, name, build_rule_spec())
        assert check_rule(upgrade, rule)[0] == status
        label = f"{RULE_LABEL_PREFIX}{name}.{namespace}"
        if length == 63:
            upgrade.patch_node_labels(upgrade.nodes[0], {label: ""})
            continue
        with pytest.raises(Rejected, match="63"):
            upgrade.patch_node_labels(upgrade.nodes[0], {label: ""})


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
def test_crd_rejects_invalid_rule(upgrade: UpgradeScenario, spec: dict[str, Any], message: str) -> None:
    """Table 5.1: The CRD rejects a MutexRule with a missing or invalid field."""
    rule_spec = {name: value for name, value in build_rule_spec(**spec).items() if value is not None}
    with pytest.raises(Rejected, match=message):
        upgrade.create_object(RULE_KIND, "refused", rule_spec)


def test_check_rule_ignores_event_of_own_status_write(upgrade: UpgradeScenario, audit_after_setup: AuditLog) -> None:
    """X-2: `check-rule` replies `rule.checked` to the first event, and ignores the event about its own status write."""
    first_reply = upgrade.functions.invoke(
        "check-rule", build_resource_event(events.RESOURCE_ADDED, upgrade.rule, RULE_KIND)
    )
    assert first_reply is not None
    assert first_reply.get_type() == events.RULE_CHECKED
    count = len(audit_after_setup.list_writes_by())
    assert (
        upgrade.functions.invoke(
            "check-rule", build_resource_event(events.RESOURCE_UPDATED, upgrade.read_object(upgrade.rule), RULE_KIND)
        )
        is None
    )
    assert len(audit_after_setup.list_writes_by()) == count
