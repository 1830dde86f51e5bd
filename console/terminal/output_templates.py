"""Output formats that select fields, as in kubectl: `jsonpath=TEMPLATE` and `custom-columns=HEADING:PATH,...`.

No Python library supports kubectl's JSONPath dialect, with braces, `range` and escaped dots. This module supports its
common features: names, wildcards, indexes, slices, recursive descent, filters with one comparison, `range` and quoted
text. It rejects any other syntax with an error that quotes the unsupported part. Pure functions.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

JSONPATH, CUSTOM_COLUMNS = "jsonpath=", "custom-columns="
NO_VALUE = "<none>"
"""Cell of a custom column for an object without the field, as in kubectl."""
COLUMN_SEPARATOR = "   "
_ACTION_PATTERN = re.compile(r"""\{((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^{}"'])*)\}""")
_STEP_PATTERN = re.compile(
    r"""\.\.(?P<deep>(?:\\.|[^\\.\[\]\s])+)|\.?\[\*\]|\.(?P<name>(?:\\.|[^\\.\[\]\s])+)|\[(?P<index>-?\d+)\]"""
    r"""|\[(?P<slice>-?\d*:-?\d*)\]|\[(?P<quote>['"])(?P<quoted>[^'"]+)(?P=quote)\]|\[\?\((?P<filter>.+?)\)\]"""
)
_FILTER_PATTERN = re.compile(r"@(?P<path>[^=!<>]*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>.+))?")
_COLUMN_PATTERN = re.compile(r"(?P<heading>[^:,]+):(?P<path>(?:\[[^\]]*\]|[^,\[])+)")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt},
    **{"<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
Step = Callable[[Any], Iterable[Any]]
"""Function that returns the values which one step of a path selects from a value."""


class TemplateError(ValueError):
    """Raised if a template cannot be parsed; the message quotes the invalid part and describes the valid syntax."""


@dataclass(frozen=True)
class Path:
    """A parsed JSONPath; if `is_absolute` is true, it starts at the root object, even inside a `range`."""

    steps: Sequence[Step]
    is_absolute: bool = False

    def select(self, value: Any) -> list[Any]:
        """Return the values that this path selects from `value`."""
        values = [value]
        for step in self.steps:
            values = [selected for item in values for selected in step(item)]
        return values


@dataclass(frozen=True)
class Range:
    """A `{range PATH}...{end}` part of a template: `body` is repeated for each value at `path`."""

    path: Path
    body: Sequence[TemplatePart]


TemplatePart = str | Path | Range
"""Part of a template: text, a path whose values are printed, or a range."""


def is_template(output: str) -> bool:
    """Return whether the value of `--output` is a template that selects fields."""
    return output.startswith((JSONPATH, CUSTOM_COLUMNS))


def check_template(output: str) -> None:
    """Raise `TemplateError` if the template in the value of `--output` cannot be parsed."""
    if output.startswith(JSONPATH):
        parse_template(output.removeprefix(JSONPATH))
    else:
        parse_columns(output.removeprefix(CUSTOM_COLUMNS))


def format_fields(value: Any, output: str) -> str:
    """Format the fields that the template in `output` selects from a JSON value, whose strings must be escaped.

    As in kubectl, the output of `jsonpath` does not end with a newline.
    """
    if output.startswith(JSONPATH):
        return _format_parts(parse_template(output.removeprefix(JSONPATH)), value, value)
    return _format_columns(parse_columns(output.removeprefix(CUSTOM_COLUMNS)), value)


def parse_template(template: str) -> list[TemplatePart]:
    """Parse a template such as `{range .items[*]}{.metadata.name}{"\\n"}{end}`. Raises `TemplateError`."""
    actions = re.split(_ACTION_PATTERN, template)
    if len(actions) == 1:
        raise TemplateError(f"{template!r} has no path in braces: write it as {{.metadata.name}}")
    stack: list[tuple[Path, list[TemplatePart]]] = [(Path(()), [])]
    for number, text in enumerate(actions):
        if number % 2 == 0:
            _add_text(text, stack[-1][1])
        elif (action := text.strip()) == "end":
            if len(stack) == 1:
                raise TemplateError("{end} has no {range ...} before it: remove one of them")
            path, body = stack.pop()
            stack[-1][1].append(Range(path, body))
        elif action.startswith("range "):
            stack.append((parse_path(action.removeprefix("range ").strip()), []))
        else:
            stack[-1][1].append(_parse_action(action))
    if len(stack) > 1:
        raise TemplateError("{range ...} has no {end}: add it after the repeated part")
    return stack[0][1]


def _add_text(text: str, parts: list[TemplatePart]) -> None:
    if "{" in text or "}" in text:
        raise TemplateError(f"{text!r} has a brace or quote without a counterpart: close it")
    if text:
        parts.append(text)


def _parse_action(action: str) -> TemplatePart:
    """Parse the content of one pair of braces: quoted text or a path."""
    if len(action) > 1 and action[0] == action[-1] and action[0] in "\"'":
        return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1]), action[1:-1])
    return parse_path(action)


