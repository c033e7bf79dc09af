"""`dataclass`, `field` and `replace`, as in the standard library's `dataclasses`, with methods made when first needed.

Aim: a resume has 200 ms, processes included, and the standard library took 45 of them: it compiles up to six methods
for each class when that is defined, 78 times in a worker, and imports `inspect`. Here a class costs little until its
first object is made; then its ``__init__`` is compiled. Rejected: attrs (no faster to define), named tuples (equal to
any tuple of the same values).

What our classes use is here and no more: frozen, slots, eq, kw_only, weakref_slot; default, default_factory, init,
repr and compare of a field; ``__post_init__``, inherited fields. ``__dataclass_fields__`` are the standard library's,
made when somebody asks for them, so that its own functions take our classes for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform

__all__ = ["dataclass", "field", "field_names", "finish", "replace"]

_T = TypeVar("_T")
_MISSING: Final[Any] = object()
_FIELDS: Final = "__lazydata_fields__"
"""Class attribute that holds all fields, inherited ones included, by name."""
_FIRST: Final = "first_init"
"""Name of an ``__init__`` that is to be replaced."""


_unfinished: list[tuple[type, dict[str, _Field], bool]] = []
"""Classes with their fields, and whether they are frozen, of which `finish` has not heard yet."""


class _Field:
    __slots__ = ("compare", "default", "factory", "init", "kw_only", "repr")

    def __init__(self, default: Any, factory: Any, init: bool, repr: bool, compare: bool) -> None:
        self.default, self.factory = default, factory
        self.init, self.repr, self.compare = init, repr, compare
        self.kw_only = False


def field(*, default: Any = _MISSING, default_factory: Any = _MISSING, init: bool = True, repr: bool = True,
          compare: bool = True) -> Any:
    """What there is to say of a field beside its type."""
    return _Field(default, default_factory, init, repr, compare)


@dataclass_transform(field_specifiers=(field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False, weakref_slot: bool = False,
) -> Callable[[type[_T]], type[_T]]:
    """A class whose annotations are its fields."""

    def make(cls: type[_T]) -> type[_T]:
        fields: dict[str, _Field] = {}
        for base in reversed(cls.__mro__[1:]):
            fields |= base.__dict__.get(_FIELDS, {})
        own = _own_fields(cls, kw_only)
        fields |= own
        body: dict[str, Any] = {
            _FIELDS: fields,
            "__dataclass_fields__": _StandardFields(),
            "__init__": _first_init(fields, frozen),
            "__match_args__": tuple(name for name, one in fields.items() if one.init and not one.kw_only),
        }
        if "__repr__" not in cls.__dict__:
            body["__repr__"] = _repr
        if eq and "__eq__" not in cls.__dict__:
            values = _getter([name for name, one in fields.items() if one.compare])
            body["__eq__"] = _equal(values)
            if cls.__dict__.get("__hash__") is None:
                body["__hash__"] = _hash(values) if frozen else None
        if frozen:
            body["__setattr__"] = body["__delattr__"] = _refuse
        if slots:
            body["__slots__"] = (*own, "__weakref__") if weakref_slot else tuple(own)
            if frozen:
                body["__getstate__"], body["__setstate__"] = _get_state, _set_state
            dropped = {*own, "__dict__", "__weakref__"}
            kept = {name: value for name, value in cls.__dict__.items() if name not in dropped}
            made: Any = type(cls)(cls.__name__, cls.__bases__, kept | body)  # type: ignore[misc]
            made.__qualname__ = cls.__qualname__
            _unfinished.append((made, fields, frozen))
            return made  # type: ignore[no-any-return]
        for name, one in own.items():
            if one.default is not _MISSING:
                body[name] = one.default
            elif name in cls.__dict__:
                delattr(cls, name)
        for name, value in body.items():
            setattr(cls, name, value)
        _unfinished.append((cls, fields, frozen))
        return cls

    return make


def finish() -> None:
    """Make now what would be made when it is first needed: for a process that copies of it are made of."""
    while _unfinished:
        cls, fields, frozen = _unfinished.pop()
        if cls.__dict__["__init__"].__name__ == _FIRST:
            cls.__init__ = _compile_init(cls, fields, frozen)  # type: ignore[misc]


def replace(obj: _T, **changes: Any) -> _T:
    """An object of the same class with other values. Raises TypeError for names that its ``__init__`` has not."""
    for name, one in getattr(obj, _FIELDS).items():
        if one.init and name not in changes:
            changes[name] = getattr(obj, name)
    return type(obj)(**changes)


def field_names(obj: object) -> Iterable[str]:
    """Names of an object's fields, inherited ones first."""
    return getattr(obj, _FIELDS)  # type: ignore[no-any-return]


