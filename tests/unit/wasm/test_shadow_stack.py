"""Which stack in memory is provably dead: each refusal with its twin, and how far below the pointer functions reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from wasmtime import wat2wasm

from wasmckpt.errors import NotSupported
from wasmckpt.instrument.cache import cached_stack
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.shadow_stack import ShadowStack, prove

HIGH = 4096


def module(functions: str = "", *, pointer: str = "(global $__stack_pointer (mut i32) (i32.const 4096))",
           data: str = '(data (i32.const 4096) "x")', more: str = "", memory: str = "(memory 1)") -> bytes:
    return bytes(wat2wasm(f"""(module {memory} {pointer} {data} {more}
        (func $callee (param i32)) (func $gives (result i32) (i32.const 7)) (func $same (param i32 i32) (result i32)
            (if (local.get 1) (then (return (local.get 0)))) (local.get 0)) {functions})"""))


def found(functions: str = "", **given: str) -> ShadowStack:
    return prove(decode(module(functions, **given)))


def refused(functions: str = "", **given: str) -> str:
    with pytest.raises(NotSupported) as problem:
        found(functions, **given)
    assert problem.value.hint
    return str(problem.value)


def test_a_module_with_the_stack_first() -> None:
    stack = found()
    assert (stack.pointer, stack.low, stack.high, stack.below) == (0, 0, HIGH, {})
    assert stack.dead_until(HIGH, set()) == HIGH
    assert stack.dead_until(100, {1, 2}) == 100
    for beyond in (HIGH + 1, 1 << 31, (1 << 32) - 16):  # it ran over, or is something else
        assert stack.dead_until(beyond, set()) == 0


def test_where_the_stack_ends_below() -> None:
    behind = '(data (i32.const 1024) "data")'
    assert "does not say where" in refused(data=behind)
    assert "does not say where" in refused(data="")
    assert found(data=behind, more='(global (export "__data_end") i32 (i32.const 2048))').low == 2048
    assert found(data=behind, more='(global (export "__stack_low") i32 (i32.const 2064))').low == 2064
    assert found(more='(global (export "__data_end") i32 (i32.const 8192))').low == 0  # behind the stack
    assert "data lies" in refused(data=behind, more='(global (export "__data_end") i32 (i32.const 1026))')
    assert "data lies" in refused(data='(data (i32.const 4095) "xy")',
                                  more='(global (export "__stack_low") i32 (i32.const 0))')
    assert found(data='(data (i32.const 4096) "xy")',
                 more='(global (export "__stack_low") i32 (i32.const 0))').low == 0
    assert "data lies" in refused(more='(global (export "__stack_low") i32 (i32.const 5000))')
    imported = '(import "a" "b" (global $g i32)) (memory 1)'
    assert "not known" in refused(data='(data (global.get $g) "x")', memory=imported)
    assert found(data='(data (i32.const 4096) "x")', memory=imported).pointer == 1


def test_which_global_it_is() -> None:
    assert "names no global" in refused(pointer="(global $sp (mut i32) (i32.const 4096))")
    assert found(pointer='(global $sp (export "__stack_pointer") (mut i32) (i32.const 4096))').high == HIGH
    assert "not a mutable" in refused(pointer="(global $__stack_pointer i32 (i32.const 4096))")
    assert "not a mutable" in refused(pointer="(global $__stack_pointer (mut i64) (i64.const 4096))")
    assert "imported" in refused(pointer='(import "env" "__stack_pointer" (global $__stack_pointer (mut i32)))',
                                 memory='(import "env" "memory" (memory 1))')
    assert "outside the memory" in refused(pointer="(global $__stack_pointer (mut i32) (i32.const 65552))")
    assert found(pointer="(global $__stack_pointer (mut i32) (i32.const 65536))",
                 data='(data (i32.const 65536) "x")', memory="(memory 2)").high == 65536
    assert "no memory" in refused(memory="", data="")


PROLOGUE = "(global.set $__stack_pointer (local.tee $f (i32.sub (global.get $__stack_pointer) (i32.const 32))))"
EPILOGUE = "(global.set $__stack_pointer (i32.add (local.get $f) (i32.const 32)))"


def function(body: str, head: str = "(local $f i32)") -> str:
    return f"(func $f {head} {body})"


@pytest.mark.parametrize("body", [
    pytest.param(f"{PROLOGUE} (i32.store (local.get $f) (i32.const 1)) {EPILOGUE}", id="plain"),
    pytest.param(f"{PROLOGUE} (call $callee (local.get $f)) {EPILOGUE}", id="a call"),
    pytest.param(f"{PROLOGUE} (loop $l (call $callee (local.get $f)) (br_if $l (call $gives))) {EPILOGUE}",
                 id="a loop"),
    pytest.param(f"{PROLOGUE} (if (call $gives) (then {EPILOGUE} (return))) {EPILOGUE}", id="an early return"),
    pytest.param(f"{PROLOGUE} (if (call $gives) (then (unreachable)) (else (nop))) {EPILOGUE}", id="unreachable"),
    pytest.param(f"{PROLOGUE} (block $b (br_if $b (call $gives)) (drop (i32.load (local.get $f)))) {EPILOGUE}",
                 id="a block"),
    pytest.param(f"{PROLOGUE} (block $a (block $b (br_table $a $b $a (call $gives)))) {EPILOGUE}", id="a switch"),
    pytest.param(f"""{PROLOGUE} (global.set $__stack_pointer (local.tee $v
        (i32.sub (local.get $f) (i32.and (i32.add (call $gives) (i32.const 15)) (i32.const -16)))))
        (i32.store (local.get $v) (i32.const 1)) (call $callee (local.get $v)) {EPILOGUE}""", id="an allocation"),
    pytest.param("""(local.set $v (global.get $__stack_pointer)) (global.set $__stack_pointer (local.tee $f
        (i32.and (i32.sub (local.get $v) (i32.const 32)) (i32.const -64)))) (i32.store (local.get $f) (i32.const 1))
        (global.set $__stack_pointer (local.get $v))""", id="an alignment"),
    pytest.param(f"{PROLOGUE} (local.set $f (call $same (local.get $f) (call $gives))) {EPILOGUE}",
                 id="an argument that comes back"),
    pytest.param(f"{PROLOGUE} (drop (i32.lt_u (i32.sub (local.get $f) (i32.const 800)) (i32.const 99))) {EPILOGUE}",
                 id="a comparison with what is below"),
    pytest.param("(drop (global.get $__stack_pointer))", id="only read"),
    pytest.param(f"{PROLOGUE} (return (global.set $__stack_pointer (i32.sub (local.get $f) (i32.const -32)))) (nop)",
                 id="minus a negative number"),
])
def test_what_functions_do(body: str) -> None:
    assert found(function(body, "(local $f i32) (local $v i32)")).below == {}


@pytest.mark.parametrize(("body", "why"), [
    pytest.param("(global.set $__stack_pointer (local.get $f))", "origin cannot be followed", id="a local"),
    pytest.param("(global.set $__stack_pointer (i32.load (i32.const 0)))", "origin cannot be followed", id="loaded"),
    pytest.param("(global.set $__stack_pointer (i32.const 64))", "origin cannot be followed", id="a constant"),
    pytest.param("(global.set $__stack_pointer (i32.add (global.get $__stack_pointer) (i32.const 16)))",
                 "above where it was", id="higher"),
    pytest.param(PROLOGUE, "without having put it back", id="not put back"),
    pytest.param(f"{PROLOGUE} (if (call $gives) (then (return))) {EPILOGUE}", "without having put it back",
                 id="not always put back"),
    pytest.param(f"{PROLOGUE} (br_if 0 (call $gives)) {EPILOGUE}", "without having put it back", id="by a branch"),
    pytest.param(f"(block {PROLOGUE} (br_if 0 (call $gives)) {EPILOGUE})", "without having put it back",
                 id="not on one way to a label"),
    pytest.param(f"{PROLOGUE} (local.set $f (call $gives)) {EPILOGUE}", "origin cannot be followed",
                 id="a result that is no argument"),
    pytest.param(f"{PROLOGUE} (loop $l (local.set $f (i32.add (local.get $f) (i32.const 0)))"
                 f" (local.set $f (i32.load (i32.const 0))) (br_if $l (call $gives))) {EPILOGUE}",
                 "origin cannot be followed", id="changed in a loop"),
    pytest.param(f"{PROLOGUE} (return_call $callee (i32.const 0))", "without having put it back", id="a tail call"),
])
def test_what_functions_may_not_do(body: str, why: str) -> None:
    text = refused(function(body))
    assert why in text
    assert "function 3" in text


def test_no_function_is_left_out_however_its_indices_are_written() -> None:
    """Linkers write the global's index in five bytes."""
    short = "(global.set $__stack_pointer (i32.const 64))"
    good = module(function(short, head=""))
    body = b"\x07\x00\x41\xc0\x00\x24\x00\x0b"
    at = good.index(body)
    assert good.endswith(body + good[at + len(body):])
    start = good.rindex(bytes([10, at + len(body) - good.rindex(b"\x0a", 0, at - 10) - 2]), 0, at)
    padded = good[:start + 1] + bytes([good[start + 1] + 4]) + good[start + 2:at] + (
        b"\x0b\x00\x41\xc0\x00\x24\x80\x80\x80\x80\x00\x0b" + good[at + len(body):]
    )
    for wasm in (good, padded):
        with pytest.raises(NotSupported, match="origin"):
            prove(decode(wasm))


