"""Translate kernels to C: functions in a small subset of Python over arrays and numbers.

Kernels are declared by ``@kernel`` (`feedmill.kernels.native`). One with types is an entry, which Python calls. One
without is translated for the types that other kernels call it with. Nothing is imported or run but the expressions of
module constants that kernels use.

The subset:

* Statements: assignments (several targets, tuples, slices), ``if``, ``while``, ``for`` over ``range``, an array or a
  tuple, ``break``, ``continue``, ``return``, calls.
* Expressions: numbers, arithmetic, comparisons, ``and``, ``or``, ``not``, ``in`` a tuple, conditionals, elements, rows
  and slices of arrays, ``len``, ``min``, ``max``, ``array.shape[k]``, ``array.itemsize``, casts such as
  ``np.uint64(x)``, calls of kernels, and of functions declared by ``@intrinsic`` with a body in C.

Types follow numba's rules, by which the kernels were written. They differ from C's and NumPy's:

* An operation takes 64 bits: two unsigned operands give u64, all others i64, also for i64 and u64. A shift has the
  sign of its left operand. ``//`` and ``%`` floor. Integers wrap. ``/`` gives f64, or f32 for f32 with f32 or with
  integers of 8 bits and i16.
* A variable has one type in a function: one that can hold all values assigned to it. A variable that is assigned both
  u64 and a signed integer is an error here; in numba it becomes f64.
* Comparisons of integers are exact. (Numba 0.68 compares u64 with i64 as f64.)
* Slices are clamped, as in Python. Indices are neither checked nor counted from the end: ``-DCHECKED`` builds a library
  that stops at the first one out of bounds.

Compilers that others maintain were considered. Pyccel has no unsigned integers, and its modules need ``Python.h``,
which a machine with only Python lacks. Pythran writes C++ that needs ``Python.h``, exceptions and the C++ runtime.
Cython and mypyc need ``Python.h``. Numba as the compiler of a build takes ten times the time and 200 MB more of
downloads, and new releases of Python wait for it.
"""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from feedmill.kernels.interface import NUMBERS, parse, symbol

_C = {
    "b": "bool", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "f32": "float", "f64": "double",
    "none": "void",
}  # fmt: skip
_OF_NUMPY = {"np." + name: kind for kind, name in NUMBERS.items()} | {
    "np.bool_": "b", "int": "i64", "float": "f64", "bool": "b",
}  # fmt: skip
_UNSIGNED = ("u8", "u16", "u32", "u64")
_FLOATS = ("f32", "f64")
_BITS = {kind: int(kind[1:]) if kind[1:] else 1 for kind in NUMBERS}
_RESERVED = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "bool", "true", "false",
    "asm",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<",
    ast.RShift: ">>", ast.FloorDiv: "/", ast.Mod: "%",
}  # fmt: skip
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_PASSES = 8


class KernelError(Exception):
    """A kernel cannot be translated."""


class Array(NamedTuple):
    """Type of an array: its numbers and dimensions."""

    number: str
    dimensions: int


class Tuple(NamedTuple):
    """Type of the result of a function that returns several numbers."""

    items: tuple[str, ...]


Type = str | Array | Tuple


class Value(NamedTuple):
    """An expression in C and its type."""

    c: str
    type: Any


# --- types ------------------------------------------------------------------------------------------------------------


def wide(kind: str) -> str:
    """Return the type with which operations use an integer."""
    return "u64" if kind in _UNSIGNED else "i64"


