"""Modules that load, and modules that are refused, with the reason."""

from __future__ import annotations

import random

import pytest

from wasmckpt.errors import CheckpointError, InvalidModule, NotSupported, UsageError
from wasmckpt.runtimes.base import Engine, HostFunction, HostGlobal, Imports, MissingImport

from .guests import F32, I32, I64, host, start, wat

_WANTS = """(module (import "env" "f" (func (param i32) (result i64))) (import "env" "g" (global (mut i32)))
  (func (export "ok") (result i32) (i32.const 1)))"""
_GIVEN: dict[tuple[str, str], HostFunction | HostGlobal] = {
    ("env", "f"): host((I32,), (I64,), lambda _: 0), ("env", "g"): HostGlobal(I32, True, 0),
}


def test_all_imports_given_and_more(engine: Engine) -> None:
    with start(engine, _WANTS, {**_GIVEN, ("env", "unused"): HostGlobal(I32, False, 1)}) as instance:
        assert instance.call("ok") == (1,)


@pytest.mark.parametrize(("name", "instead"), [
    ("f", None), ("g", None), ("f", HostGlobal(I32, True, 0)), ("f", host((I32,), (I32,), lambda _: 0)),
    ("f", host((), (I64,), lambda: 0)), ("g", HostGlobal(I32, False, 0)), ("g", HostGlobal(F32, True, 0)),
])
def test_a_missing_or_wrong_import_is_named(
    engine: Engine, name: str, instead: HostFunction | HostGlobal | None,
) -> None:
    given = dict(_GIVEN)
    del given["env", name]
    if instead is not None:
        given["env", name] = instead
    imports: Imports = given
    with pytest.raises(MissingImport) as caught:
        start(engine, _WANTS, imports)
    assert caught.value.fields["module"] == "'env'"
    assert caught.value.fields["name"] == repr(name)


@pytest.mark.parametrize("text", [
    '(module (import "e" "m" (memory 1)))', '(module (import "e" "t" (table 1 funcref)))',
])
def test_imported_memories_and_tables_are_refused(engine: Engine, text: str) -> None:
    with pytest.raises(NotSupported):
        start(engine, text)


_GOOD = wat("""(module (import "e" "f" (func $f (param i32) (result i32))) (memory (export "m") 1 3) (table 2 funcref)
  (elem (i32.const 0) $g $g) (global $x (export "x") (mut i64) (i64.const 77)) (data (i32.const 4) "hello")
  (func $g (export "g") (param i32) (result i32) (local i64)
    (loop $l (br_if $l (i32.lt_u (local.tee 0 (call $f (local.get 0))) (i32.const 5)))) local.get 0))""")


def test_no_prefix_of_a_module_is_a_module(engine: Engine) -> None:
    whole_sections = {8}  # after these lengths a module ends well, though not all of them are valid
    at = 8
    while at < len(_GOOD):
        at += 2 + _GOOD[at + 1]
        whole_sections.add(at)
    engine.validate(_GOOD)
    for length in range(len(_GOOD)):
        if length in whole_sections:
            continue
        with pytest.raises(InvalidModule) as caught:
            engine.compile(_GOOD[:length])
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("data", [
    b"", b"\0", b"\0asm", b"hello world", b"\0asm\2\0\0\0", b"\0asm\r\0\1\0", b"\x7fELF" * 9,
])
def test_garbage_has_an_offset(engine: Engine, data: bytes) -> None:
    for method in (engine.compile, engine.validate):
        with pytest.raises(InvalidModule):
            method(data)


def test_flipped_bytes_outside_of_code_never_give_another_error(engine: Engine) -> None:
    draw = random.Random(7)
    end = _GOOD.index(b"\x0a", 60)  # bodies are left alone: a runtime without a validator must not be asked
    for _ in range(300):
        data = bytearray(_GOOD[:end])
        data[draw.randrange(end)] ^= 1 << draw.randrange(8)
        try:
            engine.compile(bytes(data) + _GOOD[end:]).close()
        except CheckpointError:
            pass


def test_type_errors_are_found_where_validation_is_full(engine: Engine) -> None:
    bad = bytearray(wat('(module (func (export "f") (result i32) (i32.add (i32.const 1) (i32.const 2))))'))
    bad[bad.index(0x6A)] = 0x7C  # i64.add
    if engine.capabilities.full_validation:
        with pytest.raises(InvalidModule) as caught:
            engine.validate(bytes(bad))
        assert isinstance(caught.value.fields["offset"], int)