def parse_path(text: str) -> Path:
    """Parse a path such as `.status.conditions[?(@.type=="Drained")].status`. Raises `TemplateError`."""
    is_absolute, rest = text.startswith("$"), text.removeprefix("$").removeprefix("@")
    if rest in ("", ".") and text:
        return Path((), is_absolute)
    steps: list[Step] = []
    position = 0
    while position < len(rest):
        match = _STEP_PATTERN.match(rest, position)
        if not match:
            break
        steps.append(_build_step(match))
        position = match.end()
    if position < len(rest) or not steps:
        raise TemplateError(
            f"{rest[position:]!r} in the path {text!r} is not supported: "
            "write .NAME, ['NAME'], ..NAME, [*], [0], [0:2] or [?(@.NAME==\"VALUE\")]"
        )
    return Path(steps, is_absolute)


def _build_step(match: re.Match[str]) -> Step:
    name = match["name"] or match["deep"] or match["quoted"]
    key = re.sub(r"\\(.)", r"\1", name) if name else ""
    if match["deep"]:
        return lambda value: [found for child in _iter_descendants(value) for found in _get_children(child, key)]
    if match["index"]:
        index = int(match["index"])
        return lambda value: value[index:][:1] if isinstance(value, list) and -len(value) <= index else []
    if match["slice"]:
        start, end = (int(bound) if bound else None for bound in match["slice"].split(":"))
        return lambda value: value[start:end] if isinstance(value, list) else []
    if match["filter"]:
        return _build_filter(match["filter"].strip())
    return lambda value: _get_children(value, key or "*")


def _get_children(value: Any, key: str) -> list[Any]:
    """Return the value of the field `key` in a list, or all children of the value if `key` is `*`."""
    if key == "*":
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value[key]] if isinstance(value, dict) and key in value else []


def _iter_descendants(value: Any) -> Iterator[Any]:
    """Yield the value and, recursively, all its children."""
    yield value
    for child in _get_children(value, "*"):
        yield from _iter_descendants(child)


def _build_filter(text: str) -> Step:
    """Build the step that selects the list items for which a condition such as `@.type=="Drained"` is true."""
    match = _FILTER_PATTERN.fullmatch(text)
    if not match:
        raise TemplateError(f'the filter {text!r} is not supported: write ?(@.NAME=="VALUE")')
    path = parse_path(f"@{match['path']}")
    if not match["operator"]:
        return lambda value: [item for item in _get_children(value, "*") if path.select(item)]
    compare, literal = _OPERATORS[match["operator"]], _parse_literal(match["literal"].strip())

    def is_met(item: Any) -> bool:
        return any(type(found) is type(literal) and compare(found, literal) for found in path.select(item))

    return lambda value: [item for item in _get_children(value, "*") if is_met(item)]


def _parse_literal(text: str) -> str | float | bool:
    """Parse the literal in a filter: a string, a number or a boolean, because only these can be compared by order."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, str | float | int):  # bool is a subclass of int.
            return value
    raise TemplateError(f"{text} is not a value: write a number, true, false or quoted text")


def _format_parts(parts: Sequence[TemplatePart], value: Any, root: Any) -> str:
    return "".join(_format_part(part, value, root) for part in parts)


def _format_part(part: TemplatePart, value: Any, root: Any) -> str:
    if isinstance(part, str):
        return part
    path = part.path if isinstance(part, Range) else part
    found = path.select(root if path.is_absolute else value)
    if isinstance(part, Range):
        return "".join(_format_parts(part.body, item, root) for item in found)
    return " ".join(map(_format_value, found))


def _format_value(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_columns(spec: str) -> list[tuple[str, Path]]:
    """Parse a list of columns such as `NODE:.spec.nodeName,PHASE:.status.phase`. Raises `TemplateError`."""
    columns, position = [], 0
    while match := _COLUMN_PATTERN.match(spec, position):
        path = match["path"].strip()
        path = path[1:-1] if path.startswith("{") and path.endswith("}") else path
        columns.append((match["heading"].strip(), parse_path(path if path[:1] in ".[$@" else f".{path}")))
        position = match.end() + 1 if spec[match.end() : match.end() + 1] in ("", ",") else match.end()
    if position <= len(spec) or not columns:
        raise TemplateError(
            f"{spec[position:]!r} is not a column: write HEADING:PATH, with commas between the columns, "
            "such as NODE:.spec.nodeName,PHASE:.status.phase"
        )
    return columns


def _format_columns(columns: Sequence[tuple[str, Path]], value: Any) -> str:
    """Return a table with one row per object: the items of a list, or the object itself."""
    rows = [
        [heading for heading, _ in columns],
        *([_format_cell(path.select(item)) for _, path in columns] for item in _list_objects(value)),
    ]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = (COLUMN_SEPARATOR.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _list_objects(value: Any) -> list[Any]:
    """Return the list in the field `items`, or in the only field; if there is none, return only the object itself."""
    fields = list(value.values())
    items = value.get("items", fields[0] if len(fields) == 1 else None)
    return items if isinstance(items, list) else [value]


def _format_cell(values: Sequence[Any]) -> str:
    return ",".join(map(_format_value, values)) or NO_VALUE
