"""The demo's work: what one Python source file holds. Pure; knows nothing of jobs."""

import ast
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

LONGEST_KEPT: Final = 10
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# Where a statement keeps the statements inside it. Functions and classes are statements: expressions need no visit,
# which makes this eight times as fast as ``ast.walk``.
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")

# One thread at a time. The parser counts its depth in one place for all threads, so that two at once now and then fail
# each other with a SystemError (python/cpython#106905; seen here once in 20,000 files). The GIL lets only one of them
# work anyway, and those that wait here take no turn from the worker's loop.
_parsing = threading.Lock()


class Function(Struct, frozen=True):
    """``name`` with the classes and functions around it; ``line`` is that of its ``def``."""

    name: str
    line: int
    lines: int


class SourceFacts(Struct, frozen=True):
    """``longest``: the longest functions first, at most ``LONGEST_KEPT``; enough to find the longest of all files."""

    functions: int
    classes: int
    lines: int
    longest: list[Function]


def source_facts(source: bytes) -> SourceFacts:
    """Parse and count.

    Raises:
        SyntaxError, ValueError: this Python cannot read it (its text, its encoding, a NUL in it).
    """
    with _parsing, _no_collector():
        functions, classes = _definitions(ast.parse(source))
    longest = sorted(functions, key=lambda f: (-f.lines, f.line))[:LONGEST_KEPT]
    return SourceFacts(len(functions), classes, len(source.splitlines()), longest)


def _definitions(tree: ast.Module) -> tuple[list[Function], int]:
    """Every function, and the number of classes. With a stack: generated code nests deeper than Python recurses."""
    functions: list[Function] = []
    classes = 0
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, scope = stack.pop()
        if isinstance(node, _FUNCTIONS):
            scope = f"{scope}{node.name}."
            functions.append(Function(scope[:-1], node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            scope = f"{scope}{node.name}."
            classes += 1
        for block in _BLOCKS:
            inner = getattr(node, block, None)
            if isinstance(inner, list):  # a lambda and an if-expression have a body too: one expression
                stack.extend((child, scope) for child in inner)
    return functions, classes


@contextmanager
def _no_collector() -> Iterator[None]:
    """A tree has no cycles, but the collector would look through it again and again: 40 % of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
