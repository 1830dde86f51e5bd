"""Tests for the variables `OPERATOR` (the command of another operator) and `OPERATOR_CRD` (the file with its CRD)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peer_operator import Operator, parse_operator
from localcluster.errors import LocalClusterError


@pytest.fixture
def crd_file(tmp_path: Path) -> Path:
    file = tmp_path / "crd.yaml"
    file.touch()
    return file


def test_no_other_operator_is_measured_if_both_variables_are_empty() -> None:
    assert parse_operator("", "") is None


def test_operator_command_may_have_arguments_and_be_found_on_path(
    crd_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", str(python.parent))

    operator = parse_operator(f"{python.name} -c 'a b'", str(crd_file))

    assert operator == Operator((str(python), "-c", "a b"), crd_file)
    assert str(operator) == f"OPERATOR={python} -c 'a b'"


def test_path_of_operator_program_may_be_relative(crd_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(sys.executable).parent)

    operator = parse_operator(f"./{Path(sys.executable).name}", str(crd_file))

    assert operator is not None
    assert Path(operator.command[0]).is_absolute()


@pytest.mark.parametrize("variables", [("/bin/true", ""), ("", "crd.yaml")])
def test_operator_requires_both_variables(variables: tuple[str, str]) -> None:
    with pytest.raises(LocalClusterError, match="only one of OPERATOR and OPERATOR_CRD is set: set both"):
        parse_operator(*variables)


def test_missing_operator_program_is_rejected(crd_file: Path) -> None:
    with pytest.raises(
        LocalClusterError, match="OPERATOR=/no/such --flag: program not found or not executable: set the path"
    ):
        parse_operator("/no/such --flag", str(crd_file))


def test_non_executable_file_is_rejected(crd_file: Path) -> None:
    with pytest.raises(LocalClusterError, match=f"OPERATOR={crd_file}: program not found or not executable"):
        parse_operator(str(crd_file), str(crd_file))


def test_operator_command_with_unclosed_quote_is_rejected(crd_file: Path) -> None:
    with pytest.raises(LocalClusterError, match="OPERATOR=/bin/true 'a: No closing quotation"):
        parse_operator("/bin/true 'a", str(crd_file))


def test_missing_crd_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"OPERATOR_CRD=.*/none.yaml: file not found: set the file"):
        parse_operator("/bin/true", str(tmp_path / "none.yaml"))
