"""Tests of the planned certificate writes: each state of a component, and clients' trust between any two writes."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.certificate_objects import CERTIFICATE, KEY, TRUSTED
from kube.certificates.ca_injection import INJECT, carries
from kube.certificates.planning import next_write
from kube.certificates.writes import ISSUED, MADE, NOTED, PUBLISHED, SHARED, TAKEN
from tests.kube.certificates.scenario import PAUSE, SPACE, World
from tests.proofs import proves

LITTLE = timedelta(seconds=1)


@pytest.fixture
def world() -> World:
    """Return a settled scenario: one component with two servers that have certificates."""
    made = World("kubevirt", "api", "handler")
    made.settle()
    return made


def webhook(world: World) -> None:
    """Add a webhook configuration that requests the CA bundle by annotation."""
    metadata = {"annotations": {INJECT: f"{SPACE}/api"}}
    world.put("ValidatingWebhookConfiguration", "hook", {"metadata": metadata, "webhooks": [{"clientConfig": {}}]})


@proves("OSV-20")
def test_from_nothing_every_server_gets_its_certificate_at_once() -> None:
    world = World("cdi", "api")

    done = [write.reason for write in world.writes()]

    assert done == [MADE, PUBLISHED, TAKEN, ISSUED, NOTED]
    assert world.accepts("api")
    assert key_pairs.names(world.shown("api")) == ["api.svc"]
    assert certificate_objects.text(world.secret("api"), TRUSTED) == "".join(world.trusted())


@proves("X-3")
def test_where_nothing_is_due_nothing_is_written(world: World) -> None:
    world.now += timedelta(hours=12)

    assert world.settle() == []


@proves("OSV-22")
def test_a_new_authority_is_published_beside_the_old_one_before_any_server_shows_it(world: World) -> None:
    """Check the order of the writes, and that no server changes before the waiting period ends."""
    webhook(world)
    world.settle()
    before, serials = world.trusted(), (world.serial("api"), world.serial("handler"))
    world.now += timedelta(days=1)

    made = [(write.reason, write.of[0]) for write in world.writes()]
    published = world.trusted()
    world.now += PAUSE - LITTLE
    paused = world.settle()
    kept = (world.serial("api"), world.serial("handler"))
    world.now += LITTLE
    switched = [write.reason for write in world.writes()]

    assert made == [
        (MADE, "Secret"),
        *[(SHARED, "Secret")] * 2,
        (SHARED, "ValidatingWebhookConfiguration"),
        (PUBLISHED, "ConfigMap"),
    ]
    assert published[1:] == before
    assert len(published) == 2
    assert (paused, kept) == ([], serials)
    assert switched == [TAKEN, ISSUED, ISSUED, NOTED]
    assert world.trusted() == published
    assert all(world.accepts(name, published) for name in ("api", "handler"))


@proves("OSV-22")
def test_two_rotations_inside_one_pause_keep_both_old_authorities(world: World) -> None:
    """Clients that read the bundle before a server's certificate changes still trust that server afterwards."""
    authority = world.component.authority
    first = world.trusted()

    for _ in range(2):
        world.secret(authority)["metadata"]["annotations"] = {certificate_objects.RENEW: "now"}
        world.settle()
        world.now += PAUSE / 2
    both = world.trusted()
    world.now += PAUSE / 2
    world.settle()

    assert len(both) == 3
    assert set(first) < set(both)
    assert world.trusted() == both
    assert world.accepts("api", both)
    assert certificate_objects.RENEW not in world.secret(authority)["metadata"].get("annotations", {})


@proves("OSV-22")
def test_an_old_authority_is_trusted_until_it_expires_and_no_longer(world: World) -> None:
    """Servers that load a new certificate late stay trusted, and the bundle never has more than three CAs."""
    (old,) = world.trusted()
    most = 0
    while world.now < key_pairs.ends(old):
        assert old in world.trusted()
        world.now += timedelta(hours=1)
        world.settle()
        most = max(most, len(world.trusted()))

    assert old not in world.trusted()
    assert most == 3


