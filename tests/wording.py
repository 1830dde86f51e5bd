"""Finds words that this project does not use, docstrings without a leading verb, and too long Markdown lines.

`python -m tests.wording` prints `FILE:LINE: problem` for each problem in the files that git tracks, and exits with
status 1 if there is any. `make lint` runs this check. tests/wording.txt lists the words and the exceptions.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RULES = Path(__file__).with_suffix(".txt")
MAX_MARKDOWN_COLUMNS = 120
SKIPPED = (
    *("CHANGELOG.md", "docs/mutants.md", "docs/performance.md", "docs/requirements.md"),
    "tests/test_wording.py",
)
"""Files that are not checked: the changelog, generated pages, and the test of this check, which contains the words."""
COMMENTED = (".yaml", ".yml", ".sh")
"""Suffixes of files in which only the comments are checked, as in the Makefile."""
NO_VERBS = frozenset(
    (
        *("a", "an", "the", "what", "whether", "who", "whose", "whom", "those", "these", "this", "that", "it", "its"),
        *("of", "all", "how", "when", "where", "why", "each", "every", "none", "nothing", "no", "not", "one", "some"),
        *("any", "both", "for", "as", "in", "on", "at", "by", "to", "with", "without", "if", "so", "only", "other"),
    )
)
"""Words that must not begin a function's docstring; ruff's D401 finds verbs that are not imperative."""


class Text(NamedTuple):
    """A piece of text with its kind ("name", "docstring" or "prose") and the number of its first line."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Rules:
    """The words that the project does not use, with their replacements.

    Attributes:
        names: The replacement of each word that no identifier may contain.
        prose: The patterns that no prose may match, each with its replacement.
        allowed: The file and the text of each exception.
    """

    names: dict[str, str]
    prose: list[tuple[re.Pattern[str], str]]
    allowed: list[tuple[str, str]]

    def find_problems(self, file: str, text: Text) -> Iterator[str]:
        """Yield a message about each word in this text that the project does not use."""
        if text.kind == "name":
            if not self._is_allowed(file, text.text, text.text):
                for word in split_identifier(text.text):
                    if word in self.names:
                        yield f'"{word}" in the name {text.text}: write {self.names[word]}'
            return
        for line in text.text.splitlines():
            for pattern, replacement in self.prose:
                for match in pattern.finditer(line):
                    if not self._is_allowed(file, line, match[0]):
                        yield f'"{match[0]}": write {replacement}'

    def _is_allowed(self, file: str, line: str, word: str) -> bool:
        """Return whether an exception allows the word in this line of the file."""
        return any(file == allowed_file and text in line and word in text for allowed_file, text in self.allowed)


def read_rules(path: Path = RULES) -> Rules:
    """Parse the list of words. Raises `ValueError` for a line without a kind, a value or a replacement."""
    rules = Rules({}, [], [])
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        head, separator, note = line.partition(": ")
        kind, _, value = head.partition(" ")
        if not (separator and value and note) or kind not in ("name", "prose", "allow"):
            raise ValueError(
                f"{path}:{number}: write `name WORD: INSTEAD`, `prose REGEX: INSTEAD` or `allow FILE TEXT: REASON`"
            )
        if kind == "name":
            rules.names[value] = note
        elif kind == "prose":
            rules.prose.append((re.compile(value, re.IGNORECASE), note))
        else:
            file, _, text = value.partition(" ")
            rules.allowed.append((file, text))
    return rules


def split_identifier(identifier: str) -> list[str]:
    """Return the lower-case words of an identifier."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.sub("(?i)dead_?letter", "", identifier))
    return [word.lower() for word in words]


def read_texts(path: Path) -> Iterator[Text]:
    """Yield the names and the prose in a file, or nothing if the file contains neither."""
    if path.suffix == ".py":
        yield from _read_python(path.read_text())
        return
    is_markdown = path.suffix == ".md"
    if not (is_markdown or path.suffix in (".html", *COMMENTED) or path.name == "Makefile"):
        return
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if is_markdown and line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_markdown or path.suffix == ".html":
            if not is_code:
                yield Text("prose", number, line)
        elif "#" in line:
            yield Text("prose", number, line.partition("#")[2])


def _read_python(source: str) -> Iterator[Text]:
    """Yield the names of definitions, arguments and variables, the docstrings, the messages and the comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text("name", node.lineno, node.name)
        elif isinstance(node, ast.arg):
            yield Text("name", node.lineno, node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Text("name", node.lineno, node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield Text("prose", node.lineno, node.value)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            yield Text("docstring", node.body[0].lineno, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text("prose", token.start[0], token.string)


def find_problems(file: str, path: Path, rules: Rules) -> Iterator[str]:
    """Yield `FILE:LINE: problem` for each problem of a file."""
    for text in read_texts(path):
        if text.kind == "docstring":
            first = re.match(r"[A-Za-z]+", text.text)
            if not first or first[0].lower() in NO_VERBS:
                yield f"{file}:{text.line}: the docstring does not start with a verb: {text.text.splitlines()[0]}"
            continue
        yield from (f"{file}:{text.line}: {problem}" for problem in rules.find_problems(file, text))
        if (
            path.suffix == ".md"
            and len(text.text) > MAX_MARKDOWN_COLUMNS
            and not text.text.lstrip().startswith(("|", "![", "<"))
        ):
            yield f"{file}:{text.line}: the line has {len(text.text)} columns: wrap it at 100"


def list_tracked_files(root: Path) -> list[str]:
    """Return the paths of the files that git tracks in a work tree, except those in `SKIPPED`."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True).stdout
    return [file for file in listed.splitlines() if file not in SKIPPED and (root / file).is_file()]


def main(root: Path = ROOT) -> int:
    """Print all problems in the work tree; return the exit status, which is 1 if there is any problem."""
    rules = read_rules()
    problems = [problem for file in list_tracked_files(root) for problem in find_problems(file, root / file, rules)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
