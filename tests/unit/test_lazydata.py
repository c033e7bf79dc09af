"""Our dataclasses against the standard library's: what both are made of acts alike."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from wasmckpt import lazydata

BOTH = (lazydata, dataclasses)


def _both(make: Callable[[Any], type]) -> tuple[type, type]:
    ours, theirs = (make(library) for library in BOTH)
    return ours, theirs


def _point(library: Any, **options: bool) -> type:
    @library.dataclass(**options)
    class Point:
        """A point."""

        KIND: ClassVar[str] = "point"
        x: int
        y: int = 2
        tags: list[str] = library.field(default_factory=list)
        secret: str = library.field(default="s", repr=False)
        note: object = library.field(default=None, compare=False)
        length: int = library.field(init=False, default=7)

        def moved(self) -> int:
            return self.x + self.y

    return Point


OPTIONS = [dict(zip(("frozen", "slots", "eq", "kw_only"), flags, strict=True))
           for flags in itertools.product((False, True), repeat=4)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(k for k, v in o.items() if v) or "plain")
def test_they_act_alike(options: dict[str, bool]) -> None:
    def acts(cls: Any) -> list[object]:
        one, same = cls(x=1), cls(x=1, note="else")
        other = cls(x=1, y=3, tags=["t"])
        seen: list[object] = [
            repr(one), repr(other), one == same, one == other, one != other, one == 1, other.moved(), cls.KIND,
            cls.__match_args__, cls.__name__, cls.__qualname__, cls.__doc__, cls.__module__, one.length,
            cls(x=1).tags is not one.tags, hasattr(one, "__dict__"), getattr(cls, "__slots__", None),
            dataclasses.is_dataclass(cls), [(f.name, f.type, f.init, f.repr, f.compare, f.kw_only)
                                            for f in dataclasses.fields(cls)],
            dataclasses.asdict(other), repr(dataclasses.replace(other, x=5)),
        ]
        for act in (lambda: cls(), lambda: cls(1, 2, 3, 4, 5, 6), lambda: repr(cls(1)), lambda: cls(x=1, z=2),
                    lambda: hash(cls(x=1, tags=())) == hash(cls(x=1, tags=())), lambda: setattr(one, "x", 3),
                    lambda: delattr(one, "x"), lambda: setattr(one, "unknown", 3), lambda: repr(copy.copy(other)),
                    lambda: one.x):
            try:
                seen.append(act())
            except (TypeError, AttributeError):  # which of them the standard library has changed its mind about
                seen.append("refused")
        return seen

    ours, theirs = _both(lambda library: _point(library, **options))
    assert acts(ours) == acts(theirs)


def test_fields_are_inherited_and_what_comes_after_init_is_called() -> None:
    def make(library: Any) -> type:
        @library.dataclass(frozen=True, slots=True)
        class Base:
            a: int

            def __post_init__(self) -> None:
                if self.a < 0:
                    raise ValueError("negative")

        @library.dataclass(frozen=True, slots=True)
        class Derived(Base):
            b: int = 0

        return Derived

    for cls in _both(make):
        assert repr(cls(1, 2)).endswith("Derived(a=1, b=2)")
        with pytest.raises(ValueError, match="negative"):
            cls(-1)


def test_a_class_of_its_own_equality_keeps_it() -> None:
    def make(library: Any) -> type:
        @library.dataclass(frozen=True)
        class Odd:
            a: int

            def __eq__(self, other: object) -> bool:
                return True

            def __hash__(self) -> int:
                return 5

            def __repr__(self) -> str:
                return "odd"

        return Odd

    for cls in _both(make):
        assert cls(1) == cls(2)
        assert hash(cls(1)) == 5
        assert repr(cls(1)) == "odd"


@lazydata.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: str = "b"


def test_objects_can_be_pickled_replaced_and_made_by_many_threads_at_once() -> None:
    assert pickle.loads(pickle.dumps(Kept(1))) == Kept(1)
    assert lazydata.replace(Kept(1), b="c") == Kept(1, "c")
    with pytest.raises(TypeError):
        lazydata.replace(Kept(1), z=1)
    for _ in range(100):
        cls: Any = _point(lazydata, frozen=True, slots=True)
        made: list[Any] = []
        threads = [threading.Thread(target=lambda cls=cls, made=made: made.append(cls(1))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [cls(1)] * 4


def test_a_worker_imports_neither_dataclasses_nor_inspect() -> None:
    code = "import sys, wasmckpt.snapshot.worker; print({'dataclasses', 'inspect'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_the_standard_library_asks_for_is_made_once() -> None:
    """Each time took ten milliseconds: more than all of a stop."""
    kind = _point(lazydata)
    assert kind.__dataclass_fields__ is kind.__dataclass_fields__  # type: ignore[attr-defined]
    assert list(lazydata.field_names(kind(1, 2))) == list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
