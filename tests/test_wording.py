"""Tests for the wording check of `make lint`: the checked texts, the reported problems, and the list of words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.wording import ROOT, find_problems, main, read_rules, read_texts


def check_text(tmp_path: Path, name: str, text: str) -> list[str]:
    """Return the problems in a file with this name and text."""
    path = tmp_path / name
    path.write_text(text)
    return list(find_problems(name, path, read_rules()))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.py", "def tell(): ...\n", 'a.py:1: "tell" in the name tell: write emit, record, log or report'),
        ("a.py", "class NodeRoom: ...\n", 'a.py:1: "room" in the name NodeRoom: write package, directory or capacity'),
        ("a.py", "def f(wing): ...\n", 'a.py:1: "wing" in the name wing: write component'),
        ("a.py", "x = 1\nTOLD = 2\n", 'a.py:2: "told" in the name TOLD: write emitted, recorded, logged or reported'),
        ("a.py", "# done by somebody\n", 'a.py:1: "somebody": write the actor, such as'),
        ("a.py", 'log("the node has no room")\n', 'a.py:1: "room": write client or webhook, component, package'),
        ("a.py", 'def f():\n    """The node."""\n', "a.py:2: the docstring does not start with a verb: The node."),
        ("a.md", "The pod rests.\n", 'a.md:1: "rests": write idle, waits'),
        ("a.md", "word " * 25, "a.md:1: the line has 125 columns: wrap it at 100"),
        ("a.html", "<p>Nobody waits</p>\n", 'a.html:1: "Nobody": write the actor'),
        ("a.yaml", "kind: Pod\nname: x # beside it\n", 'a.yaml:2: "beside": write next to, besides'),
    ],
)
def test_disallowed_word_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Check that names, comments, messages, docstrings and pages are checked, and that each problem has a remedy."""
    (reported,) = check_text(tmp_path, name, text)
    assert reported.startswith(problem)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'def f():\n    """Return the node."""\n    return "tell"\n'),
        ("a.py", "DEAD_LETTERS = 1\n"),
        ("a.md", "```\ntell me\n```\n| " + "a table " * 20 + "|\n"),
        ("a.yaml", "tell: somebody\n"),
        ("a.svg", "somebody\n"),
    ],
)
def test_code_and_data_are_not_checked(tmp_path: Path, name: str, text: str) -> None:
    """Check that code blocks, short strings, YAML values and images are not checked."""
    assert check_text(tmp_path, name, text) == []


def test_wording_exception_applies_only_to_listed_file_and_text(tmp_path: Path) -> None:
    """Check that an `allow` line has no effect on other files, or on other words in the same file."""
    path = tmp_path / "words.txt"
    path.write_text("prose somebody|nobody: the actor\nallow a.md somebody else: a title\n")
    rules = read_rules(path)
    page = tmp_path / "a.md"
    page.write_text("somebody else\nnobody\n")

    assert list(find_problems("a.md", page, rules)) == ['a.md:2: "nobody": write the actor']
    assert len(list(find_problems("b.md", page, rules))) == 2


@pytest.mark.parametrize("line", ["name tell", "word tell: emit", "name : emit", "allow README.md"])
def test_malformed_line_of_word_list_is_rejected(tmp_path: Path, line: str) -> None:
    """Check that a line without a kind, a value or a replacement causes an error with file and line number."""
    path = tmp_path / "words.txt"
    path.write_text(f"{line}\n")

    with pytest.raises(ValueError, match=r"words\.txt:1: write"):
        read_rules(path)


def test_word_list_has_no_unused_exceptions() -> None:
    """Check that the list of words has no exception for a text that the file no longer contains."""
    rules = read_rules()

    unused = [
        (file, text)
        for file, text in rules.allowed
        if not any(text in line for part in read_texts(ROOT / file) for line in part.text.splitlines())
    ]

    assert unused == []


def test_untracked_and_generated_files_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that only files that git tracks are checked, except the changelog and generated pages."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("CHANGELOG.md", "page.md", "untracked.md"):
        (tmp_path / name).write_text("nobody\n")
    subprocess.run(["git", "-C", tmp_path, "add", "CHANGELOG.md", "page.md"], check=True)

    assert main(tmp_path) == 1
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["page.md"]
