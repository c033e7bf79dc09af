"""Huge pages are asked for where the memory is and where it grows to, and images are what they are without."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from wasmckpt.dirty import probe
from wasmckpt.errors import JobEnded
from wasmckpt.formats import MemoryState, ParentRef
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot import program as program_module
from wasmckpt.snapshot.huge_pages import advise
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode

from ...support.tiers import by_tier
from .fork_guests import COMPILERS, assemble
from .test_incremental import SCATTERED, Series, differs, whole_images

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = pytest.mark.skipif(
    not ENABLED.exists() or "[never]" in ENABLED.read_text(), reason="the kernel gives no huge pages"
)
GROWS = """(module (memory (export "memory") 64 512)
  (func (export "run") (result i32) (memory.grow (i32.const 256))))"""


def advised(address: int) -> bool:
    """Whether huge pages were asked for, for what lies there."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(part, 16) for part in words[0].split("-"))
            here = low <= address < high
        elif here and words[0] == "VmFlags:":
            return "hg" in words
    raise AssertionError("nothing is mapped there")


def test_the_memory_and_where_it_grows_to(engine: Engine) -> None:
    wasm = assemble(GROWS)
    entry = entry_for(decode(wasm), "run")
    program = Program.fresh(engine, wasm, Host(), entry, huge_pages=True)
    base, length = program.instance.memory("memory").extent()
    assert advised(base + length // 2)
    program.run()
    base, length = program.instance.memory("memory").extent()
    assert length == 320 << 16
    program.ask_for_huge_pages()  # as before each fork: some runtimes map what has grown anew
    assert advised(base + length - 1)
    program.close()


def test_nobody_asks_unless_it_is_wanted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what we do: memory that malloc hands out again may have been asked for by its last owner."""
    asked: list[int] = []
    monkeypatch.setattr(program_module, "advise", lambda base, length, *, collapse: asked.append(base))
    wasm = assemble(GROWS)
    for wanted in (False, True):
        program = Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), "run"), huge_pages=wanted)
        program.ask_for_huge_pages()
        assert bool(asked) is wanted
        program.close()


def test_what_is_not_mapped_is_left_alone() -> None:
    assert advise(1 << 46, 1 << 20)  # nothing to be done


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_images_and_their_chains(engine: Engine, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link equals a whole image of the same moment; the result is that of an undisturbed run."""
    if not probe("uffd").works:
        pytest.skip("uffd does not work here")
    monkeypatch.setenv("WASMCKPT_DIRTY", "uffd")
    turns = 15_000 if engine.name in COMPILERS else 4_500
    want = Series(engine, turns, text=SCATTERED).result()
    draw = random.Random(engine.name + way)
    links: list[tuple[ParentRef, MemoryState]] = []
    while not links:  # it may be over before a busy machine takes the first
        series = Series(engine, turns, text=SCATTERED, huge_pages=True)
        parent: ParentRef | None = None
        with whole_images(monkeypatch) as moments, suppress(JobEnded):
            while len(links) < by_tier(check=4, test=12, soak=50):
                time.sleep(draw.random() * 0.01)
                parent = series.keep(series.take(way, parent))
                links.append((parent, moments[-1]))
        assert series.result() == want
    for link, moment in links:
        assert not differs(series, link, moment)
