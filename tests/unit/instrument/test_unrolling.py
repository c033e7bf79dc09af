"""A small innermost loop is unrolled, but not so often that what it loads needs more registers than there are."""

from __future__ import annotations

import pytest
import wasmtime

from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options


def copies(body: str) -> int:
    """Copies of the multiplication in a loop's body."""
    module = wasmtime.wat2wasm(f"""(module (memory 1) (func (export "f") (param i32) (result f64) (local f64 i64)
      loop $o
        loop $l
          (local.set 2 (i64.mul (local.get 2) (i64.const 7)))
          {body}
          (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))
        end
        (br_if $o (i64.ne (local.get 2) (i64.const 0)))
      end local.get 1))""")
    out = instrument(bytes(module), Options())
    return out.linker.bodies[0].count(b"\x20\x02\x42\x07\x7e")


@pytest.mark.parametrize(("loads", "expected"), [(0, 4), (1, 4), (3, 4), (4, 3), (6, 2), (7, 1)])
def test_few_copies_of_a_loop_that_loads_many_floats(loads: int, expected: int) -> None:
    text = "(local.set 1 (f64.add (local.get 1) (f64.load offset={} (local.get 0))))"
    assert copies("".join(text.format(8 * n) for n in range(loads))) == expected


def test_integers_do_not_count() -> None:
    assert copies("(local.set 2 (i64.add (local.get 2) (i64.load (local.get 0))))" * 6) == 4
