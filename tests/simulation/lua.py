"""A small interpreter for the Lua that our Redis scripts are written in, so that the model runs the scripts themselves.

Only the part of the language that they use: local, assignment, if, numeric and ipairs loops, tables, calls, operators,
return. Anything else raises ``LuaError`` when a script is compiled. A script becomes a tree of Python closures.

Values: nil is None, numbers are int or float, strings are bytes, a table is a ``Table``.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

_TOKEN = re.compile(
    rb"\s*(?:--[^\n]*\n\s*)*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\""
    rb"|(?P<sign>\.\.|==|~=|<=|>=|[-+*/%<>=#(){}\[\],.;]))"
)
_BINARY = (
    (b"or",),
    (b"and",),
    (b"<", b">", b"<=", b">=", b"~=", b"=="),
    (b"..",),
    (b"+", b"-"),
    (b"*", b"/", b"%"),
)
_NOT_HERE = frozenset((b"while", b"repeat", b"until", b"function", b"goto", b"break", b"do", b"then", b"in"))
Scope = dict[bytes, Any]
Expression = Callable[[Scope], Any]
Statement = Callable[[Scope], Any]
_GO_ON = object()


class LuaError(Exception):
    """A script that this interpreter does not understand, or an error that a script raises."""


class Table(dict[Any, Any]):
    """A Lua table. Lists have keys from 1 on."""

    @classmethod
    def of(cls, items: Any) -> "Table":
        """Return a list as a table."""
        return cls(enumerate(items, 1))

    def items_in_order(self) -> list[Any]:
        """Return the values of keys 1, 2, … up to the first gap."""
        found: list[Any] = []
        while (value := self.get(len(found) + 1)) is not None:
            found.append(value)
        return found


def truth(value: Any) -> bool:
    """Return whether Lua takes a value for true: everything but nil and false."""
    return value is not None and value is not False


def number_of(value: Any) -> Any:
    """Return what ``tonumber`` returns."""
    if isinstance(value, bytes):
        try:
            value = float(value)
        except ValueError:
            return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def length(value: Any) -> int:
    """Return ``#value``."""
    return len(value.items_in_order()) if isinstance(value, Table) else len(value)


def text_of(value: Any) -> bytes:
    """Return a string or number as Lua writes it."""
    return value if isinstance(value, bytes) else str(value).encode()


_OPERATIONS: dict[bytes, Callable[[Any, Any], Any]] = {
    b"==": lambda a, b: a == b and (type(a) is type(b) or _both_numbers(a, b)),
    b"~=": lambda a, b: not _OPERATIONS[b"=="](a, b),
    b"<": lambda a, b: a < b,
    b">": lambda a, b: a > b,
    b"<=": lambda a, b: a <= b,
    b">=": lambda a, b: a >= b,
    b"..": lambda a, b: text_of(a) + text_of(b),
    b"+": lambda a, b: number_of(a) + number_of(b),
    b"-": lambda a, b: number_of(a) - number_of(b),
    b"*": lambda a, b: number_of(a) * number_of(b),
    b"/": lambda a, b: number_of(number_of(a) / number_of(b)),
    b"%": lambda a, b: number_of(a) % number_of(b),
}


def _both_numbers(a: Any, b: Any) -> bool:
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b))