# How far below


LEAF = "(local.set $f (i32.sub (global.get $__stack_pointer) (i32.const {size})))"


@pytest.mark.parametrize(("body", "below"), [
    pytest.param("(i32.store (local.get $f) (i32.const 1))", 48, id="a store"),
    pytest.param("(i32.store offset=40 (local.get $f) (i32.const 1))", 48, id="an offset"),
    pytest.param("(drop (i64.load (i32.add (local.get $f) (i32.const 16))))", 32, id="a load of a part"),
    pytest.param("(i32.store (i32.const 0) (local.get $f))", 48, id="its address, stored"),
    pytest.param("(call $callee (i32.add (local.get $f) (i32.const 8)))", 40, id="its address, given away"),
    pytest.param("(drop (i32.load8_u (i32.add (local.get $f) (call $gives))))", 48, id="an index"),
    pytest.param("(drop (i32.load8_u (i32.add (call $gives) (local.get $f))))", 48, id="an index before"),
    pytest.param("(drop (i32.load (i32.and (local.get $f) (i32.const -16))))", 63, id="aligned"),
    pytest.param("(drop (i32.mul (local.get $f) (i32.const 3)))", 48, id="a computation"),
    pytest.param("(if (local.get $f) (then (nop)))", 48, id="a condition"),
    pytest.param("(loop $l (i32.store (local.get $f) (i32.const 1)) (br_if $l (i32.load (local.get $f))))", 48,
                 id="a loop"),
    pytest.param("(drop (select (local.get $f) (i32.const 0) (call $gives)))", 48, id="a selection"),
    pytest.param("(drop (block (result i32) (local.get $f)))", 48, id="out of a block"),
    pytest.param("(drop (block $b (result i32) (br $b (local.get $f))))", 48, id="out of a block by a branch"),
    pytest.param("(global.set $other (local.get $f))", 48, id="into another global"),
    pytest.param("(nop)", 0, id="not at all"),
    pytest.param("(drop (i32.eqz (local.get $f)))", 0, id="compared"),
    pytest.param("(i32.store (i32.add (local.get $f) (i32.const 48)) (i32.const 1))", 0, id="above"),
    pytest.param("(global.set $__stack_pointer (local.get $f)) (i32.store (local.get $f) (i32.const 1))"
                 " (global.set $__stack_pointer (i32.add (local.get $f) (i32.const 48)))", 0, id="published first"),
    pytest.param("(i32.store (i32.add (local.get $f) (i32.const 8)) (i32.const 1))"
                 " (global.set $__stack_pointer (local.get $f)) (i32.store (local.get $f) (i32.const 1))"
                 " (global.set $__stack_pointer (i32.add (local.get $f) (i32.const 48)))", 40, id="published later"),
])
def test_the_red_zone(body: str, below: int) -> None:
    stack = found(function(LEAF.format(size=48) + body), more="(global $other (mut i32) (i32.const 0))")
    assert stack.below == ({3: below} if below else {})
    assert stack.dead_until(4000, {3}) == 4000 - below
    assert stack.dead_until(4000, {2}) == 4000
    assert stack.dead_until(20, {3}) == (0 if below else 20)


