"""The mutants of a module: its source with one small change each.

Cosmic Ray changes operators, conditions, numbers, loops and handlers. It removes no statements, so those
mutants are made here: they are the calls and assignments that no test misses.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

_REPLACED = {
    "ReplaceBinaryOperator": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul "
    "LShift_RShift RShift_LShift BitOr_BitAnd BitAnd_BitOr BitXor_BitOr",
    "ReplaceComparisonOperator": "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is",
    "ReplaceUnaryOperator": "Delete_Not Delete_USub",
}
OPERATORS = (
    *(f"core/{kind}_{pair}" for kind, pairs in _REPLACED.items() for pair in pairs.split()),
    "core/AddNot",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ExceptionReplacer",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)
"""Cosmic Ray's operators, one replacement for each symbol; its other replacements show the same."""


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    line: int  # the first changed one
    before: str  # the changed lines
    after: str
    source: str  # the whole changed module


def list_mutants(source: str) -> list[Mutant]:
    """Return the mutants of a module, in the order of their lines, each once.

    Changes that leave the program as it is are no mutants: those in annotations and in imports for type
    checkers.
    """
    seen = {_meaning(source)}
    found = []
    for changed in (*_replace(source), *_remove(source)):
        try:
            meaning = _meaning(changed)
        except SyntaxError:  # `if not x := 1`
            continue
        if meaning not in seen:
            seen.add(meaning)
            found.append(_compare(source, changed))
    return sorted(found, key=lambda mutant: mutant.line)


def _replace(source: str) -> Iterator[str]:
    # Imported here because the tests' own environment, which imports this file for its doctests, lacks it.
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for name in OPERATORS:
        operator = get_operator(name)()
        for occurrence in count():
            if (changed := mutate_code(source, operator, occurrence)) is None:
                break
            yield changed


def _remove(source: str) -> Iterator[str]:
    """Yield the source without one of its statements, for each that can be left out.

    >>> print(*_remove("def call():\\n    count()\\n    return 1"))
    def call():
        pass
        return 1
    """
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = b"".join(lines)
    for node in ast.walk(ast.parse(source)):
        if _can_be_left_out(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            yield (whole[:begin] + b"pass" + whole[end:]).decode()


def _can_be_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in node.targets)
    if isinstance(node, ast.AnnAssign):
        return node.value is not None and not isinstance(node.target, ast.Name)
    if isinstance(node, ast.Return):
        return node.value is None
    return isinstance(node, ast.Raise | ast.AugAssign | ast.Delete)


def _meaning(source: str) -> str:
    """Return what a program does, without what only type checkers read."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.arg():
                node.annotation = None
            case ast.FunctionDef():
                node.returns = None
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                node.body = []
    return ast.dump(tree)


def _compare(source: str, changed: str) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    first, *_, last = [block for block in blocks if block[0] != "equal"] * 2  # from the first to the last
    before, after = (_join(lines) for lines in (old[first[1] : last[2]], new[first[3] : last[4]]))
    return Mutant(first[1] + 1, before, after, changed)


def _join(lines: list[str]) -> str:
    """Return lines as one.

    >>> _join(["  call(", "      1,", "  )"])
    'call( 1, )'
    """
    return re.sub(r"\s+", " ", " ".join(lines)).strip()
