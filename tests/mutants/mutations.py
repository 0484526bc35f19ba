"""Where a file can be changed, and the file with one of these changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import operators

OPERATORS = operators()
LOGGERS = {"log", "log_event"}


class Place(NamedTuple):
    """One possible change: the n-th place in the file at which the operator applies."""

    operator: str
    occurrence: int
    line: int
    statement: int
    """The line on which the statement begins."""
    function: str


class Change(NamedTuple):
    """A changed file, and the lines that differ, without indentation."""

    text: str
    was: str
    becomes: str


class _Span(NamedTuple):
    """From one (line, column) to another, excluding the latter."""

    begin: tuple[int, int]
    end: tuple[int, int]

    def __contains__(self, position: object) -> bool:
        return isinstance(position, tuple) and self.begin <= position < self.end


class _Bodies(ast.NodeVisitor):
    """Collects what runs when a function is called, and what in it is not worth a mutant.

    Left out are annotations, decorators, defaults, f-strings and what is logged: a change there has no effect, or only
    on a text for people.
    """

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")
        self.functions: list[tuple[_Span, str]] = []
        self.statements: list[_Span] = []
        self.left_out: list[_Span] = []
        self._names: list[str] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self.statements.append(self._span(node))
        if isinstance(node, ast.AnnAssign):
            self.left_out.append(self._span(node.annotation))
        if isinstance(node, ast.expr) and (isinstance(node, ast.JoinedStr) or self._is_logging(node)):
            self.left_out.append(self._span(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._names.append(node.name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(node)
            self.generic_visit(node)
            self._names.pop()
        else:
            self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        first, whole = self._span(node.body[0]), self._span(node)
        top = self._position(node.decorator_list[0]) if node.decorator_list else whole.begin
        self.left_out.append(_Span(top, first.begin))
        self.functions.append((_Span(first.begin, whole.end), ".".join(self._names)))

    @staticmethod
    def _is_logging(node: ast.AST) -> bool:
        """Whether it is `log.warning(...)`, `log_event(...)` or the like."""
        if not isinstance(node, ast.Call):
            return False
        called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        return isinstance(called, ast.Name) and called.id in LOGGERS

    def _span(self, node: ast.stmt | ast.expr) -> _Span:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return _Span(self._position(node), self._at(node.end_lineno, node.end_col_offset))

    def _position(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset)

    def _at(self, line: int, offset: int) -> tuple[int, int]:
        """`ast` counts bytes of UTF-8, parso characters."""
        return line, len(self.lines[line - 1].encode()[:offset].decode(errors="ignore"))

    def function_at(self, position: tuple[int, int]) -> str | None:
        """The innermost function in which the position is run."""
        if any(position in span for span in self.left_out):
            return None
        around = [name for span, name in self.functions if position in span]
        return around[-1] if around else None

    def statement_at(self, position: tuple[int, int]) -> int:
        """The first line of the innermost statement around the position."""
        return max(span.begin for span in self.statements if position in span)[0]


def places(source: str) -> Iterator[Place]:
    """Every place in a function's body at which an operator applies."""
    bodies = _Bodies(source)
    bodies.visit(ast.parse(source))
    counts = dict.fromkeys(OPERATORS, 0)
    for node in ast_nodes(get_ast(source)):
        for name, operator in OPERATORS.items():
            for begin, _ in operator.mutation_positions(node):
                occurrence, counts[name] = counts[name], counts[name] + 1
                if function := bodies.function_at(begin):
                    yield Place(name, occurrence, begin[0], bodies.statement_at(begin), function)


def changed(source: str, place: Place) -> Change | None:
    """The file with the change; None if it does not compile or means the same."""
    text = mutate_code(source, OPERATORS[place.operator], place.occurrence)
    try:
        if text is None or ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
        compile(text, "<mutant>", "exec")
    except SyntaxError:
        return None
    before, after = source.split("\n"), text.split("\n")
    blocks = [code for code in SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if code[0] != "equal"]
    was = [line.strip() for _, begin, end, _, _ in blocks for line in before[begin:end]]
    becomes = [line.strip() for _, _, _, begin, end in blocks for line in after[begin:end]]
    return Change(text, "\n".join(was), "\n".join(becomes))
