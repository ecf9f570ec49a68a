"""Makes single mutations of a Python source: what is changed, where, and the resulting source.

    comparison   < and <=, > and >=, == and !=, is and is not, in and not in
    boolean      and for or; one operand dropped; `not` dropped; a condition negated
    number       + for -, an integer one more, True for False, min for max
    statement    a call or an assignment removed; a function that returns at once

Code that decides nothing is not changed: docstrings, annotations, assertions, log lines, metrics,
names of slots, and constants of a module (mostly times, for which other values are right, too).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.functions import Functions

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_QUIET = ("_log.", "counters", "__slots__", "cast(", "TYPE_CHECKING", "super().__init__")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file; `before` and `after` are the texts of line `line`."""

    path: Path
    line: int
    function: str  # the function or `Class.method` that contains the change
    function_line: int  # the line where the function begins, with its decorators
    text: str  # the whole line, without its indentation
    before: str
    after: str
    source: str  # the whole file with the change in it

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}  {self.text}"
        return f"{place}\n    - {self.before}\n    + {self.after}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Return all mutants of a file, in the order of its lines."""
    source = path.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    tree = ast.parse(source)
    functions = Functions.of(source)
    for node, replacement in _changes(tree):
        begin = starts[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None, node
        assert node.end_col_offset is not None, node
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[begin:end].decode()
        context = source[starts[node.lineno - 1] : starts[node.end_lineno]].decode()
        if before == replacement or any(word in context for word in _QUIET):
            continue
        mutated = (source[:begin] + replacement.encode() + source[end:]).decode()
        function = functions.around(node.lineno)
        if function is None:
            continue
        text = source[starts[node.lineno - 1] : starts[node.lineno]].decode().strip()
        change = (" ".join(before.split()), replacement)
        place = (node.lineno, function.name, function.first_line)
        yield Mutant(path, *place, text, *change, mutated)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in _decisions(tree):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                other = _COMPARISONS[type(op)]
                yield node, f"({ast.unparse(left)} {other} {ast.unparse(right)})"
            case ast.BoolOp(op=op, values=values):
                other = " or " if isinstance(op, ast.And) else " and "
                same = " and " if isinstance(op, ast.And) else " or "
                operands = [f"({ast.unparse(value)})" for value in values]
                yield node, f"({other.join(operands)})"
                for dropped in range(len(operands)):
                    kept = operands[:dropped] + operands[dropped + 1 :]
                    yield node, f"({same.join(kept)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, f"({ast.unparse(operand)})"
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                other = "-" if isinstance(op, ast.Add) else "+"
                yield node, f"({ast.unparse(left)} {other} {ast.unparse(right)})"
            case ast.Constant(value=bool(value)):
                yield node, str(not value)
            case ast.Constant(value=int(value)):
                yield node, f"({value + 1})"
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                other = "max" if name == "min" else "min"
                yield node, other + ast.unparse(node).removeprefix(name)
            case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
                yield test, f"(not ({ast.unparse(test)}))"
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield node, "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                yield node, "pass"
            case ast.FunctionDef(body=[*_, _] as body) if _has_body(body):
                first = next(statement for statement in body if not _is_docstring(statement))
                yield first, "return"


def _decisions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the syntax tree that decide something."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Assert() | ast.arg() | ast.Import() | ast.ImportFrom() | ast.Raise():
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign() | ast.AnnAssign() if isinstance(tree, ast.Module | ast.ClassDef):
                continue
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from _decisions(ast.Expression(value))
                continue
            case ast.Subscript(value=ast.Name(id=name)) if name[0].isupper():
                continue
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _decisions(ast.With(items=[], body=node.body))
        else:
            yield from _decisions(node)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _has_body(body: list[ast.stmt]) -> bool:
    statements = [s for s in body if not _is_docstring(s)]
    return len(statements) > 1 and not isinstance(statements[0], ast.Return | ast.Assert)
