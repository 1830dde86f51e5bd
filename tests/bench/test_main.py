"""Tests for the benchmark's option `--add`, which adds measurements to earlier results.

Only the new measurements determine the exit status.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench.__main__ as bench_main
from bench.results import Failure, Results, Round, read_results, write_results

OLD_ROUND, NEW_ROUND = (Round("local", case, "ours", 0, 1.0, 0.1, 0.2) for case in ("100 pods", "10 pods"))
OLD_FAILURE, NEW_FAILURE = Failure("knative", "10 pods", "timed out"), Failure("local", "10 pods", "timed out again")
START_FAILURE = Failure("local", "100 pods", "the cluster did not start")


@pytest.mark.parametrize(
    ("measured", "expected_exit_code", "expected_results"),
    [
        ([NEW_ROUND], 0, Results({}, [OLD_ROUND, NEW_ROUND], [], [OLD_FAILURE])),
        ([NEW_ROUND, NEW_FAILURE], 1, Results({}, [OLD_ROUND], [], [OLD_FAILURE, NEW_FAILURE])),
        ([START_FAILURE], 1, Results({}, [OLD_ROUND], [], [OLD_FAILURE])),
        ([], 0, Results({}, [OLD_ROUND], [], [OLD_FAILURE])),
    ],
    ids=["all-measured", "one-failed", "one-not-started", "none-measured"],
)
def test_only_new_measurements_determine_exit_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[Round | Failure],
    expected_exit_code: int,
    expected_results: Results,
) -> None:
    def measure(*_: object) -> Iterator[Round | Failure]:
        yield from measured

    file = tmp_path / "results.json"
    write_results(file, Results({"cores": 1}, [OLD_ROUND], [], [OLD_FAILURE]))
    monkeypatch.setattr(bench_main, "_measure_cases", measure)

    result = CliRunner().invoke(bench_main.main, ["--add", "--cases", "pods", "--results", str(file)])

    results = read_results(file)
    assert result.exit_code == expected_exit_code, result.output
    assert (results.rounds, results.failures) == (expected_results.rounds, expected_results.failures)
    assert all(failure.line in result.stderr for failure in measured)