def test_exports_are_found_by_their_own_name(engine: Engine) -> None:
    """The name section says otherwise, more than three names lead to one function, and names are any text."""
    text = """(module
      (func $_start (result i32) (i32.const 1))
      (func $b (export "_start") (export "a") (export "b") (export "c") (export "d") (result i32) (i32.const 2))
      (func $c (export "") (result i32) (i32.const 3))
      (func (export "gr\\c3\\bc\\c3\\9f\\00e") (result i32) (i32.const 4))
      (func (export "$func0") (result i32) (i32.const 5))
      (func (export "f1") (result i32) (i32.const 6))
      (global (export "g0") i32 (i32.const 7))
      (global (export "h") (export "i") (export "$global0") i32 (i32.const 8)))"""
    with start(engine, text) as instance:
        for name, value in {"_start": 2, "a": 2, "d": 2, "": 3, "grüß\0e": 4, "$func0": 5, "f1": 6}.items():
            assert instance.call(name) == (value,)
        for name, value in {"g0": 7, "h": 8, "i": 8, "$global0": 8}.items():
            assert instance.get_global(name) == value
        for name in ("f0", "b\0", "grüß", "memory"):
            with pytest.raises(UsageError):
                instance.call(name)


def test_an_imported_function_can_be_exported(engine: Engine) -> None:
    text = '(module (import "e" "f" (func $f (param i32) (result i32))) (export "f" (func $f)))'
    with start(engine, text, {("e", "f"): host((I32,), (I32,), lambda n: n + 1)}) as instance:
        assert instance.call("f", (4,)) == (5,)
        with pytest.raises(UsageError):
            instance.call("f", (1 << 32,))


def test_the_start_function_runs_once_and_before_any_call(engine: Engine) -> None:
    text = """(module (import "e" "f" (func $f)) (global $n (export "n") (mut i32) (i32.const 0))
      (func $s (call $f) (global.set $n (i32.add (global.get $n) (i32.const 1)))) (start $s)
      (func (export "n2") (result i32) (global.get $n)))"""
    calls: list[int] = []
    with start(engine, text, {("e", "f"): host((), (), lambda: calls.append(1))}) as instance:
        assert calls == [1]
        assert instance.get_global("n") == 1
        assert instance.call("n2") == (1,)
        assert calls == [1]


def test_function_zero_as_start(engine: Engine) -> None:
    with start(engine, """(module (global $n (export "n") (mut i32) (i32.const 0))
      (func (global.set $n (i32.add (global.get $n) (i32.const 1)))) (start 0) (func (export "f")))""") as instance:
        instance.call("f")
        assert instance.get_global("n") == 1


def test_an_exception_in_the_start_function_comes_back(engine: Engine) -> None:
    problem = RuntimeError("start")

    def fail() -> None:
        raise problem

    with pytest.raises(RuntimeError) as caught:
        start(engine, '(module (import "e" "f" (func $f)) (start $f))', {("e", "f"): host((), (), fail)})
    assert caught.value is problem


def test_another_runtimes_compiled_form_is_refused(engine: Engine) -> None:
    from wasmckpt import runtimes

    for name in runtimes.available():
        if name != engine.name:
            with pytest.raises(UsageError):
                engine.instantiate(runtimes.load(name).compile(_GOOD), {})


def test_one_compiled_module_many_instances(engine: Engine) -> None:
    compiled = engine.compile(wat('(module (global (export "g") (mut i32) (i32.const 1)))'))
    first, second = engine.instantiate(compiled, {}), engine.instantiate(compiled, {})
    compiled.close()
    first.set_global("g", 9)
    assert (first.get_global("g"), second.get_global("g")) == (9, 1)
    first.close()
    assert second.get_global("g") == 1
    second.close()


@pytest.mark.parametrize("depth", [1000, 45_000])
def test_deep_nesting_is_compiled_in_a_thread_that_holds_it(engine: Engine, depth: int) -> None:
    assert depth <= engine.capabilities.max_nesting
    body = b"\0" + b"\x02\x40" * depth + b"\x0b" * depth + b"\x0b"

    def leb(n: int) -> bytes:
        return bytes([n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14])

    code = b"\1" + leb(len(body)) + body
    wasm = wat('(module (func (export "f")))').split(b"\x0a\x04")[0] + b"\x0a" + leb(len(code)) + code
    with engine.instantiate(engine.compile(wasm), {}) as instance:
        assert instance.call("f") == ()