@proves("OSV-20", "OSV-22")
def test_while_the_next_authority_is_held_back_servers_are_renewed_by_the_one_in_use(world: World) -> None:
    """Servers get one more certificate from the current CA, and no further ones as that CA's expiry approaches.

    The next CA is held back because a webhook configuration that trusts the servers cannot be written. Once the current
    CA has expired, the next CA signs.
    """
    webhook(world)
    world.settle()
    world.refused.add(("ValidatingWebhookConfiguration", "hook"))
    (authority,) = world.trusted()
    issued = 0
    while world.now + timedelta(minutes=20) < key_pairs.ends(authority):
        world.now += timedelta(minutes=20)
        assert all(key_pairs.is_valid(world.shown(name), world.now) for name in ("api", "handler"))
        issued += sum(write.reason == ISSUED for write in world.writes())
        assert all(key_pairs.is_signed_by(world.shown(name), authority) for name in ("api", "handler"))
    world.now = key_pairs.ends(authority)
    world.settle()

    assert issued == 2
    assert all(world.accepts(name) for name in ("api", "handler"))


@proves("OSV-22")
def test_looks_that_cannot_tell_who_reads_the_bundle_do_not_begin_the_pause_anew(world: World) -> None:
    """Passes that cannot list the CA injection targets do not restart the waiting period, and write nothing during it.

    Every tenth pass is such a pass. After the waiting period, it does not activate the next CA. It renews due
    certificates with the current CA, because an unknown number of such passes may follow.
    """
    webhook(world)
    world.settle()
    world.now += timedelta(days=1)
    begun = world.settle()
    (next_one, in_use) = world.trusted()
    done = []
    for number in range(1, 41):
        world.now += PAUSE / 40
        world.is_blind = number % 10 == 0
        done.append(world.settle())
    blind = world.shown("api")
    world.is_blind = False
    taken = [write.reason for write in world.writes()]

    assert begun[-1].reason == PUBLISHED
    assert not any(done[:-1])
    assert key_pairs.is_signed_by(blind, in_use)
    assert taken == [TAKEN, ISSUED, ISSUED, NOTED]
    assert key_pairs.is_signed_by(world.shown("api"), next_one)


@proves("OSV-22")
@pytest.mark.parametrize("sees", [True, False])
def test_the_pause_begins_where_somebody_looks_who_can_tell_who_reads_the_bundle(world: World, sees: bool) -> None:
    """Published CAs get no publication time until a pass knows the CA injection targets."""
    webhook(world)
    world.settle()
    world.now += timedelta(days=1)
    world.is_blind = True
    world.settle()
    world.now += PAUSE
    world.is_blind = not sees
    assert TAKEN not in [write.reason for write in world.writes()]
    world.now += PAUSE
    world.is_blind = False

    assert (TAKEN in [write.reason for write in world.writes()]) is sees


@proves("OSV-22")
def test_who_is_known_to_be_left_behind_ends_the_pause_though_others_may_be_too(world: World) -> None:
    """Remove the next CA's publication time if a server's Secret lacks that CA and cannot be written.

    The CA injection targets are unknown in this pass, which alone would not end the waiting period.
    """
    world.now += timedelta(days=1)
    world.settle()
    (newest, *older) = world.trusted()
    world.secret("api")["data"] |= certificate_objects.encoded({TRUSTED: "".join(older)})
    world.refused.add(("Secret", "api"))
    world.is_blind = True
    world.settle()
    publication = world.objects["ConfigMap", world.component.publication]

    assert key_pairs.fingerprint(newest) not in certificate_objects.published(publication, world.now)


