"""Stored compiled forms: never trusted unless whole."""

from __future__ import annotations

import random

import pytest

from wasmckpt.runtimes.base import CompiledFormError, Engine

from .guests import I32, host, wat

_WASM = wat("""(module (import "e" "f" (func $f (param i32) (result i32))) (memory (export "m") 1)
  (data (i32.const 0) "abc")
  (func (export "g") (param i32) (result i32) (call $f (i32.mul (local.get 0) (i32.const 3)))))""")
_IMPORTS = {("e", "f"): host((I32,), (I32,), lambda n: n + 1)}


def _blob(engine: Engine) -> bytes:
    blob = engine.compile(_WASM).serialize()
    if not engine.capabilities.serializes:
        assert blob is None
        with pytest.raises(CompiledFormError):
            engine.deserialize(b"anything")
        pytest.skip("the runtime has no compiled form")
    assert blob is not None
    return blob


def test_a_stored_form_runs(engine: Engine) -> None:
    blob = _blob(engine)
    compiled = engine.deserialize(blob)
    assert compiled.wasm_sha256 == engine.compile(_WASM).wasm_sha256
    assert compiled.serialize() == blob
    for stack_bytes in (64 << 10, 1 << 20):
        with engine.instantiate(compiled, _IMPORTS, stack_bytes=stack_bytes) as instance:
            assert instance.call("g", (5,)) == (16,)
            assert instance.memory("m").read(0, 3) == b"abc"


def test_a_flipped_bit_anywhere_is_refused(engine: Engine) -> None:
    blob = _blob(engine)
    draw = random.Random(3)
    for at in [*range(120), *(draw.randrange(len(blob)) for _ in range(400)), len(blob) - 1]:
        damaged = bytearray(blob)
        damaged[at] ^= 1 << draw.randrange(8)
        with pytest.raises(CompiledFormError):
            engine.deserialize(bytes(damaged))


def test_cut_lengthened_or_foreign_forms_are_refused(engine: Engine) -> None:
    blob = _blob(engine)
    for other in (b"", blob[:20], blob[:-1], blob + b"\0", _WASM, bytes(len(blob))):
        with pytest.raises(CompiledFormError):
            engine.deserialize(other)
