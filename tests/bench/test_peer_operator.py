"""`OPERATOR` and `OPERATOR_CRD`: a program with arguments, a file, and the errors for invalid values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peer_operator import Operator, named
from localcluster.errors import LocalClusterError


@pytest.fixture
def crd(tmp_path: Path) -> Path:
    file = tmp_path / "crd.yaml"
    file.touch()
    return file


def test_without_both_there_is_none() -> None:
    assert named("", "") is None


def test_a_program_may_have_arguments_and_be_on_the_path(crd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = Path(sys.executable)
    monkeypatch.setenv("PATH", str(python.parent))

    found = named(f"{python.name} -c 'a b'", str(crd))

    assert found == Operator((str(python), "-c", "a b"), crd)
    assert str(found) == f"OPERATOR={python} -c 'a b'"


def test_a_program_may_be_named_from_here(crd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(sys.executable).parent)

    found = named(f"./{Path(sys.executable).name}", str(crd))

    assert found is not None
    assert Path(found.command[0]).is_absolute()


@pytest.mark.parametrize("variables", [("/bin/true", ""), ("", "crd.yaml")])
def test_one_without_the_other_is_refused(variables: tuple[str, str]) -> None:
    with pytest.raises(LocalClusterError, match=r"OPERATOR_CRD=.* belong together; give both"):
        named(*variables)


def test_a_program_that_is_not_there_is_refused(crd: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"OPERATOR=/no/such --flag is no program.*: give the path"):
        named("/no/such --flag", str(crd))


def test_a_file_that_nobody_can_run_is_refused(crd: Path) -> None:
    with pytest.raises(LocalClusterError, match=f"OPERATOR={crd} is no program that can be run"):
        named(str(crd), str(crd))


def test_quotes_that_do_not_end_are_refused(crd: Path) -> None:
    with pytest.raises(LocalClusterError, match="OPERATOR=/bin/true 'a: No closing quotation"):
        named("/bin/true 'a", str(crd))


def test_a_crd_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"OPERATOR_CRD=.*/none.yaml is no file: give the Custom"):
        named("/bin/true", str(tmp_path / "none.yaml"))
