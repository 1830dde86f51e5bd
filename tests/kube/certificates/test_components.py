"""Tests of the renewal schedules of each component and of the validity period of certificates."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kube.certificates import key_pairs
from kube.certificates.components import COMPONENTS, moment_or_none, rounded_up
from kube.times import timestamp
from tests.kube.certificates.scenario import World
from tests.proofs import proves

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@proves("OSV-20", "OSV-21")
@pytest.mark.parametrize(
    ("component", "age", "due"),
    [
        ("kubevirt", 23 * HOUR, False),
        ("kubevirt", 25 * HOUR, True),
        ("cdi", 14 * DAY, False),
        ("cdi", 16 * DAY, True),
        ("macpool", 364 * DAY, False),
        ("macpool", 366 * DAY, True),
        ("ours", 14 * DAY, False),
        ("ours", 16 * DAY, True),
    ],
)
def test_authority_and_server_are_renewed_on_the_components_schedule(component: str, age: timedelta, due: bool) -> None:
    """OSV-21: CA and serving certificate get new serials after the component's period (1, 15 or 365 days)."""
    world = World(component, "api")
    world.settle()
    before = world.serial("api"), world.serial(world.component.authority)

    world.now += age
    world.settle()
    world.now += timedelta(minutes=11)
    world.settle()

    after = world.serial("api"), world.serial(world.component.authority)
    assert [old != new for old, new in zip(before, after, strict=True)] == [due, due]


@proves("OSV-21")
@pytest.mark.parametrize("component", COMPONENTS)
def test_nothing_begins_in_the_future_and_no_server_outlives_its_authority(component: str) -> None:
    world = World(component, "api")
    world.settle()

    for _ in range(30):
        world.now += world.component.period / 4
        for _write in world.writes():
            for name in ("api", world.component.authority):
                read = key_pairs.certificates(world.shown(name))
                assert all(key_pairs.is_valid(each, world.now) for each in read)
        server, signer = world.shown("api"), world.shown(world.component.authority)
        assert key_pairs.ends(server) <= max(key_pairs.ends(each) for each in world.trusted())
        assert key_pairs.is_signed_by(server, signer) or world.accepts("api")


@proves("OSV-21")
def test_a_clock_that_was_ahead_leaves_nothing_that_is_not_valid_yet() -> None:
    """Certificates issued by a clock that was a day ahead are replaced, because no client accepts them yet."""
    world = World("kubevirt", "api")
    world.now += DAY
    world.settle()
    world.now -= DAY

    world.settle()

    assert key_pairs.is_valid(world.shown("api"), world.now)
    assert world.accepts("api")


@pytest.mark.parametrize(("micros", "second"), [(0, 7), (1, 8), (999_999, 8)])
def test_a_pause_counts_from_a_whole_second_that_is_not_in_the_past(micros: int, second: int) -> None:
    moment = datetime(2026, 1, 1, 0, 0, 7, micros, tzinfo=timezone.utc)

    assert rounded_up(moment) == moment.replace(second=second, microsecond=0)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z", "2026-01-01", None, 5])
def test_what_is_no_time_is_none(text: object) -> None:
    assert moment_or_none(text) is None


def test_a_time_is_read_as_it_was_written() -> None:
    moment = datetime(2026, 2, 28, 23, 59, 59, tzinfo=timezone.utc)

    assert moment_or_none(timestamp(moment)) == moment
