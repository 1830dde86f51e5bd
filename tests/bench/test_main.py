"""`--add` adds measurements to the earlier results, and the exit status depends only on the new ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench.__main__ as program
from bench.results import Failure, Results, Round, read_results, write_results

OLD_ROUND, NEW_ROUND = (Round("local", case, "ours", 0, 1.0, 0.1, 0.2) for case in ("100 pods", "10 pods"))
OLD_FAILURE, NEW_FAILURE = Failure("knative", "10 pods", "timed out"), Failure("local", "10 pods", "timed out again")
START_FAILURE = Failure("local", "100 pods", "the cluster did not start")


@pytest.mark.parametrize(
    ("measured", "status", "after"),
    [
        ([NEW_ROUND], 0, Results({}, [OLD_ROUND, NEW_ROUND], [], [OLD_FAILURE])),
        ([NEW_ROUND, NEW_FAILURE], 1, Results({}, [OLD_ROUND], [], [OLD_FAILURE, NEW_FAILURE])),
        ([START_FAILURE], 1, Results({}, [OLD_ROUND], [], [OLD_FAILURE])),
        ([], 0, Results({}, [OLD_ROUND], [], [OLD_FAILURE])),
    ],
    ids=["all-measured", "one-failed", "one-not-begun", "nothing-yet"],
)
def test_exit_status_depends_on_new_measurements_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[Round | Failure], status: int, after: Results
) -> None:
    def measure(*_: object) -> Iterator[Round | Failure]:
        yield from measured

    file = tmp_path / "results.json"
    write_results(file, Results({"cores": 1}, [OLD_ROUND], [], [OLD_FAILURE]))
    monkeypatch.setattr(program, "_measure_cases", measure)

    result = CliRunner().invoke(program.main, ["--add", "--cases", "pods", "--results", str(file)])

    results = read_results(file)
    assert result.exit_code == status, result.output
    assert (results.rounds, results.failures) == (after.rounds, after.failures)
    assert all(failure.line in result.stderr for failure in measured)
