"""Runtimes are loaded by name, on first use, and what is missing is said."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wasmckpt
from wasmckpt import runtimes
from wasmckpt.errors import RuntimeMissing, UsageError

_ROOT = str(Path(wasmckpt.__file__).parents[1])


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          cwd=_ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_no_runtime() -> None:
    assert _run("import sys, wasmckpt.runtimes as r; r.available()\n"
                "print(sorted({'wasmtime', 'wasm3', 'cffi', '_cffi_backend'} & set(sys.modules)))") == "[]\n"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="wasmtime, wasm3"):
        runtimes.load("v8")
    with pytest.raises(UsageError):
        runtimes.facts("v8")


TO_TYPE = "pip install|wasmckpt runtimes install"


@pytest.mark.parametrize("name", runtimes.names())
def test_a_missing_runtime_says_what_to_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_loaded", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert name not in runtimes.available()
    with pytest.raises(RuntimeMissing) as caught:
        runtimes.load(name)
    assert re.search(TO_TYPE, str(caught.value))
    facts = runtimes.facts(name)
    assert facts.version is None
    assert facts.capabilities is None
    assert re.search(TO_TYPE, facts.problem)


@pytest.mark.parametrize("name", runtimes.available())
def test_a_runtime_is_loaded_once_and_has_facts(name: str) -> None:
    assert runtimes.load(name) is runtimes.load(name)
    facts = runtimes.facts(name)
    assert facts.problem == ""
    assert facts.version
    assert facts.capabilities is runtimes.load(name).capabilities


def test_faulthandler_after_the_engine_is_refused_instead_of_a_crash() -> None:
    out = _run("""
import faulthandler
from wasmckpt import runtimes
from wasmckpt.errors import UsageError
engine = runtimes.load("wasmtime")
compiled = engine.compile(b"\\0asm\\1\\0\\0\\0")
engine.instantiate(compiled, {}).close()
faulthandler.enable()
try:
    engine.instantiate(compiled, {})
except UsageError as problem:
    print(problem.hint)
faulthandler.disable()
engine.instantiate(compiled, {}).close()
print("fine")
""")
    assert out == "enable it first, or not at all\nfine\n"


def test_another_layout_of_the_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from wasmckpt.runtimes.wasmtime import cdef

    cdef.check_layout()
    monkeypatch.setitem(cdef._SIZES, "wasmtime_val_t", 24)
    with pytest.raises(RuntimeMissing, match="wasmtime_val_t"):
        cdef.check_layout()


def test_another_layout_of_wasm3_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    if "wasm3" not in runtimes.available():
        pytest.skip("wasm3 is not installed")
    from wasmckpt.runtimes.wasm3 import layout

    good = layout.probe()
    assert good.memory_field % 8 == 0
    for name, value, words in (("GLOBAL_VALUE", 24, "globals elsewhere"), ("HEADER_BYTES", 16, "memory elsewhere"),
                               ("STACK_SLOTS", -24, "counts its stack"), ("STACK", -40, "its stack"),
                               ("USER_DATA", -16, "orders its runtime"), ("PAGES", 16, "counts pages")):
        with monkeypatch.context() as patch:
            patch.setattr(layout, name, value)
            with pytest.raises(RuntimeMissing, match=words):
                layout.probe()
    assert layout.probe() == good