def _own_fields(cls: type, kw_only: bool) -> dict[str, _Field]:
    fields = {}
    for name, kind in cls.__annotations__.items():
        if not str(kind).startswith("ClassVar"):
            given = cls.__dict__.get(name, _MISSING)
            fields[name] = one = given if isinstance(given, _Field) else _Field(given, _MISSING, True, True, True)
            one.kw_only = kw_only
    return fields


def _first_init(fields: Mapping[str, _Field], frozen: bool) -> Callable[..., None]:
    """An ``__init__`` that puts the real one in its place."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for cls in type(self).__mro__:
            if cls.__dict__.get("__init__") is __init__:
                cls.__init__ = _compile_init(cls, fields, frozen)  # type: ignore[misc]
        type(self).__init__(self, *args, **kwargs)

    __init__.__name__ = _FIRST
    return __init__


def _compile_init(cls: Any, fields: Mapping[str, _Field], frozen: bool) -> Callable[..., None]:
    names: dict[str, Any] = {"_missing": _MISSING, "_set": object.__setattr__}
    params: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    for name, one in fields.items():
        value = name
        if one.factory is not _MISSING:
            names[f"_make_{name}"] = one.factory
            value = f"_make_{name}() if {name} is _missing else {name}" if one.init else f"_make_{name}()"
            default = "=_missing"
        elif one.default is not _MISSING:
            names[f"_default_{name}"] = one.default
            value = name if one.init else f"_default_{name}"
            default = f"=_default_{name}"
        elif one.init:
            default = ""
        else:
            continue
        if one.init:
            (keywords if one.kw_only else params).append(name + default)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    head = ", ".join(["self", *params, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({head}):\n " + "\n ".join(lines or ["pass"]), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _getter(names: list[str]) -> Callable[[Any], Any]:
    """All values that are compared, of an object."""
    return attrgetter(*names) if names else lambda _: ()


def _equal(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _repr(self: Any) -> str:
    shown = (name for name, one in getattr(self, _FIELDS).items() if one.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _refuse(self: Any, name: str, value: object = None) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{type(self).__qualname__}.{name} is not to be changed")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in getattr(self, _FIELDS)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(getattr(self, _FIELDS), state, strict=True):
        object.__setattr__(self, name, value)


class _StandardFields:
    """``__dataclass_fields__`` until somebody asks for it."""

    def __get__(self, obj: object, owner: Any) -> dict[str, Any]:
        import dataclasses

        types: dict[str, Any] = {}
        for base in reversed(owner.__mro__):
            if _FIELDS in base.__dict__:
                types |= base.__annotations__
        own: Mapping[str, _Field] = getattr(owner, _FIELDS)
        made: Any = dataclasses.make_dataclass(owner.__name__, [
            (name, types[name], dataclasses.field(
                default=dataclasses.MISSING if one.default is _MISSING else one.default,
                default_factory=dataclasses.MISSING if one.factory is _MISSING else one.factory,
                init=one.init, repr=one.repr, compare=one.compare, kw_only=one.kw_only,
            )) for name, one in own.items()
        ])
        fields: dict[str, Any] = made.__dataclass_fields__
        owner.__dataclass_fields__ = fields
        return fields
