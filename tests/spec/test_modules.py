"""Every module of the suite is read as the specification says, and written back byte for byte."""

from __future__ import annotations

from collections import Counter

import pytest

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.encode import encode
from wasmckpt.wasm.validate import validate

from ..support import spec
from ..support.tiers import missing
from ..support.toolchain import Unavailable
from .counts import VERSIONS, check_counts, load, recorded, sampled, totals


@pytest.mark.parametrize("key", sampled(check=6))
def test_valid_modules_are_accepted_and_written_unchanged(key: str) -> None:
    """Those of the exceptions that need a later proposal are refused by name, and counted."""
    counts: Counter[str] = Counter()
    for command in load(key).commands:
        if isinstance(command, spec.LoadModule | spec.AssertFailsToLoad):
            try:
                module = decode(command.wasm)
                validate(module)
            except NotSupported as error:
                assert key.startswith("proposals/exceptions/"), f"line {command.line}"
                counts[f"not supported, {error.fields['need']}"] += 1
                continue
            assert encode(module, {}) == command.wasm, f"line {command.line}"
            counts["valid"] += 1
    check_counts(key, "modules", dict(counts))


@pytest.mark.parametrize("key", sampled(check=6))
def test_invalid_modules_are_refused(key: str) -> None:
    """What multi-memory made valid is counted by its message, as is what belongs to a later proposal."""
    counts: Counter[str] = Counter()
    for command in load(key).commands:
        if not isinstance(command, spec.AssertInvalid):
            continue
        if command.wasm is None:
            counts["text"] += 1
            continue
        try:
            validate(decode(command.wasm))
        except InvalidModule:
            counts["invalid"] += 1
        except NotSupported as error:
            counts[f"not supported, {error.fields['need']}"] += 1
        else:
            counts[f"valid with multi-memory, {command.text}"] += 1
    check_counts(key, "refusals", dict(counts))


def test_only_multi_memory_makes_modules_valid_that_were_not() -> None:
    total = totals()
    assert total["refusals: valid with multi-memory, multiple memories"] == 10
    assert total["refusals: valid with multi-memory, zero byte expected"] == 8
    assert sum(n for name, n in total.items() if name.startswith("refusals: valid with")) == 18
    assert sum(n for name, n in total.items() if name.startswith("refusals: not supported")) == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_every_script_is_recorded(version: spec.Version) -> None:
    try:
        names = spec.script_names(version)
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    assert {f"{version}/{name}" for name in names} == {
        key for key in recorded() if key.rpartition("/")[0] == version}
