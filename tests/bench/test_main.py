"""`--add` adds measurements to the earlier results, and the exit status depends only on the new ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench.__main__ as program
from bench.results import Failure, Results, Round, read, write

OLD, NEW = (Round("local", case, "ours", 0, 1.0, 0.1, 0.2) for case in ("100 pods", "10 pods"))
FAILED, FAILS = Failure("knative", "10 pods", "it rained"), Failure("local", "10 pods", "it rains")
NOT_BEGUN = Failure("local", "100 pods", "no cluster came up")


@pytest.mark.parametrize(
    ("measured", "status", "after"),
    [
        ([NEW], 0, Results({}, [OLD, NEW], [], [FAILED])),
        ([NEW, FAILS], 1, Results({}, [OLD], [], [FAILED, FAILS])),
        ([NOT_BEGUN], 1, Results({}, [OLD], [], [FAILED])),
        ([], 0, Results({}, [OLD], [], [FAILED])),
    ],
    ids=["all-measured", "one-failed", "one-not-begun", "nothing-yet"],
)
def test_a_run_that_adds_is_judged_by_what_it_measured_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[Round | Failure], status: int, after: Results
) -> None:
    def measure(*_: object) -> Iterator[Round | Failure]:
        yield from measured

    file = tmp_path / "results.json"
    write(file, Results({"cores": 1}, [OLD], [], [FAILED]))
    monkeypatch.setattr(program, "_measured", measure)

    done = CliRunner().invoke(program.main, ["--add", "--cases", "pods", "--results", str(file)])

    found = read(file)
    assert done.exit_code == status, done.output
    assert (found.rounds, found.failures) == (after.rounds, after.failures)
    assert all(each.line in done.stderr for each in measured)
