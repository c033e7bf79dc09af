"""The standard form of exceptions: clauses, tags and their types, as wasmtime has them; read and written unchanged."""

from __future__ import annotations

import pytest
import wasmtime

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.codes import Codes
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.encode import encode, name, section, vector
from wasmckpt.wasm.features import used_features
from wasmckpt.wasm.module import ExternKind
from wasmckpt.wasm.validate import Catch, analyze, validate

from .generated import accepted_by_wasmtime, padded, smith
from .modules import module

HEAD = """(import "e" "t" (tag $in (param i32))) (tag $a (export "a") (param i32 i64)) (tag $none)
  (tag $x (param exnref)) (type $p (func (param i32) (result i64)))"""

BODIES = {
    "a clause of each kind": """(block $all (block $any (result exnref) (block $ref (result i32 i64 exnref)
      (block $tag (result i32) (try_table (catch $in $tag) (catch_ref $a $ref) (catch_all $all) (catch_all_ref $any))
      return)
      drop return) drop drop drop return) drop)""",
    "no clause": "(try_table)",
    "results": "(drop (try_table (result i32) i32.const 1))",
    "parameters": "i32.const 1 (try_table (type $p) i64.extend_i32_u) drop",
    "to a loop": "(loop $l (try_table (catch $none $l) (throw $none)))",
    "to the function": "(try_table (catch $none 0) (throw $none))",
    "to a try_table": "(drop (try_table $t (result i32) (try_table (catch $in $t) nop) i32.const 2))",
    "twice the same tag": "(block $l (try_table (catch $none $l) (catch $none $l) (catch_all $l)))",
    "behind a throw": "i64.const 1 (throw $in (i32.const 1)) i32.add drop",
    "behind throw_ref": "(throw_ref (ref.null exn)) f32.add drop",
    "dead": "unreachable (block $l (try_table (catch_all $l) unreachable throw_ref))",
    "a null": "(drop (ref.is_null (ref.null exn)))",
    "a payload that is an exception": "(throw $x (block $l (result exnref) (try_table (catch_all_ref $l)) "
      "unreachable))",
}


def assemble(body: str) -> bytes:
    return bytes(wasmtime.wat2wasm(f"(module {HEAD} (func {body}))"))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_valid(body: str) -> None:
    wasm = assemble(body)
    assert accepted_by_wasmtime(wasm) == ""
    decoded = decode(wasm)
    validate(decoded)
    assert encode(decoded, {}) == wasm
    assert used_features(decoded, Codes(decoded))["exceptions"]


WRONG = {
    "too few values": "(block $l (try_table (catch $in $l)))",
    "too many values": "(block $l (result i32 i32) (try_table (catch $in $l)) unreachable) drop drop",
    "values of another type": "(drop (block $l (result i64) (try_table (catch $in $l)) unreachable))",
    "no exception": "(drop (block $l (result i32) (try_table (catch_ref $in $l)) unreachable))",
    "an exception too many": "(drop (block $l (result exnref) (try_table (catch_all $l)) unreachable))",
    "a function for an exception": "(drop (block $l (result funcref) (try_table (catch_all_ref $l)) unreachable))",
    "its own label": "(drop (try_table $t (result i32) (catch $in 0) i32.const 2))",
    "a label that is not there": "(try_table (catch $none 1))",
    "a tag that is not there": "(block $l (try_table (catch 9 $l)))",
    "a throw of a tag that is not there": "(throw 9)",
    "a throw without its payload": "(throw $in)",
    "a throw with another payload": "(throw $in (i64.const 1))",
    "throw_ref of a function": "(throw_ref (ref.null func))",
    "a body without its result": "(drop (try_table (result i32)))",
    "values left in the body": "(try_table i32.const 1)",
    "select without a type": "(drop (select (ref.null exn) (ref.null exn) (i32.const 1)))",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_invalid(body: str) -> None:
    wasm = assemble(body)
    assert accepted_by_wasmtime(wasm) != ""
    with pytest.raises(InvalidModule) as caught:
        validate(decode(wasm))
    assert caught.value.fields["function"] == 0
    assert "offset" in caught.value.fields


def test_what_is_decoded() -> None:
    decoded = decode(assemble(BODIES["a clause of each kind"]))
    assert [decoded.payload(i) for i in range(4)] == [(0x7F,), (0x7F, 0x7E), (), (0x69,)]
    assert [(e.name, e.index) for e in decoded.exports if e.kind == ExternKind.TAG] == [("a", 1)]
    assert [item.name for item in decoded.imported(ExternKind.TAG)] == ["t"]
    (clauses,) = analyze(decoded, 0).catches.values()
    assert clauses == (Catch(0, 0, 0), Catch(1, 1, 1), Catch(2, -1, 3), Catch(3, -1, 2))


@pytest.mark.parametrize(("tags", "what"), [
    (b"\1\0", "malformed tag attribute"), (b"\0\7", "unknown type"), (b"\0\1", "non-empty tag result type"),
])
def test_wrong_tags(tags: bytes, what: str) -> None:
    head = b"\0asm\1\0\0\0" + section(1, vector([b"\x60\0\0", b"\x60\0\1\x7f"]))
    wasm = head + section(13, vector([tags]))
    assert accepted_by_wasmtime(wasm) != ""
    with pytest.raises(InvalidModule, match=what):
        decode(wasm)
    imported = head + section(2, vector([name("") + name("") + b"\4" + tags]))
    with pytest.raises(InvalidModule, match=what):
        decode(imported)
    assert decode(head + section(13, vector([b"\0\0"]))).tags == [0]


def test_the_tag_section_has_its_place() -> None:
    memory, tags, globals_ = section(5, vector([b"\0\1"])), section(13, vector([b"\0\0"])), section(6, vector([]))
    head = b"\0asm\1\0\0\0" + section(1, vector([b"\x60\0\0"]))
    assert decode(head + memory + tags + globals_).tags == [0]
    for wrong in (tags + memory, globals_ + tags, tags + tags):
        with pytest.raises(InvalidModule, match="order"):
            decode(head + wrong)
        assert accepted_by_wasmtime(head + wrong) != ""
    assert encode(decode(head + memory + globals_), {13: vector([b"\0\0"])}) == head + memory + tags + globals_


@pytest.mark.parametrize(("code", "name"), [
    (b"\x06\x40\x0b", "try"), (b"\x07\0", "catch"), (b"\x09\0", "rethrow"), (b"\x18\0", "delegate"),
    (b"\x19", "catch_all"),
])
def test_the_older_form_is_refused_by_name(code: bytes, name: str) -> None:
    wasm = module([b"", b"\x01" + code])
    with pytest.raises(NotSupported, match=f"older form \\({name}\\)") as caught:
        validate(decode(wasm))
    at = caught.value.fields
    assert (at["need"], at["function"]) == ("legacy-exceptions", 1)
    assert wasm[int(str(at["offset"]))] == code[0]


@pytest.mark.parametrize("seed", range(12))
def test_generated_modules_with_tags(seed: int) -> None:
    """Of each module the validator says what wasmtime says, and it is written back as it was."""
    wasm = smith(seed, exceptions_enabled="true", min_tags="2", max_tags="5", min_types="8", min_funcs="6")
    decoded = decode(wasm)
    validate(decoded)
    assert accepted_by_wasmtime(wasm) == ""
    assert encode(decoded, {}) == wasm
    assert decode(padded(wasm)).tags == decoded.tags
