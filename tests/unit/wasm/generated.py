"""Modules that nobody wrote, and a validator that is not ours."""

from __future__ import annotations

import random
import subprocess
from functools import cache
from typing import Final

import wasmtime

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.leb128 import read_u32, uleb

from ...support.spec import wasm_tools
from ...support.tiers import missing
from ...support.toolchain import Unavailable

__all__ = ["FEATURES", "accepted_by_wasmtime", "flipped", "mutated", "padded", "smith"]

FEATURES: Final[dict[str, str]] = {
    "bulk-memory-enabled": "true", "multi-value-enabled": "true", "reference-types-enabled": "true",
    "saturating-float-to-int-enabled": "true", "sign-extension-ops-enabled": "true", "simd-enabled": "true",
    "tail-call-enabled": "true", "extended-const-enabled": "true", "max-memories": "3", "max-tables": "3",
    "exceptions-enabled": "false", "gc-enabled": "false", "memory64-enabled": "false", "threads-enabled": "false",
    "relaxed-simd-enabled": "false", "custom-page-sizes-enabled": "false", "wide-arithmetic-enabled": "false",
    "shared-everything-threads-enabled": "false", "compact-imports-enabled": "false",
    "custom-descriptors-enabled": "false", "generate-custom-sections": "true", "export-everything": "true",
    "max-instructions": "400", "min-funcs": "3", "min-memories": "1", "min-tables": "1", "min-globals": "2",
    "min-data-segments": "1", "min-element-segments": "1",
}
"""What the package reads, and nothing else."""


@cache
def smith(seed: int, **options: str) -> bytes:
    """A valid module; options as of ``wasm-tools smith``, with underscores."""
    flags = FEATURES | {name.replace("_", "-"): value for name, value in options.items()}
    for attempt in range(50):  # now and then noise does not fit what is asked for
        noise = random.Random(seed + attempt * 1_000_003).randbytes(20_000)
        made = _tool(["smith", *[f"--{name}={value}" for name, value in flags.items()]], noise)
        if made is not None:
            return made
    raise AssertionError(f"wasm-tools smith makes nothing of seed {seed}")


@cache
def mutated(wasm: bytes, seed: int) -> bytes | None:
    """Another valid module, made from one; None where the tool finds nothing to do."""
    return _tool(["mutate", "--seed", str(seed), "-"], wasm)


def _tool(command: list[str], content: bytes) -> bytes | None:
    try:
        tool = wasm_tools()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    done = subprocess.run([tool, *command], input=content, capture_output=True, check=False)
    return None if done.returncode else done.stdout


@cache
def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    for name in ("multi_memory", "tail_call", "simd", "bulk_memory", "reference_types", "multi_value", "exceptions",
                 "threads"):
        setattr(config, f"wasm_{name}", True)
    for name in ("gc", "function_references", "memory64", "relaxed_simd", "wide_arithmetic",
                 "custom_page_sizes", "component_model", "stack_switching"):
        setattr(config, f"wasm_{name}", False)
    return wasmtime.Engine(config)


def accepted_by_wasmtime(wasm: bytes) -> str:
    """An empty text if wasmtime, with the features that the package has, finds the module valid; else its reason."""
    try:
        wasmtime.Module.validate(_engine(), wasm)
    except wasmtime.WasmtimeError as error:
        return str(error)
    try:
        decode(wasm)
    except NotSupported as error:
        if error.fields.get("need") == "threads":  # its switch is that of atomic instructions
            return "a shared memory"
    except InvalidModule:
        pass
    return ""


def flipped(wasm: bytes, seed: int) -> bytes:
    """The module with one to three bytes changed, added or taken away."""
    choice = random.Random(seed)
    out = bytearray(wasm)
    for _ in range(choice.randint(1, 3)):
        at = choice.randrange(8, len(out)) if len(out) > 8 else 0
        what = choice.randrange(4)
        if what == 0:
            out[at:at] = choice.randbytes(1)
        elif what == 1:
            del out[at:at + 1]
        else:
            out[at:at + 1] = choice.randbytes(1)
    return bytes(out)


def padded(wasm: bytes) -> bytes:
    """The same module with every section's size and item count in five bytes, the longest form that is allowed."""
    out = [wasm[:8]]
    at = 8
    while at < len(wasm):
        number = wasm[at]
        size, start = read_u32(wasm, at + 1)
        content = wasm[start:start + size]
        if number not in (0, 8):  # a custom section starts with a name, the start section has one index
            count, rest = read_u32(content, 0)
            content = five(count) + content[rest:]
        out.append(bytes([number]) + five(len(content)) + content)
        at = start + size
    return b"".join(out)


def five(value: int) -> bytes:
    """A u32 in five bytes."""
    short = uleb(value)
    if len(short) == 5:
        return short
    return short[:-1] + bytes([short[-1] | 0x80]) + b"\x80" * (4 - len(short)) + b"\0"