def joined(one: Any, other: Any) -> Any:
    """Return the type of a variable that holds values of both types; None if there is none."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    if isinstance(one, Tuple) and isinstance(other, Tuple) and len(one.items) == len(other.items):
        items = tuple(joined(a, b) for a, b in zip(one.items, other.items, strict=True))
        return None if None in items else Tuple(items)
    if not isinstance(one, str) or not isinstance(other, str) or "none" in (one, other):
        return None
    for a, b in ((one, other), (other, one)):
        if a == "b":
            return b
        if a in _FLOATS:
            exact = b not in ("f64", "u32", "u64", "i32", "i64")
            return "f32" if a == "f32" and exact else "f64"
    signed = [kind for kind in (one, other) if kind not in _UNSIGNED]
    if len(signed) != 1:
        return max(one, other, key=_BITS.__getitem__)
    unsigned = one if one in _UNSIGNED else other
    bits = max(_BITS[signed[0]], 2 * _BITS[unsigned])
    return f"i{bits}" if bits <= 64 else None


def operation(op: type[ast.operator], one: str, other: str) -> str | None:
    """Return the type of an operation; None if it is not supported."""
    if one in _FLOATS or other in _FLOATS:
        single = {one, other} <= {"f32", "b", "u8", "i8", "i16"}
        return None if op not in (ast.Add, ast.Sub, ast.Mult, ast.Div) else "f32" if single else "f64"
    if op is ast.Div:
        return "f64"
    if op in (ast.BitAnd, ast.BitOr, ast.BitXor) and one == other == "b":
        return "b"
    if op in (ast.LShift, ast.RShift):
        return wide(one)
    if op not in _ARITHMETIC:
        return None
    return "u64" if wide(one) == wide(other) == "u64" else "i64"


def cast(value: Value, kind: str) -> str:
    return value.c if value.type == kind else f"(({_C[kind]})({value.c}))"


# --- sources ----------------------------------------------------------------------------------------------------------


class _Number(int):
    """An integer constant of one type."""

    kind = "i64"


class _Single(float):
    """A constant of type f32."""


class _Constants:
    """What ``np`` means in the constants of a module."""

    inf = math.inf

    @staticmethod
    def array(values: Sequence[Any], of: Any) -> tuple[str, tuple[Any, ...]]:
        return of.args[0], tuple(values)

    def __getattr__(self, name: str) -> Any:
        return partial(_number, _OF_NUMPY["np." + name])


def _number(kind: str, value: Any) -> Any:
    if kind in _FLOATS:
        return _Single(value) if kind == "f32" else float(value)
    low = 0 if kind in _UNSIGNED else -1 << (_BITS[kind] - 1)
    if not low <= value < low + (1 << _BITS[kind]):
        raise KernelError(f"{value} is no {kind}")
    found = _Number(value)
    found.kind = kind
    return found


def _typed(name: str) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        same = type(a) is type(b) and a.kind == b.kind
        return _number(a.kind, getattr(int, name)(a, b)) if same else NotImplemented

    return apply


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(_Number, f"__{_name}__", _typed(f"__{_name}__"))


class Module:
    """One file with kernels."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.imports: dict[str, tuple[str, str]] = {}
        self.kernels: dict[str, ast.FunctionDef] = {}
        self.declared: dict[str, tuple[str, ...]] = {}
        self.apart: set[str] = set()
        self.intrinsics: dict[str, tuple[ast.FunctionDef, str, str]] = {}
        self._constants: dict[str, Any] = {}
        self._assigned: dict[str, ast.Assign | ast.AnnAssign] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.FunctionDef):
                self._declare(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assigned |= {x.id: node for x in ast.walk(target) if isinstance(x, ast.Name)}

    def _declare(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = ast.unparse(call.func if call else decorator)
            if name not in ("kernel", "intrinsic"):
                continue
            try:
                words = tuple(ast.literal_eval(argument) for argument in call.args) if call else ()
                if name == "intrinsic":
                    types, body = words
                    self.intrinsics[node.name] = node, types, body
                else:
                    parse(*words)
                    if call is not None and any(one.arg == "inline" for one in call.keywords):
                        self.apart.add(node.name)
                    self.kernels[node.name], self.declared[node.name] = node, words
            except ValueError as error:
                raise KernelError(f"{self.path}:{node.lineno}: {node.name}: {error}") from None

    def constant(self, name: str, modules: dict[str, Module]) -> Any:
        """Return the value of a module constant.

        Raises:
            KeyError: there is none of this name.
        """
        if name in self._constants:
            return self._constants[name]
        if name in self.imports and name not in self._assigned:
            module, original = self.imports[name]
            if module not in modules:
                raise KeyError(name)
            return modules[module].constant(original, modules)
        node = self._assigned[name]
        assert node.value is not None
        names = {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)}
        bound = {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        given: dict[str, Any] = {"np": _Constants()}
        for one in names - bound - {"np"}:
            given[one] = getattr(builtins, one, None) or self.constant(one, modules)
        code = compile(ast.Expression(node.value), str(self.path), "eval")
        value = eval(code, given)  # noqa: S307 - an expression of our own sources
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Tuple):
                for element, item in zip(target.elts, value, strict=True):
                    assert isinstance(element, ast.Name)
                    self._constants[element.id] = item
            elif isinstance(target, ast.Name):
                self._constants[target.id] = value
        return self._constants[name]


# --- functions --------------------------------------------------------------------------------------------------------


class Function:
    """One kernel for given types of arguments.

    Attributes:
        returns: type of the result.
        written: arguments that are arrays which the function writes to.
    """

    def __init__(self, unit: Unit, module: Module, node: ast.FunctionDef, types: tuple[Type, ...], name: str) -> None:
        self.unit, self.module, self.node, self.name = unit, module, node, name
        self.arguments = [argument.arg for argument in node.args.args]
        self.here: ast.AST = node
        if len(types) != len(self.arguments):
            self.fail(f"takes {len(self.arguments)} arguments, is given {len(types)}")
        self.types: dict[str, Any] = dict(zip(self.arguments, types, strict=True))
        self.roots: dict[str, set[str]] = {name: {name} for name in self.arguments}
        self.written: set[str] = set()
        self.returns: Any = None
        self.lines: list[str] = []
        self.depth = self.temporaries = 0

    def fail(self, problem: str) -> Any:
        line = getattr(self.here, "lineno", self.node.lineno)
        source = ast.unparse(self.here).partition("\n")[0] if self.here is not self.node else ""
        where = f"{self.module.path}:{line}: {self.node.name}: "
        raise KernelError(where + problem + (f"\n    {source}" if source else ""))

    def translate(self) -> None:
        for _ in range(_PASSES):
            before = self._state()
            self._pass()
            if before == self._state():
                break
        else:
            self.fail("types of variables do not settle")
        if self.returns is None:
            self.returns = "none"
            self._pass()
        head = self.head()
        local = [f"    {self.unit.c(kind)} {_safe(v)};" for v, kind in self.types.items() if v not in self.arguments]
        self.unit.prototypes.append(head + ";")
        self.unit.bodies.append("\n".join([head + " {", *local, *self.lines, "}"]))

    def _state(self) -> Any:
        return dict(self.types), self.returns, {k: set(v) for k, v in self.roots.items()}, set(self.written)

    def _pass(self) -> None:
        self.lines, self.depth, self.temporaries = [], 1, 0
        self.block(self.node.body)

    def head(self) -> str:
        given = ", ".join(f"{self.unit.c(self.types[name])} {_safe(name)}" for name in self.arguments)
        apart = "__attribute__((noinline)) " if self.node.name in self.module.apart else ""
        return f"static {apart}{self.unit.c(self.returns)} {self.name}({given or 'void'})"

    # statements

    def out(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def block(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            self.here = node
            method = getattr(self, "s_" + type(node).__name__, None)
            if method is None:
                self.fail(f"{type(node).__name__} is not in the subset")
            method(node)

    def nested(self, head: str, body: Callable[[], None], tail: str = "}") -> None:
        self.out(head)
        self.depth += 1
        body()
        self.depth -= 1
        self.out(tail)

    def temporary(self) -> str:
        self.temporaries += 1
        return f"_{self.temporaries}"

    def s_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return
        if not isinstance(node.value, ast.Call):
            self.fail("an expression without effect")
        self.out(self.e(node.value).c + ";")

    def s_Pass(self, _: ast.Pass) -> None:
        pass

    def s_Break(self, _: ast.Break) -> None:
        self.out("break;")

    def s_Continue(self, _: ast.Continue) -> None:
        self.out("continue;")

    def s_If(self, node: ast.If) -> None:
        rest = node.orelse
        self.nested(f"if ({self.truth(node.test)}) {{", lambda: self.block(node.body), "} else {" if rest else "}")
        if rest:
            self.depth += 1
            self.block(rest)
            self.depth -= 1
            self.out("}")

    def s_While(self, node: ast.While) -> None:
        if node.orelse:
            self.fail("while ... else is not in the subset")
        self.nested(f"while ({self.truth(node.test)}) {{", lambda: self.block(node.body))

    def s_For(self, node: ast.For) -> None:
        if node.orelse or not isinstance(node.target, ast.Name):
            self.fail("for takes one variable and no else")
        assert isinstance(node.target, ast.Name)
        target, over = node.target, node.iter
        if isinstance(over, ast.Call) and ast.unparse(over.func) == "range":
            self._range(target, over, node.body)
        elif isinstance(over, ast.Tuple):
            items = [self.e(item) for item in over.elts]
            kind = self.join_all([item.type for item in items])
            name = self.temporary()
            listed = ", ".join(cast(item, kind) for item in items)
            self.out(f"{{ const {self.unit.c(kind)} {name}[] = {{ {listed} }};")
            self._each(target, f"{name}[{{}}]", kind, str(len(items)), node.body)
            self.out("}")
        else:
            array = self.e(over)
            if not isinstance(array.type, Array) or array.type.dimensions != 1:
                self.fail("for goes over range, a tuple or an array of one dimension")
            name = self.temporary()
            self.out(f"{{ {self.unit.c(array.type)} {name} = {array.c};")
            self._each(target, f"{name}.p[{{}}]", array.type.number, f"{name}.n0", node.body)
            self.out("}")

    def _each(self, target: ast.Name, element: str, kind: str, count: str, body: Sequence[ast.stmt]) -> None:
        self.assign_type(target.id, kind)
        at = self.temporary()

        def inner() -> None:
            self.out(f"{_safe(target.id)} = {element.format(at)};")
            self.block(body)

        self.nested(f"for (int64_t {at} = 0; {at} < {count}; {at}++) {{", inner)

    def _range(self, target: ast.Name, call: ast.Call, body: Sequence[ast.stmt]) -> None:
        values = [self.e(argument) for argument in call.args]
        if not 1 <= len(values) <= 3 or any(value.type in ("u64", "b", *_FLOATS) for value in values):
            self.fail("range takes up to three integers that fit an i64: cast them with np.int64")
        begin, end = (Value("0", "i64"), values[0]) if len(values) == 1 else values[:2]
        self.assign_type(target.id, "i64")
        at = self.temporary()
        step, moved, down = "1", f"{at} < {at}e", ""
        if len(values) == 3:
            step = f"{at}s"
            down = f", {step} = {values[2].c}"
            constant = self.constant_of(call.args[2])
            if constant is None:
                moved = f"{step} > 0 ? {at} < {at}e : {at} > {at}e"
            elif constant < 0:
                moved = f"{at} > {at}e"

        def inner() -> None:
            self.out(f"{_safe(target.id)} = {at};")
            self.block(body)

        head = f"for (int64_t {at} = {begin.c}, {at}e = {end.c}{down}; {moved}; {at} += {step}) {{"
        self.nested(head, inner)

    def constant_of(self, node: ast.expr) -> int | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.constant_of(node.operand)
            return None if inner is None else -inner
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        return None

    def s_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.returned("none")
            self.out("return;")
            return
        if isinstance(node.value, ast.Tuple):
            items = [self.e(item) for item in node.value.elts]
            self.returned(Tuple(tuple(item.type for item in items)))
            assert isinstance(self.returns, Tuple)
            listed = ", ".join(cast(*pair) for pair in zip(items, self.returns.items, strict=True))
            self.out(f"return ({self.unit.c(self.returns)}){{ {listed} }};")
            return
        value = self.e(node.value)
        self.returned(value.type)
        self.out(f"return {cast(value, self.returns) if isinstance(self.returns, str) else value.c};")

    def returned(self, kind: Any) -> None:
        if isinstance(kind, Array):
            self.fail("a kernel returns numbers; arrays are arguments")
        found = joined(self.returns, kind)
        if found is None:
            self.fail(f"returns {kind} here and {self.returns} elsewhere")
        self.returns = found

    def assign_type(self, name: str, kind: Any) -> None:
        if kind == "none":
            self.fail(f"{name} is assigned the result of a function without one")
        before = self.types.get(name)
        found = joined(before, kind)
        if found is None:
            self.fail(f"{name} is assigned {_show(kind)} here and {_show(before)} elsewhere: cast one of them")
        if name in self.arguments and found != before:
            self.fail(f"the argument {name} is {_show(before)} and is assigned {_show(kind)}: use another variable")
        self.types[name] = found

    def s_Assign(self, node: ast.Assign) -> None:
        value = node.value
        first = node.targets[0]
        if isinstance(first, ast.Tuple) and isinstance(value, ast.Tuple) and len(node.targets) == 1:
            if len(first.elts) != len(value.elts):
                self.fail("the tuples have different lengths")
            items = [(target, item, self.e(item)) for target, item in zip(first.elts, value.elts, strict=True)]
            names = [self.temporary() for _ in items]
            self.out("{")
            for name, (_, _, found) in zip(names, items, strict=True):
                self.out(f"{self.unit.c(found.type)} {name} = {found.c};")
            roots = [self.roots_of(item) for _, item, _ in items]
            for name, (target, _, found), root in zip(names, items, roots, strict=True):
                self.store(target, Value(name, found.type), root)
            self.out("}")
            return
        if isinstance(value, ast.Tuple):
            self.fail("a tuple is assigned to as many targets; a table is a constant of the module")
        found, root = self.e(value), self.roots_of(value)
        if isinstance(first, ast.Tuple):
            if not isinstance(found.type, Tuple) or len(found.type.items) != len(first.elts) or len(node.targets) > 1:
                self.fail("the value is no tuple of this length")
            name = self.temporary()
            self.out(f"{{ {self.unit.c(found.type)} {name} = {found.c};")
            for i, (target, kind) in enumerate(zip(first.elts, found.type.items, strict=True)):
                self.store(target, Value(f"{name}.v{i}", kind), set())
            self.out("}")
            return
        if len(node.targets) > 1 and not isinstance(found.type, Array):
            name = self.temporary()
            self.out(f"{{ {self.unit.c(found.type)} {name} = {found.c};")
            for target in node.targets:
                self.store(target, Value(name, found.type), root)
            self.out("}")
            return
        for target in node.targets:
            self.store(target, found, root)

    def s_AugAssign(self, node: ast.AugAssign) -> None:
        if any(isinstance(x, ast.Call) and not _is_cast(x) for x in ast.walk(node.target)):
            self.fail("the index has a call, which would be made twice")
        load = ast.parse(ast.unparse(node.target), mode="eval").body
        value = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
        self.store(node.target, self.e(value), set())

    def store(self, target: ast.expr, value: Value, roots: set[str]) -> None:
        if isinstance(target, ast.Name):
            self.assign_type(target.id, value.type)
            kind = self.types[target.id]
            if isinstance(kind, Array):
                self.roots.setdefault(target.id, set()).update(roots)
            self.out(f"{_safe(target.id)} = {cast(value, kind) if isinstance(kind, str) else value.c};")
            return
        if not isinstance(target, ast.Subscript):
            self.fail("assignments are to variables, elements and slices")
        assert isinstance(target, ast.Subscript)
        self.written |= self.roots_of(target.value)
        index = _indices(target)
        if any(isinstance(one, ast.Slice) for one in index):
            self._fill(target, index, value)
            return
        element = self.e(target)
        if not isinstance(element.type, str) or not isinstance(value.type, str):
            self.fail("a row is assigned element by element")
        self.out(f"{element.c} = {cast(value, element.type)};")

    def _fill(self, target: ast.Subscript, index: list[ast.expr], value: Value) -> None:
        """Assign to a slice: one number, or an array of one dimension."""
        array = self.e(target.value)
        name, loops, places = self.temporary(), "", []
        if not isinstance(array.type, Array) or len(index) > array.type.dimensions:
            self.fail("not an array of these dimensions")
        index = index + [ast.Slice()] * (array.type.dimensions - len(index))
        for k, one in enumerate(index):
            at = f"{name}_{k}"
            if isinstance(one, ast.Slice):
                low, high = self.bounds(one, f"{name}.n{k}")
                loops += f"for (int64_t {at} = {low}; {at} < {high}; {at}++) "
                places.append((at, f"{name}.n{k}"))
            else:
                places.append((self.index(one), f"{name}.n{k}"))
        self.out(f"{{ {self.unit.c(array.type)} {name} = {array.c};")
        if isinstance(value.type, Array):
            if array.type.dimensions != 1 or value.type.dimensions != 1:
                self.fail("only arrays of one dimension are copied")
            low, high = self.bounds(index[0], f"{name}.n0")
            other = f"{name}o"
            self.out(f"{self.unit.c(value.type)} {other} = {value.c};")
            self.out(f"SAME(({high}) - ({low}), {other}.n0);")
            self.out(f"for (int64_t {name}_0 = 0; {name}_0 < {other}.n0; {name}_0++)")
            element = cast(Value(f"{other}.p[{name}_0]", value.type.number), array.type.number)
            self.out(f"    {name}.p[{low} + {name}_0] = {element};")
        else:
            self.out(f"{self.unit.c(array.type.number)} {name}v = {cast(value, array.type.number)};")
            self.out(f"{loops}{name}.p[{_flat(places)}] = {name}v;")
        self.out("}")

    def bounds(self, one: ast.expr, size: str) -> tuple[str, str]:
        assert isinstance(one, ast.Slice)
        if one.step is not None:
            self.fail("slices have no step")
        low = f"clamped({self.index(one.lower)}, {size})" if one.lower else "0"
        high = f"clamped({self.index(one.upper)}, {size})" if one.upper else size
        return low, high

    # expressions

    def e(self, node: ast.expr) -> Value:
        method = getattr(self, "e_" + type(node).__name__, None)
        if method is None:
            self.fail(f"{type(node).__name__} is not in the subset: {ast.unparse(node)}")
        found: Value = method(node)
        return found

    def number(self, node: ast.expr) -> Value:
        found = self.e(node)
        if not isinstance(found.type, str) or found.type == "none":
            self.fail(f"{ast.unparse(node)} is no number")
        return found

    def index(self, node: ast.expr) -> str:
        found = self.number(node)
        if found.type in _FLOATS:
            self.fail(f"the index {ast.unparse(node)} is {found.type}")
        return cast(found, "i64")

    def truth(self, node: ast.expr) -> str:
        """Return a condition."""
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return "(" + sign.join(self.truth(value) for value in node.values) + ")"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"(!{self.truth(node.operand)})"
        return self.number(node).c

    def join_all(self, kinds: Sequence[Any]) -> Any:
        found = kinds[0]
        for kind in kinds[1:]:
            both = joined(found, kind)
            if both is None:
                self.fail(f"one type is needed here, found {_show(found)} and {_show(kind)}: cast one of them")
            found = both
        return found

    def roots_of(self, node: ast.expr) -> set[str]:
        """Return the arguments that an array expression may be part of."""
        if isinstance(node, ast.Name):
            return set(self.roots.get(node.id, ()))
        if isinstance(node, ast.Subscript):
            return self.roots_of(node.value)
        if isinstance(node, ast.IfExp):
            return self.roots_of(node.body) | self.roots_of(node.orelse)
        return set()

    def constant(self, value: Any) -> Value:
        if isinstance(value, bool):
            return Value("true" if value else "false", "b")
        if isinstance(value, _Number):
            return Value(f"(({_C[value.kind]}){int(value)}{'U' * (value.kind == 'u64')})", value.kind)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                self.fail(f"{value} does not fit in 64 bits")
            if value >= 1 << 63:
                return Value(f"UINT64_C({value})", "u64")
            return Value(f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value - 1}) - 1)", "i64")
        if isinstance(value, float):
            kind = "f32" if isinstance(value, _Single) else "f64"
            text = "__builtin_inf()" if math.isinf(value) else abs(float(value)).hex()
            return Value(f"(({_C[kind]})({'-' if math.copysign(1, value) < 0 else ''}{text}))", kind)
        if isinstance(value, tuple) and value and isinstance(value[0], str):
            kind, values = value
            return self.unit.table(kind, [cast(self.constant(one), kind) for one in values])
        if isinstance(value, tuple) and value:
            found = [self.constant(one) for one in value]
            kind = self.join_all([one.type for one in found])
            return self.unit.table(kind, [cast(one, kind) for one in found])
        return self.fail(f"a constant of {type(value).__name__} is not in the subset")

    def e_Constant(self, node: ast.Constant) -> Value:
        return self.constant(node.value)

    def e_Name(self, node: ast.Name) -> Value:
        if node.id in self.types:
            return Value(_safe(node.id), self.types[node.id])
        try:
            return self.constant(self.module.constant(node.id, self.unit.modules))
        except KeyError:
            return self.fail(f"{node.id} is neither a variable assigned before nor a constant of the module")

    def e_Attribute(self, node: ast.Attribute) -> Value:
        if ast.unparse(node) == "np.inf":
            return self.constant(math.inf)
        if node.attr == "itemsize":
            array = self.e(node.value)
            if isinstance(array.type, Array):
                return Value(f"INT64_C({max(1, _BITS[array.type.number] // 8)})", "i64")
        return self.fail(f"{ast.unparse(node)} is not in the subset")

    def e_Subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            array, axis = self.e(node.value.value), self.constant_of(node.slice)
            if not isinstance(array.type, Array) or axis is None or not 0 <= axis < array.type.dimensions:
                self.fail("shape[k] of an array, with a constant k")
            return Value(f"{array.c}.n{axis}", "i64")
        array, index = self.e(node.value), _indices(node)
        if not isinstance(array.type, Array) or len(index) > array.type.dimensions:
            self.fail(f"{ast.unparse(node.value)} is no array of {len(index)} dimensions")
        if isinstance(index[0], ast.Slice):
            if array.type.dimensions != 1:
                self.fail("only arrays of one dimension are sliced")
            low = self.index(index[0].lower) if index[0].lower else "0"
            high = self.index(index[0].upper) if index[0].upper else "INT64_MAX"
            if index[0].step is not None:
                self.fail("slices have no step")
            return Value(f"{self.unit.c(array.type)}_slice({array.c}, {low}, {high})", array.type)
        if len(index) < array.type.dimensions:
            if array.type.dimensions != 2:
                self.fail("rows are of arrays of two dimensions")
            row = Array(array.type.number, 1)
            self.unit.c(row)
            return Value(f"{self.unit.c(array.type)}_row({array.c}, {self.index(index[0])})", row)
        places = [(self.index(one), f"{array.c}.n{k}") for k, one in enumerate(index)]
        return Value(f"{array.c}.p[{_flat(places)}]", array.type.number)

    def e_BinOp(self, node: ast.BinOp) -> Value:
        one, other = self.number(node.left), self.number(node.right)
        kind = operation(type(node.op), one.type, other.type)
        if kind is None:
            self.fail(f"{_show(one.type)} and {_show(other.type)} have no such operation: {ast.unparse(node)}")
        assert kind is not None
        if isinstance(node.op, ast.Div):
            return Value(f"({cast(one, kind)} / {cast(other, kind)})", kind)
        if isinstance(node.op, ast.LShift | ast.RShift):
            shift = cast(other, "i64")
            return Value(f"({cast(one, kind)} {_ARITHMETIC[type(node.op)]} {shift})", kind)
        a, b = cast(one, kind), cast(other, kind)
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and kind == "i64":
            return Value(f"{'floordiv' if isinstance(node.op, ast.FloorDiv) else 'mod'}({a}, {b})", kind)
        return Value(f"({a} {_ARITHMETIC[type(node.op)]} {b})", kind)

    def e_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(self.truth(node), "b")
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return self.constant(-node.operand.value)  # type: ignore[operator]
        value = self.number(node.operand)
        if isinstance(node.op, ast.Invert):
            if value.type in _FLOATS:
                self.fail("~ of a float")
            if value.type == "b":
                return Value(f"(!{value.c})", "b")
            return Value(f"(~{cast(value, wide(value.type))})", wide(value.type))
        if isinstance(node.op, ast.USub):
            kind = value.type if value.type in _FLOATS else wide(value.type)
            return Value(f"(-{cast(value, kind)})", kind)
        return self.fail("unary + is not in the subset")

    def e_BoolOp(self, node: ast.BoolOp) -> Value:
        values = [self.number(value) for value in node.values]
        if all(value.type == "b" for value in values):
            return Value(self.truth(node), "b")
        kind = self.join_all([value.type for value in values])  # as in Python, the result is one of the operands
        found = cast(values[-1], kind)
        for value in values[-2::-1]:
            name = self.temporary()
            both = (found, name) if isinstance(node.op, ast.And) else (name, found)
            found = f"({{ {_C[kind]} {name} = {cast(value, kind)}; {name} ? {both[0]} : {both[1]}; }})"
        return Value(found, kind)

    def e_Compare(self, node: ast.Compare) -> Value:
        parts, left = [], node.left
        middle = node.comparators[:-1]
        if any(isinstance(x, ast.Call) and not _is_cast(x) for one in middle for x in ast.walk(one)):
            self.fail("a chained comparison has a call, which would be made twice")
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(right, ast.Tuple):
                    items = [self.constant(one) for one in self.tuple_of(right)]
                else:
                    items = [self.number(one) for one in right.elts]
                name, value = self.temporary(), self.number(left)
                tests = " || ".join(self.compared("==", Value(name, value.type), item) for item in items)
                found = f"({{ {_C[value.type]} {name} = {value.c}; {tests}; }})"
                parts.append(found if isinstance(op, ast.In) else f"!{found}")
            elif type(op) in _COMPARE:
                parts.append(self.compared(_COMPARE[type(op)], self.number(left), self.number(right)))
            else:
                self.fail(f"{type(op).__name__} is not in the subset")
            left = right
        return Value("(" + " && ".join(parts) + ")", "b")

    def tuple_of(self, node: ast.expr) -> tuple[Any, ...]:
        if isinstance(node, ast.Name) and node.id not in self.types:
            try:
                found = self.module.constant(node.id, self.unit.modules)
            except KeyError:
                found = None
            if isinstance(found, tuple) and found and not isinstance(found[0], str):
                return found
        return tuple(self.fail("`in` takes a tuple of numbers"))

    def compared(self, sign: str, one: Value, other: Value) -> str:
        if one.type in _FLOATS or other.type in _FLOATS:
            kind = joined(one.type, other.type)
            return f"({cast(one, kind)} {sign} {cast(other, kind)})"
        if "u64" not in (one.type, other.type):
            return f"({cast(one, 'i64')} {sign} {cast(other, 'i64')})"
        if all(value.type in (*_UNSIGNED, "b") for value in (one, other)):
            return f"({cast(one, 'u64')} {sign} {cast(other, 'u64')})"
        if one.type == "u64":
            return f"(compared({one.c}, {cast(other, 'i64')}) {sign} 0)"
        return f"(0 {sign} compared({other.c}, {cast(one, 'i64')}))"

    def e_IfExp(self, node: ast.IfExp) -> Value:
        one, other = self.e(node.body), self.e(node.orelse)
        kind = self.join_all([one.type, other.type])
        if isinstance(kind, str):
            return Value(f"({self.truth(node.test)} ? {cast(one, kind)} : {cast(other, kind)})", kind)
        return Value(f"({self.truth(node.test)} ? {one.c} : {other.c})", kind)

    def e_Call(self, node: ast.Call) -> Value:
        name = ast.unparse(node.func)
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.fail(f"{name} is called with arguments by position only")
        arguments = [self.e(argument) for argument in node.args]
        if name in _OF_NUMPY and len(arguments) == 1:
            value = self.number(node.args[0])
            return Value(cast(value, _OF_NUMPY[name]), _OF_NUMPY[name])
        if name == "len" and len(arguments) == 1 and isinstance(arguments[0].type, Array):
            return Value(f"{arguments[0].c}.n0", "i64")
        if name in ("min", "max") and len(arguments) >= 2:
            kind = self.join_all([self.number(argument).type for argument in node.args])
            found = cast(arguments[0], kind)
            for argument in arguments[1:]:
                found = f"{name}_{kind}({found}, {cast(argument, kind)})"
            return Value(found, kind)
        home, original = self.home(name)
        if original in home.intrinsics:
            for kind, given in zip(home.intrinsics[original][1].split(","), node.args, strict=False):
                if kind.strip().startswith("out "):
                    self.written |= self.roots_of(given)
            return self.unit.intrinsic(self, home, original, arguments)
        if original not in home.kernels:
            self.fail(f"{name} is neither a kernel nor in the subset")
        function = self.unit.function(home, original, tuple(argument.type for argument in arguments), self)
        for argument, given in zip(function.arguments, node.args, strict=True):
            if argument in function.written:
                self.written |= self.roots_of(given)
        return Value(f"{function.name}({', '.join(argument.c for argument in arguments)})", function.returns)

    def home(self, name: str) -> tuple[Module, str]:
        """Return the module that defines a function, and the function's name there."""
        module = self.module
        while name in module.imports and name not in module.kernels:
            where, name = module.imports[name]
            if where not in self.unit.modules:
                break
            module = self.unit.modules[where]
        return module, name


def _safe(name: str) -> str:
    return name + "_" if name in _RESERVED else name


def _indices(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _flat(places: list[tuple[str, str]]) -> str:
    found = f"AT({places[0][0]}, {places[0][1]})"
    for at, size in places[1:]:
        found = f"{found} * {size} + AT({at}, {size})"
    return found


def _is_cast(node: ast.Call) -> bool:
    return ast.unparse(node.func) in (*_OF_NUMPY, "len", "min", "max")


def _show(kind: Any) -> str:
    return f"an array of {kind.number}" if isinstance(kind, Array) else str(kind)


# --- the file ---------------------------------------------------------------------------------------------------------

_PRELUDE = """\
#include <stdbool.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#endif
#ifdef CHECKED
static inline int64_t AT(int64_t at, int64_t size) {
    if (at < 0 || at >= size) __builtin_trap();
    return at;
}
#define SAME(a, b) do { if ((a) != (b)) __builtin_trap(); } while (0)
#else
#define AT(at, size) (at)
#define SAME(a, b) (void)0
#endif
static inline int64_t floordiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a ^ b) < 0); }
static inline int64_t mod(int64_t a, int64_t b) {
    int64_t rest = a % b;
    return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}
static inline int64_t clamped(int64_t at, int64_t size) {
    if (__builtin_expect((uint64_t)at <= (uint64_t)size, 1)) return at; /* predicted: nothing waits for the others */
    at = at < 0 ? at + size : at;
    return at < 0 ? 0 : at > size ? size : at;
}
static inline int compared(uint64_t a, int64_t b) {
    return b < 0 || a > (uint64_t)b ? 1 : a < (uint64_t)b ? -1 : 0;
}
#define LEAST(name, T) \\
    static inline T min_##name(T a, T b) { return b < a ? b : a; } \\
    static inline T max_##name(T a, T b) { return b > a ? b : a; }
LEAST(b, bool) LEAST(u8, uint8_t) LEAST(u16, uint16_t) LEAST(u32, uint32_t) LEAST(u64, uint64_t)
LEAST(i8, int8_t) LEAST(i16, int16_t) LEAST(i32, int32_t) LEAST(i64, int64_t) LEAST(f32, float) LEAST(f64, double)
static inline double as_double(int64_t word) {
    double found;
    __builtin_memcpy(&found, &word, 8);
    return found;
}
"""


class Unit:
    """One file of C with all kernels."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self.modules = modules
        self.functions: dict[tuple[str, str, tuple[Type, ...]], Function] = {}
        self.prototypes: list[str] = []
        self.bodies: list[str] = []
        self.structs: dict[Any, str] = {}
        self.declarations: list[str] = []
        self.tables: dict[tuple[str, str], str] = {}
        self.under_way: list[str] = []

    def c(self, kind: Any) -> str:
        """Return the name of a type in C, and define it."""
        if isinstance(kind, str):
            return _C[kind]
        if kind not in self.structs:
            if isinstance(kind, Tuple):
                name = "tuple_" + "_".join(kind.items)
                fields = " ".join(f"{_C[item]} v{i};" for i, item in enumerate(kind.items))
                self.declarations.append(f"typedef struct {{ {fields} }} {name};")
            else:
                name = f"array_{kind.number}_{kind.dimensions}"
                self._array(name, kind)
            self.structs[kind] = name
        return self.structs[kind]

    def _array(self, name: str, kind: Array) -> None:
        element, lengths = _C[kind.number], ", ".join(f"n{k}" for k in range(kind.dimensions))
        # Arrays may be parts of files and share memory: no type of an element says how it is aligned, or what it is.
        self.declarations += [
            f"typedef {element} {name}_element __attribute__((aligned(1), may_alias));",
            f"typedef struct {{ {name}_element *p; int64_t {lengths}; }} {name};",
        ]
        if kind.dimensions == 1:
            self.declarations.append(
                f"static inline {name} {name}_slice({name} a, int64_t low, int64_t high) {{\n"
                "    low = clamped(low, a.n0), high = clamped(high, a.n0);\n"
                f"    return ({name}){{ a.p + low, high > low ? high - low : 0 }};\n}}"
            )
        elif kind.dimensions == 2:
            row = self.c(Array(kind.number, 1))
            self.declarations.append(
                f"static inline {row} {name}_row({name} a, int64_t at) {{\n"
                f"    return ({row}){{ a.p + AT(at, a.n0) * a.n1, a.n1 }};\n}}"
            )

    def table(self, kind: str, values: list[str]) -> Value:
        """Return a constant array."""
        listed = ", ".join(values)
        name = self.tables.setdefault((kind, listed), f"table_{len(self.tables)}")
        array = Array(kind, 1)
        return Value(f"(({self.c(array)}){{ ({self.c(array)}_element *){name}, {len(values)} }})", array)

    def function(self, module: Module, name: str, types: tuple[Type, ...], caller: Function | None) -> Function:
        key = module.name, name, types
        if key not in self.functions:
            if name in self.under_way and module.name in self.under_way:
                assert caller is not None
                caller.fail(f"{name} calls itself")
            count = sum(one[:2] == key[:2] for one in self.functions)
            c_name = symbol(module.name, name, count) + "_f"
            function = Function(self, module, module.kernels[name], types, c_name)
            self.under_way += [module.name, name]
            function.translate()
            del self.under_way[-2:]
            self.functions[key] = function
        return self.functions[key]

    def intrinsic(self, caller: Function, module: Module, name: str, arguments: list[Value]) -> Value:
        node, types, body = module.intrinsics[name]
        declared, _, result = types.partition("->")
        kinds = [word.strip() for word in declared.split(",") if word.strip()]
        if len(kinds) != len(arguments):
            caller.fail(f"{name} takes {len(kinds)} arguments")
        given, parameters, arrays = [], [], []
        for kind, argument, parameter in zip(kinds, arguments, node.args.args, strict=True):
            number = kind.removeprefix("out ").removesuffix("[:]")
            if kind.endswith("[:]"):
                if argument.type not in [Array(one, 1) for one in (NUMBERS if number == "any" else (number,))]:
                    caller.fail(f"{name} takes {kind}, not {_show(argument.type)}")
                given.append(argument.c)
                arrays.append(argument.type.number)
                parameters.append(f"{self.c(argument.type)} {parameter.arg}")
            else:
                if not isinstance(argument.type, str):
                    caller.fail(f"{name} takes {kind}, not {_show(argument.type)}")
                given.append(cast(argument, number))
                parameters.append(f"{_C[number]} {parameter.arg}")
        results = [word.strip() for word in result.split(",") if word.strip()]
        returns: Type = Tuple(tuple(results)) if len(results) > 1 else results[0] if results else "none"
        c_name = "_".join(["machine", name, *arrays])
        text = f"static inline {self.c(returns)} {c_name}({', '.join(parameters)}) {{\n    {body}\n}}"
        if text not in self.declarations:
            self.declarations.append(text)
        return Value(f"{c_name}({', '.join(given)})", returns)

    def entry(self, module: Module, name: str) -> Iterator[str]:
        """Yield the functions that Python calls for the declared types."""
        node = module.kernels[name]
        for number, signature in enumerate(parse(*module.declared[name])):
            kinds: tuple[Type, ...] = tuple(
                Array(one.number, one.dimensions) if one.dimensions else one.number for one in signature.arguments
            )
            function = self.function(module, name, kinds, None)
            function.here = node
            if signature.returns != (function.returns != "none"):
                says = "i64" if signature.returns else "nothing"
                function.fail(f"returns {_show(function.returns)}, but its types say {says}")
            if signature.returns and (not isinstance(function.returns, str) or function.returns in ("u64", *_FLOATS)):
                function.fail(f"returns {_show(function.returns)}; kernels that Python calls return an i64 or nothing")
            at, given = 0, []
            for argument, one in zip(function.arguments, signature.arguments, strict=True):
                if one.dimensions and one.out != (argument in function.written):
                    does, says = ("is not written to", "out ") if one.out else ("is written to", "")
                    function.fail(f"{argument} {does}, but its type is {says}{one}")
                if one.dimensions:
                    kind = self.c(Array(one.number, one.dimensions))
                    lengths = ", ".join(f"w[{at + 1 + k}]" for k in range(one.dimensions))
                    given.append(f"({kind}){{ ({kind}_element *)w[{at}], {lengths} }}")
                else:
                    given.append(f"as_double(w[{at}])" if one.number == "f64" else f"({_C[one.number]})w[{at}]")
                at += 1 + one.dimensions
            call = f"{function.name}({', '.join(given)})"
            does = f"return {call};" if signature.returns else f"{call}; return 0;"
            yield f"EXPORT int64_t {symbol(module.name, name, number)}(const int64_t *w) {{ {does} }}"

    def text(self) -> str:
        """Return the file."""
        entries = []
        for module in self.modules.values():
            for name, declared in module.declared.items():
                if declared:
                    entries += self.entry(module, name)
        called = {key[:2] for key in self.functions}
        for module in self.modules.values():
            for name, node in module.kernels.items():
                if (module.name, name) not in called:
                    raise KernelError(f"{module.path}:{node.lineno}: {name}: no kernel calls it, and it has no types")
        tables = [f"static const {_C[kind]} {name}[] = {{ {listed} }};" for (kind, listed), name in self.tables.items()]
        return "\n".join([_PRELUDE, *self.declarations, *tables, *self.prototypes, "", *self.bodies, "", *entries, ""])


def modules_below(folder: Path, package: str) -> dict[str, Module]:
    """Return the modules of a package that declare kernels or intrinsics, or whose constants these may use."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join([package, *parts]).removesuffix(".__init__")
        found[name] = Module(name, path)
    return found


def translate(modules: dict[str, Module]) -> str:
    """Return the kernels of modules in C.

    Raises:
        KernelError: a kernel is not in the subset; the message names its file and line.
    """
    return Unit(modules).text()
