"""Tests for the tokens with which clients read the journal, issued and reviewed by a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import requests

from console.web.journal_api import ACCEPTANCE_SECONDS, build_token_check
from eventing.journal.wire import AUDIENCE, NUMBERS_PATH, READER, TOKEN_HEADER
from kube.client.api_errors import Denied, Rejected
from kube.client.sync_client import SyncClient
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from tests.console.journal_service import (
    ACCOUNTS_PATH,
    TOKEN_PATH,
    JournalService,
    request_token,
    run_journal_service,
)

ONE_AUDIENCE, SHORT = "has the audience node-maintenance-journal only", "is valid for at most 900 seconds"
"""Parts of the ValidatingAdmissionPolicy's messages about rejected requests."""


@pytest.fixture(scope="module")
def service(served_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JournalService]:
    """Yield a journal API without a journal, on a cluster with the manifests of the component `console`."""
    with run_journal_service(served_cluster, tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.parametrize(
    ("account", "audience", "message"),
    [
        ("console", AUDIENCE, f'"system:serviceaccount:{NAMESPACE}:console" does not permit'),
        ("console", "", "the token is not valid for the journal"),
        ("console", "other", "the token is not valid for the journal"),
    ],
)
def test_token_of_other_account_or_audience_is_rejected(
    served_cluster: LocalCluster, service: JournalService, account: str, audience: str, message: str
) -> None:
    """Check that only a token for the journal's ServiceAccount and audience gives access to the journal."""
    token = request_token(served_cluster, account, audience)

    response = requests.get(f"{service.url}{NUMBERS_PATH}", headers={TOKEN_HEADER: token}, timeout=10)

    assert response.status_code == 401
    assert message in response.json()["message"]


def test_request_without_token_is_rejected(service: JournalService) -> None:
    """Check that a direct request without a token is rejected, even with the user headers of the API server's proxy."""
    forged = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "Authorization": "Bearer any"}

    responses = [
        requests.get(f"{service.url}{NUMBERS_PATH}", headers=headers, timeout=10)
        for headers in ({}, forged, {TOKEN_HEADER: "any"}, {TOKEN_HEADER: "a.b.c"})
    ]

    assert [response.status_code for response in responses] == [401, 401, 401, 401]
    assert all(list(response.json()) == ["message"] for response in responses)


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"expirationSeconds": 600}, ONE_AUDIENCE),
        ({"audiences": ["other"], "expirationSeconds": 600}, ONE_AUDIENCE),
        (
            {"audiences": [AUDIENCE, "other"], "expirationSeconds": 600},
            ONE_AUDIENCE,
        ),
        ({"audiences": [AUDIENCE]}, SHORT),
        ({"audiences": [AUDIENCE], "expirationSeconds": 901}, SHORT),
    ],
)
def test_policy_limits_tokens_of_journal_reader(served_cluster: LocalCluster, spec: Object, message: str) -> None:
    """Check that a policy rejects tokens with another audience or a longer lifetime, which RBAC cannot prevent."""
    with pytest.raises(Rejected, match=message):
        served_cluster.get_client().create(TOKEN_PATH, {"spec": spec})


@pytest.mark.usefixtures("service")
def test_policy_permits_valid_tokens_and_other_service_accounts(served_cluster: LocalCluster) -> None:
    """Check that the policy permits the journal reader's longest token, and all tokens of other ServiceAccounts."""
    client, other = served_cluster.get_client(), "/api/v1/namespaces/default/serviceaccounts"
    client.create(other, {"metadata": {"name": READER}})
    long_spec = {"audiences": ["other"], "expirationSeconds": 3600}

    responses = [
        client.create(TOKEN_PATH, {"spec": {"audiences": [AUDIENCE], "expirationSeconds": 900}}),
        client.create(f"{ACCOUNTS_PATH}/console/token", {"spec": long_spec}),
        client.create(f"{other}/{READER}/token", {"spec": long_spec}),
    ]
    client.run(client.api.request("DELETE", f"{other}/{READER}"))

    assert all(response["status"]["token"] for response in responses)


def test_accepted_token_is_not_reviewed_again_for_ten_seconds(
    served_cluster: LocalCluster, service: JournalService
) -> None:
    """Check that requests with the same token cause only one TokenReview in ten seconds."""
    now = [100.0]
    token = request_token(served_cluster)
    with closing(SyncClient(str(served_cluster.kubeconfig))) as connected_client:
        client = connected_client.copy_for_caller()
        check = build_token_check(client, lambda: now[0])
        check(token)
        client.api = client.api.with_token("expired")  # From here on, the API server rejects TokenReviews.
        now[0] += ACCEPTANCE_SECONDS - 1
        check(token)
        now[0] += 1

        with pytest.raises(Denied):
            check(token)
