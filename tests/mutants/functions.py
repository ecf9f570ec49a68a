"""Finds the functions of a source file by line.

Names stay the same when lines move, so a map of tests stays valid after most edits.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a method (`Class.method`), and its lines with decorators."""

    name: str
    first_line: int
    last_line: int


@dataclass(frozen=True, slots=True)
class Functions:
    """All functions of a file; an outer function comes before those that it defines."""

    functions: list[Function]

    @classmethod
    def of(cls, source: bytes) -> Functions:
        functions: list[Function] = []
        _collect(ast.parse(source), "", functions)
        return cls(functions)

    def around(self, line: int) -> Function | None:
        """Return the innermost function that contains the line, or None outside of all functions."""
        around = [f for f in self.functions if f.first_line <= line <= f.last_line]
        return max(around, key=lambda function: function.first_line, default=None)


def _collect(tree: ast.AST, prefix: str, functions: list[Function]) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            _collect(node, f"{prefix}{node.name}.", functions)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            functions.append(Function(prefix + node.name, first_line, node.end_lineno or 0))
            _collect(node, f"{prefix}{node.name}.", functions)
        else:
            _collect(node, prefix, functions)
