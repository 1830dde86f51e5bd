"""A whole upgrade, from the version that is wanted to pools that are as they were."""

from __future__ import annotations

from kube.mutex.versions import version_of
from tests.chain.mutex.stage import NEW, Stage
from tests.openshift import FakeMco


def test_a_whole_upgrade(stage: Stage, mco: FakeMco) -> None:
    """Steps 1 to 7 of the document over two pools and two rules, one of them with cleanup Jobs."""
    names = [*stage.workers("blue", 2), *stage.workers("green", 2)]
    stage.canary()
    stage.target("both", stage.pool("blue", "blue"), stage.pool("green", "green"))
    stage.rule("first", cleanup=True)
    stage.rule("second")
    run = stage.run("example", ["first", "second"], ["both"])
    stage.reaches(run, "Waiting")
    before = stage.selectors()
    stage.cvo.want(NEW)
    item = stage.reaches(run, "Finished")
    assert item["status"]["record"]["order"] == names
    assert mco.upgraded == names
    assert [version_of(stage.node(name)) for name in names] == [NEW] * 4
    assert stage.selectors() == before
    assert stage.labelled() == set()
    assert len(stage.created()) == len(names) * 3
