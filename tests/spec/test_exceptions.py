"""The suite's long script on exceptions, in which modules import from each other what they throw, made one module each.

So what is skipped elsewhere, because programs share no tags, is run: plain, instrumented, and moved.
"""

from __future__ import annotations

from functools import cache

import pytest

from ..support import spec
from ..support.interpreter.spectest import ReferenceBackend
from ..support.moving import COUNTING, EVERYWHERE
from ..support.pairs import runtimes_for
from ..support.partner import REFERENCE
from ..support.spec_programs import SYNONYMS, BareBackend, ProgramBackend
from ..support.tiers import by_tier, missing
from ..support.toolchain import Unavailable

INSTEAD = {
    '(tag $imported-e0 (import "test" "e0"))': "(tag $imported-e0)",
    '(tag $imported-e0-alias (import "test" "e0"))': "",
    "$imported-e0-alias": "$imported-e0",
}
THROWER = '(func $imported-throw (import "test" "throw"))'


@cache
def script() -> spec.Script:
    """The modules that can be read here, without those that need the GC proposal."""
    try:
        text = spec.source("proposals/exceptions", "try_table")
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    for old, new in INSTEAD.items():
        assert old in text
        text = text.replace(old, new)
    first, second = text.split(THROWER)[0], THROWER.join(text.split(THROWER)[1:])
    text = first + "(func $imported-throw (throw $imported-e0))" + second
    assert text.count(THROWER) == 1
    text = text.replace(THROWER, "(tag $other) (func $imported-throw (throw $other))")
    return spec.script_of("proposals/exceptions", "try_table, one module each", text)


def _run(backend: spec.Backend) -> spec.Report:
    report = spec.run_script(script(), backend, SYNONYMS)
    assert report.failed == []
    assert report.passed == 44
    return report


def test_the_interpreter() -> None:
    _run(ReferenceBackend())


@pytest.mark.parametrize("runtime", runtimes_for({"exceptions", "tail-call"}))
def test_instrumented(runtime: str) -> None:
    _run(ProgramBackend([runtime], COUNTING))


@pytest.mark.parametrize("runtime", runtimes_for({"exceptions"}))
def test_moved(runtime: str) -> None:
    hops = by_tier(check=2, test=5, soak=100)
    backend = ProgramBackend(["wasmtime", REFERENCE, runtime], EVERYWHERE, hops_a_call=hops)
    _run(backend)
    assert backend.hops


def test_wasmtime_without_us() -> None:
    _run(BareBackend("wasmtime"))
