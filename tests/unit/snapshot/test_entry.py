"""What is called, and in which order."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from wasmckpt.errors import UsageError
from wasmckpt.snapshot.program import START_STEP, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32, I64, Value

MODULE = decode(bytes(wat2wasm("""(module (import "env" "log" (func $log (param i32)))
  (func $f) (start $f) (export "again" (func $log)) (export "_initialize" (func $f)) (export "_start" (func $f))
  (func (export "step") (param i32)))""")))


def test_order() -> None:
    assert entry_for(MODULE).steps == (START_STEP, "_start")
    assert entry_for(MODULE, "step", [Value(I32, 1)]).steps == (START_STEP, "_initialize", "step")


@pytest.mark.parametrize(("name", "arguments", "text"), [
    ("nothing", (), "exports no function"), ("again", (Value(I32, 1),), "is an import"),
    ("step", (), "takes 1 arguments"), ("step", (Value(I64, 1),), "takes 1 arguments"),
])
def test_refused(name: str, arguments: tuple[Value, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        entry_for(MODULE, name, arguments)