def test_a_frame_whose_address_is_the_result() -> None:
    assert found("(func (result i32) (i32.sub (global.get $__stack_pointer) (i32.const 16)))").below == {3: 16}
    assert found("(func (result i32) (return (i32.sub (global.get $__stack_pointer) (i32.const 16))))").below == {3: 16}


def test_below_a_pointer_that_is_not_known_exactly() -> None:
    """On one way the pointer was lowered: a use below both is of no known depth; one above both is none."""
    body = """(local.set $f (global.get $__stack_pointer))
        (if (call $gives) (then (global.set $__stack_pointer (i32.sub (local.get $f) (call $gives)))))
        (i32.store (i32.sub (local.get $f) (i32.const {size})) (i32.const 1))
        (global.set $__stack_pointer (local.get $f))"""
    assert "not known how far" in refused(function(body.format(size=16)))
    assert found(function(body.format(size=0))).below == {}


def test_exceptions() -> None:
    """A clause puts the pointer back: what was thrown through has not."""
    tagged = "(tag $t)"
    body = f"""{PROLOGUE}
        (block $caught (try_table (catch $t $caught) (call $callee (local.get $f))) {EPILOGUE} (return))
        {{put_back}} (drop (i32.load (local.get $f))) {EPILOGUE}"""
    put_back = "(global.set $__stack_pointer (local.get $f))"
    assert found(function(body.format(put_back=put_back)), more=tagged).below == {}
    assert found(function(body.format(put_back="")), more=tagged).below == {}
    lowered = f"""{PROLOGUE} (block $caught (try_table (catch $t $caught)
        (global.set $__stack_pointer (i32.sub (local.get $f) (i32.const 64))) (throw $t)))
        (drop (i32.load {{what}})) {EPILOGUE}"""
    assert "not known how far" in refused(
        function(lowered.format(what="(i32.sub (local.get $f) (i32.const 8))")), more=tagged
    )


def test_what_takes_the_square_of_its_size() -> None:
    """Thirty thousand locals that all have a known value; a tenth of them is no trouble."""
    def many(count: int) -> str:
        sets = "".join(f"(local.set {n + 1} (i32.const 1))" for n in range(count))
        return function(PROLOGUE + sets + EPILOGUE, "(local $f i32)" + "(local i32)" * count)

    assert found(many(3_000)).low == 0
    assert "takes too long" in refused(many(30_000))


def test_a_proof_is_kept_and_made_anew_where_it_is_damaged(tmp_path: Path) -> None:
    wasm = decode(module(function(LEAF.format(size=48) + "(i32.store (local.get $f) (i32.const 1))")))
    want = prove(wasm)
    for _ in range(2):
        assert cached_stack(wasm, tmp_path) == want
    (entry,) = (path for path in tmp_path.rglob("*") if path.is_file())
    good = entry.read_bytes()
    for bad in (b"", good[:-1], good[:-1] + b"x"):
        entry.write_bytes(bad)
        assert cached_stack(wasm, tmp_path) == want
        assert entry.read_bytes() == good
    with pytest.raises(NotSupported):
        cached_stack(decode(module(data="")), tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [entry]