@proves("OSV-20")
@pytest.mark.parametrize(
    "broken",
    [
        {},
        {CERTIFICATE: "garbage", KEY: "garbage"},
        {CERTIFICATE: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
    ],
)
def test_a_corrupt_certificate_is_replaced_at_once_by_the_same_authority(world: World, broken: dict[str, str]) -> None:
    trusted, other = world.trusted(), world.serial("handler")
    world.secret("api")["data"] = certificate_objects.encoded(broken)

    done = [write.reason for write in world.writes()]

    assert done == [ISSUED, NOTED]
    assert world.accepts("api", trusted)
    assert world.serial("handler") == other


@proves("OSV-20")
def test_a_key_of_another_certificate_is_corrupt(world: World) -> None:
    world.secret("api")["data"][KEY] = world.secret("handler")["data"][KEY]

    world.settle()

    assert certificate_objects.current(world.secret("api"))


@proves("OSV-20")
def test_a_secret_that_is_gone_comes_again_as_it_was(world: World) -> None:
    before = world.objects.pop(("Secret", "api"))
    trusted = world.trusted()

    world.settle()

    again = world.secret("api")
    assert again["type"] == before["type"]
    assert again["metadata"]["labels"] == before["metadata"]["labels"]
    assert key_pairs.names(world.shown("api")) == ["api.svc"]
    assert world.accepts("api", trusted)


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("lost", ["gone", "corrupt"])
def test_a_lost_authority_is_followed_by_another_without_locking_a_client_out(world: World, lost: str) -> None:
    before, serial = world.trusted(), world.serial("api")
    if lost == "gone":
        del world.objects["Secret", world.component.authority]
    else:
        world.secret(world.component.authority)["data"] = certificate_objects.encoded({CERTIFICATE: "garbage"})

    world.settle()
    published = world.trusted()
    kept = world.serial("api")
    world.now += PAUSE
    world.settle()

    assert kept == serial
    assert published[1:] == before
    assert world.accepts("api", published)
    assert world.serial("api") != serial


@proves("OSV-20")
def test_with_authority_and_a_secret_lost_together_the_server_is_not_kept_waiting(world: World) -> None:
    del world.objects["Secret", world.component.authority]
    del world.objects["Secret", "api"]

    world.settle()

    assert world.accepts("api")
    assert world.accepts("handler")


@proves("OSV-22")
def test_a_certificate_of_somebody_else_is_believed_until_ours_takes_its_place() -> None:
    """Publish the other issuer's CA together with ours, and replace the certificate one waiting period later."""
    theirs = World("cdi", "api")
    theirs.settle()
    world = World("cdi")
    world.add_server(
        "api", data={entry: certificate_objects.text(theirs.secret("api"), entry) for entry in (CERTIFICATE, KEY, TRUSTED)}
    )
    foreign = world.shown("api")

    world.settle()
    kept, published = world.shown("api"), world.trusted()
    world.now += PAUSE
    world.settle()

    assert kept == foreign
    assert set(theirs.trusted()) < set(published)
    assert world.shown("api") != foreign
    assert world.accepts("api", published)


@proves("OSV-20", "OSV-22")
def test_when_the_published_bundle_is_lost_the_same_one_is_published(world: World) -> None:
    world.now += timedelta(days=1)
    world.settle()
    before = world.trusted()
    del world.objects["ConfigMap", world.component.publication]

    world.settle()

    assert len(before) == 2
    assert world.trusted() == before


def test_who_may_write_the_bundle_alone_makes_nobody_trusted(world: World) -> None:
    """Ignore CAs that another writer adds to the ConfigMap: it counts only if the CA's Secret is lost."""
    stranger = World("macpool", "api")
    stranger.settle()
    before = world.trusted()
    publication = world.objects["ConfigMap", world.component.publication]
    publication["data"][certificate_objects.BUNDLE] += "".join(stranger.trusted())

    world.settle()

    assert world.trusted() == before


@proves("OSV-20")
def test_who_asks_gets_a_new_certificate_once(world: World) -> None:
    before = world.serial("api"), world.serial("handler")
    world.secret("api")["metadata"]["annotations"][certificate_objects.RENEW] = "now"

    world.settle()
    again = world.settle()

    assert world.serial("api") != before[0]
    assert world.serial("handler") == before[1]
    assert again == []
    assert world.secret("api")["metadata"]["annotations"] == {certificate_objects.NAMES: "api.svc"}


def test_other_names_are_another_certificate(world: World) -> None:
    world.secret("api")["metadata"]["annotations"][certificate_objects.NAMES] = "api.svc, 127.0.0.1"

    world.settle()

    assert key_pairs.names(world.shown("api")) == ["api.svc", "127.0.0.1"]


def test_without_names_nothing_is_issued_and_the_others_are() -> None:
    world = World("cdi", "api")
    world.put("Secret", "dumb", {"metadata": {"labels": {LABEL: "cdi"}}, "type": "Opaque"})

    world.settle()

    assert world.accepts("api")
    assert certificate_objects.current(world.secret("dumb")) is None


@proves("OSV-20", "OSV-22")
@pytest.mark.parametrize("component", COMPONENTS)
def test_between_any_two_writes_a_client_with_the_published_bundle_connects(component: str) -> None:
    """Clients with the current bundle, or with one as old as the waiting period, accept every server that has a Secret.

    The test covers four periods and deletes a server's Secret, the CA's Secret and the ConfigMap in turn.
    """
    world = World(component, "api", "handler")
    webhook(world)
    world.settle()
    read = [(world.now, world.trusted())]
    losses = [("Secret", "api"), ("Secret", world.component.authority), ("ConfigMap", world.component.publication)]
    steps = 0
    while world.now < read[0][0] + 4 * world.component.period:
        world.now += PAUSE if next_write(world.state(), world.now + PAUSE, PAUSE) else world.component.period / 8
        if steps % 5 == 4:
            world.objects.pop(losses[steps // 5 % 3])
        steps += 1
        for _ in world.writes():
            there = [name for name in ("api", "handler") if ("Secret", name) in world.objects]
            if world.trusted():
                assert all(world.accepts(name) for name in there)
            late = [bundle for at, bundle in read if at <= world.now - PAUSE][-1]
            assert all(world.accepts(name, late) for name in there)
        read.append((world.now, world.trusted()))
        assert carries(world.objects["ValidatingWebhookConfiguration", "hook"], "".join(world.trusted()))

    assert steps > 30


def test_what_is_noted_has_names_and_dates_and_no_key(world: World) -> None:
    publication = world.objects["ConfigMap", world.component.publication]
    status = json.loads(publication["data"][certificate_objects.STATUS])

    assert status.keys() == {"api", "handler", world.component.authority}
    assert status["api"]["serial"] == world.serial("api")
    assert status["api"]["ends"] > status["api"]["renewal"] > status["api"]["begins"]
    assert "PRIVATE" not in json.dumps(publication)


def test_neither_a_pair_nor_a_write_shows_a_key_when_it_is_printed(world: World) -> None:
    world.now += timedelta(days=1)
    write = next_write(world.state(), world.now, PAUSE)
    pair = certificate_objects.current(world.secret("api"))

    assert write is not None
    assert pair is not None
    for text in (repr(write), str(write), repr(pair), str([pair])):
        assert "data" not in text
        assert "PRIVATE" not in text


def test_an_authority_that_is_taken_out_of_its_secret_is_trusted_no_longer(world: World) -> None:
    """Stop trusting a CA that the administrator removes from the CA's Secret, for example after a key was stolen.

    At that time, every server has a certificate from another CA.
    """
    authority, (stolen,) = world.component.authority, world.trusted()
    world.secret(authority)["metadata"]["annotations"] = {certificate_objects.RENEW: "now"}
    world.settle()
    world.now += PAUSE
    world.settle()
    world.secret(authority)["data"][TRUSTED] = world.secret(authority)["data"][CERTIFICATE]

    world.settle()

    assert stolen not in world.trusted()
    assert world.accepts("api")
    assert world.accepts("handler")