class _Parser:
    def __init__(self, source: bytes) -> None:
        self._tokens: list[tuple[str, bytes]] = []
        position = 0
        source = source.rstrip() + b"\n"
        while position < len(source.rstrip()):
            found = _TOKEN.match(source, position)
            if found is None or found.lastgroup is None:
                raise LuaError(f"cannot read {source[position : position + 40]!r}")
            kind = "string" if found.lastgroup in {"single", "double"} else found.lastgroup
            self._tokens.append((kind, found[found.lastgroup]))
            position = found.end()
        self._at = 0

    # ------------------------------------------------------------ tokens
    def _peek(self) -> tuple[str, bytes]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", b"")

    def _take(self, *wanted: bytes) -> bytes | None:
        kind, word = self._peek()
        if word in wanted and kind in {"sign", "name"}:
            self._at += 1
            return word
        return None

    def _need(self, wanted: bytes) -> None:
        if self._take(wanted) is None:
            raise LuaError(f"expected {wanted!r}, found {self._peek()}")

    def _name(self) -> bytes:
        kind, word = self._peek()
        if kind != "name":
            raise LuaError(f"expected a name, found {word!r}")
        self._at += 1
        return word

    # ------------------------------------------------------------ statements
    def block(self, *ends: bytes) -> Statement:
        statements: list[Statement] = []
        while self._peek()[0] != "end" and not (self._peek()[0] == "name" and self._peek()[1] in ends):
            statements.append(self._statement())
            self._take(b";")

        def run(scope: Scope) -> Any:
            for statement in statements:
                if (result := statement(scope)) is not _GO_ON:
                    return result
            return _GO_ON

        return run

    def _statement(self) -> Statement:
        if self._take(b"local"):
            return self._local()
        if self._take(b"if"):
            return self._if()
        if self._take(b"for"):
            return self._for()
        if self._take(b"return"):
            return self._expression()
        targets = [self._suffixed()]
        while self._take(b","):
            targets.append(self._suffixed())
        if not self._take(b"="):
            call = targets[0][0]

            def evaluate(scope: Scope) -> Any:
                call(scope)
                return _GO_ON

            return evaluate
        return _assignment([target for _, target in targets], self._expressions())

    def _local(self) -> Statement:
        names = [self._name()]
        while self._take(b","):
            names.append(self._name())
        values = self._expressions() if self._take(b"=") else []

        def run(scope: Scope) -> Any:
            found = [value(scope) for value in values]
            for place, name in enumerate(names):
                scope[name] = found[place] if place < len(found) else None
            return _GO_ON

        # pcall returns two values, and is the only function of ours that does.
        if len(values) == 1 and len(names) > 1:

            def run_several(scope: Scope) -> Any:
                found = values[0](scope)
                several = found if isinstance(found, tuple) else (found,)
                for place, name in enumerate(names):
                    scope[name] = several[place] if place < len(several) else None
                return _GO_ON

            return run_several
        return run

    def _if(self) -> Statement:
        branches: list[tuple[Expression, Statement]] = []
        condition = self._expression()
        self._need(b"then")
        branches.append((condition, self.block(b"elseif", b"else", b"end")))
        while self._take(b"elseif"):
            condition = self._expression()
            self._need(b"then")
            branches.append((condition, self.block(b"elseif", b"else", b"end")))
        otherwise = self.block(b"end") if self._take(b"else") else None
        self._need(b"end")

        def run(scope: Scope) -> Any:
            for test, body in branches:
                if truth(test(scope)):
                    return body(scope)
            return _GO_ON if otherwise is None else otherwise(scope)

        return run

    def _for(self) -> Statement:
        first = self._name()
        if self._take(b"="):
            bounds = self._expressions()
            self._need(b"do")
            body = self.block(b"end")
            self._need(b"end")

            def count(scope: Scope) -> Any:
                begin, last, *rest = (bound(scope) for bound in bounds)
                step = rest[0] if rest else 1
                for value in range(begin, last + (1 if step > 0 else -1), step):
                    scope[first] = value
                    if (result := body(scope)) is not _GO_ON:
                        return result
                return _GO_ON

            return count
        self._need(b",")
        second = self._name()
        self._need(b"in")
        values = self._expression()
        self._need(b"do")
        body = self.block(b"end")
        self._need(b"end")

        def walk(scope: Scope) -> Any:
            for place, value in values(scope):
                scope[first], scope[second] = place, value
                if (result := body(scope)) is not _GO_ON:
                    return result
            return _GO_ON

        return walk

    # ------------------------------------------------------------ expressions
    def _expressions(self) -> list[Expression]:
        found = [self._expression()]
        while self._take(b","):
            found.append(self._expression())
        return found

    def _expression(self, level: int = 0) -> Expression:
        if level == len(_BINARY):
            return self._unary()
        left = self._expression(level + 1)
        while (sign := self._take(*_BINARY[level])) is not None:
            left = _combine(sign, left, self._expression(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._take(b"not"):
            negated = self._unary()
            return lambda scope: not truth(negated(scope))
        if self._take(b"#"):
            measured = self._unary()
            return lambda scope: length(measured(scope))
        if self._take(b"-"):
            number = self._unary()
            return lambda scope: -number(scope)
        return self._suffixed()[0]

    def _suffixed(self) -> tuple[Expression, Callable[[Scope, Any], None] | None]:
        """Return what reads the expression, and what assigns to it."""
        kind, word = self._peek()
        read: Expression
        write: Callable[[Scope, Any], None] | None = None
        if kind == "name" and word not in {b"true", b"false", b"nil"}:
            if word in _NOT_HERE:
                raise LuaError(f"{word.decode()} is not understood here")
            self._at += 1
            read = lambda scope, name=word: scope.get(name)  # type: ignore[misc]  # noqa: E731 - its own name is bound
            write = lambda scope, value, name=word: scope.__setitem__(name, value)  # noqa: E731
        elif self._take(b"("):
            read = self._expression()
            self._need(b")")
        else:
            return self._literal(), None
        while True:
            if self._take(b"."):
                read, write = _index(read, _constant(self._name()))
            elif self._take(b"["):
                key = self._expression()
                self._need(b"]")
                read, write = _index(read, key)
            elif self._take(b"("):
                arguments = [] if self._peek()[1] == b")" and self._peek()[0] == "sign" else self._expressions()
                self._need(b")")
                read, write = _call(read, arguments), None
            else:
                return read, write

    def _literal(self) -> Expression:
        kind, word = self._peek()
        self._at += 1
        if kind == "number":
            return _constant(number_of(word))
        if kind == "string":
            return _constant(word)
        if kind == "name":
            return _constant({b"true": True, b"false": False, b"nil": None}[word])
        if word == b"{":
            parts: list[Expression] = []
            while not self._take(b"}"):
                parts.append(self._expression())
                self._take(b",")
            return lambda scope: Table({place: part(scope) for place, part in enumerate(parts, 1)})
        raise LuaError(f"cannot understand {word!r}")


def _constant(value: Any) -> Expression:
    return lambda _: value


def _index(base: Expression, key: Expression) -> tuple[Expression, Callable[[Scope, Any], None]]:
    def read(scope: Scope) -> Any:
        found = base(scope)
        return found.get(key(scope)) if isinstance(found, dict) else None

    def write(scope: Scope, value: Any) -> None:
        base(scope)[key(scope)] = value

    return read, write


def _call(function: Expression, arguments: list[Expression]) -> Expression:
    def call(scope: Scope) -> Any:
        values: list[Any] = []
        for argument in arguments:
            value = argument(scope)
            values += value if isinstance(value, _Unpacked) else [value]
        return function(scope)(*values)

    return call


def _combine(sign: bytes, left: Expression, right: Expression) -> Expression:
    if sign == b"or":
        return lambda scope: found if truth(found := left(scope)) else right(scope)
    if sign == b"and":
        return lambda scope: right(scope) if truth(found := left(scope)) else found
    operation = _OPERATIONS[sign]
    return lambda scope: operation(left(scope), right(scope))


def _assignment(targets: list[Any], values: list[Expression]) -> Statement:
    def run(scope: Scope) -> Any:
        found = [value(scope) for value in values]
        for place, target in enumerate(targets):
            target(scope, found[place] if place < len(found) else None)
        return _GO_ON

    return run


class _Unpacked(list[Any]):
    """The result of ``unpack``: several arguments."""


def _ipairs(table: Table) -> Iterator[tuple[int, Any]]:
    return iter(enumerate(table.items_in_order(), 1))


def _type(value: Any) -> bytes:
    if isinstance(value, Table):
        return b"table"
    return {type(None): b"nil", bool: b"boolean", bytes: b"string"}.get(type(value), b"number")


@lru_cache(maxsize=256)
def compile_script(source: bytes) -> Statement:
    """Return a script as a function of its scope. ``run`` calls it."""
    parser = _Parser(source)
    body = parser.block()
    if parser._peek()[0] != "end":
        raise LuaError(f"more than a script at {parser._peek()}")
    return body


def _find(text: bytes, wanted: bytes, start: int, plain: bool) -> int | None:  # noqa: FBT001 - Lua's signature
    """``string.find`` of a plain text, from the first character on."""
    assert (start, plain) == (1, True), "patterns are not known here"
    at = text.find(wanted)
    return None if at < 0 else at + 1


def run(source: bytes, keys: list[bytes], arguments: list[bytes], redis: Table) -> Any:
    """Run a script and return its result. ``redis`` is the table with ``call``, ``pcall`` and the like."""

    def protected(function: Callable[..., Any], *values: Any) -> tuple[bool, Any]:
        try:
            return True, function(*values)
        except LuaError as error:
            return False, str(error).encode()

    scope: Scope = {
        b"KEYS": Table.of(keys),
        b"ARGV": Table.of(arguments),
        b"redis": redis,
        b"tonumber": number_of,
        b"tostring": text_of,
        b"ipairs": _ipairs,
        b"type": _type,
        b"unpack": lambda table: _Unpacked(table.items_in_order()),
        b"pcall": protected,
        b"string": Table({b"lower": bytes.lower, b"find": _find}),
    }
    result = compile_script(source)(scope)
    return None if result is _GO_ON else result
