"""The ways to change code: those operators of cosmic-ray that make a likely mistake, and two of our own.

Left out are changes that the type checker or any call at all would notice (`not` for `-`, an unknown variable), and
those that rarely change anything (`is` for `==`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import parso.python.tree as tree
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

BINARY = (
    "Add_Sub", "Sub_Add", "Mul_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
    "LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr",
)  # fmt: skip
COMPARISONS = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")
OTHERS = (
    "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert",
    "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer",
    "ZeroIterationForLoop",
)  # fmt: skip

Position = tuple[tuple[int, int], tuple[int, int]]


class RemoveCall(Operator):  # type: ignore[misc]  # cosmic-ray ships no types
    """Replaces a statement that is only a call, awaited or not, by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """The call, if the statement is nothing else."""
        if node.type == "simple_stmt" and self._is_call(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    @staticmethod
    def _is_call(node: Any) -> bool:
        if node.type != "atom_expr":
            return False
        last = node.children[-1]
        return bool(last.type == "trailer" and last.children[0] == "(")

    def mutate(self, node: Any, index: int) -> Any:
        """The statement with `pass` in the call's place."""
        call = node.children[0]
        node.children[0] = tree.Keyword("pass", call.start_pos, call.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """One of each kind."""
        return (Example("await f(1)\n", "pass\n"), Example("a.b(c)\n", "pass\n"))


class ReturnNone(Operator):  # type: ignore[misc]  # cosmic-ray ships no types
    """Returns None instead of a value."""

    LIKE_NONE = ("None", "False", "0", '""', "[]", "{}", "()")

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """The returned value, unless most callers would take it for None."""
        if isinstance(node, tree.ReturnStmt) and node.children[1].get_code(include_prefix=False) not in self.LIKE_NONE:
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The statement with None in the value's place."""
        node.children[1] = tree.Keyword("None", node.children[1].start_pos, " ")
        return node

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """One is enough."""
        return (Example("return x\n", "return None\n"),)


def operators() -> dict[str, Operator]:
    """Every operator by its name."""
    names = [f"ReplaceBinaryOperator_{pair}" for pair in BINARY]
    names += [f"ReplaceComparisonOperator_{pair}" for pair in COMPARISONS]
    theirs = OperatorProvider()
    return {name: theirs[name]() for name in (*names, *OTHERS)} | {
        "RemoveCall": RemoveCall(),
        "ReturnNone": ReturnNone(),
    }
