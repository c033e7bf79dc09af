"""What an image need not hold, page by page, on real programs; and what a store with many of them takes.

Whole images of programs, on wasmtime, in equal steps of each program's life, counted in safepoints: the same ones on
each machine. A page of 4 KiB counts for the first reason that holds: it is zero; as the module made it; as in the image
before; dead stack; like another page of the chain. (The samples are linked with the linker's usual stack of 64 KiB:
dead stack is counted as if they said so.)

A fleet is a module's programs with different inputs, frozen where the first one has half its life behind it (*inputs*);
or copies of one frozen program that have run on, each further than the last (*forked*). *Equal by*: single pages
wherever they lie, at the same address only, aligned pieces of 16 and 64 KiB. *Files*: the images by themselves.
*Store*: all its files."""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import zstandard

from tests.support.moving import COUNTING, World, run_program
from tests.support.samples import Sample
from wasmckpt import runtimes
from wasmckpt.errors import NotSupported
from wasmckpt.formats import Entry, Image, MemoryState, ModuleRef, Producer, apply, encode, save
from wasmckpt.instrument.linker import PREFIX
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.pages import initial_pages
from wasmckpt.snapshot.program import Program, Status, entry_for
from wasmckpt.store import Store
from wasmckpt.wasm.decode import decode as decode_module
from wasmckpt.wasm.shadow_stack import ShadowStack, prove
from wasmckpt.wasm.values import I32, Value

from ..guests import warm, wat
from ..programs import real_program
from ..report import Report, Table
from ..settings import Settings

PAGE = 4096
ZERO = bytes(PAGE)
STACK = 65536
RUNTIME = "wasmtime"
IMAGES = 6
LIVES: dict[str, tuple[object, ...]] = {
    "lua": (100_000,), "quickjs": (1500,), "wren": (27,), "sqlite": (60_000,), "primes": (500,),
    "train": (40, 1500, 32), "heap": (64, 20, 100_000), "json": (),
}
"""Arguments with which the programs live for some tenths of a second."""
FLEETS: dict[str, list[tuple[object, ...]]] = {
    "lua": [(40_000 + 4000 * n,) for n in range(6)], "quickjs": [(800 + 80 * n,) for n in range(6)],
    "sqlite": [(20_000 + 2000 * n,) for n in range(6)], "primes": [(300 + 20 * n,) for n in range(6)],
}

MARKING = """(module (import "wasmckpt" "discard" (func $discard (param i32 i32) (result i32)))
  (memory (export "memory") {pages})
  (func (export "run") (param $size i32) (param $cache i32) (result i32) (local $p i32) (local $x i64)
    (local.set $x (i64.const 0x9e3779b97f4a7c15))
    (loop $fill
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (i64.store (local.get $p) (local.get $x))
      (br_if $fill (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 8))) (local.get $size))))
    (drop (call $discard (i32.const 0) (local.get $cache)))
    (loop $wait (br $wait)) (i32.const 0)))"""


class Fresh:
    """A module's memory before anything has run."""

    def __init__(self, wasm: bytes) -> None:
        module = decode_module(wasm)
        self.pages = initial_pages(module, 0, {})
        self.stack: ShadowStack | None = None
        with suppress(NotSupported):
            stack = prove(module, low=0)
            self.stack = replace(stack, low=max(0, stack.high - STACK))

    def memory(self, image: Image) -> list[bytes]:
        """All pages of an image's first memory."""
        state = image.memories[0]
        base = bytearray(state.pages << 16)
        for page, content in self.pages.items():
            base[page * PAGE:(page + 1) * PAGE] = content
        whole = bytes(apply(state, base))
        return [whole[at:at + PAGE] for at in range(0, len(whole), PAGE)]

    def dead(self, image: Image) -> range:
        """Pages of dead stack."""
        if self.stack is None:
            return range(0)
        pointer = next(value.bits for value in image.globals if value.index == self.stack.pointer)
        end = self.stack.dead_until(pointer, {frame.point.func for frame in image.frames})
        return range(-(-self.stack.low // PAGE), end // PAGE)


def run(settings: Settings, report: Report) -> None:
    """Five tables."""
    names = ["train", "json"] if settings.quick else list(LIVES)
    pages = Table("Pages of the images of one life, in per cent of all", [
        ("program", ""), ("images", "d"), ("pages", ",d"), ("zero", ".1f"), ("as the module made it", ".1f"),
        ("as in the image before", ".1f"), ("dead stack", ".2f"), ("elsewhere in the chain", ".1f"),
        ("to be saved", ".1f"),
    ])
    report.tables.append(pages)
    for name in names:
        with report.kept(name):
            _life(settings, _sized(name, settings), pages)
    fleets = Table("Fleets of one module", [
        ("program", ""), ("fleet", ""), ("programs", "d"), ("pages to be saved", ",d"), ("equal by page, %", ".1f"),
        ("at the same address, %", ".1f"), ("by 16 KiB, %", ".1f"), ("by 64 KiB, %", ".1f"), ("files, MB", ".2f"),
        ("store, MB", ".2f"), ("one image, MB", ".2f"),
    ])
    packing = Table("Pages of these fleets, packed by zstd 3 in blocks of so many pages, in per cent of their bytes", [
        ("program", ""), ("1", ".1f"), ("1, with the module's memory as dictionary", ".1f"), ("4", ".1f"),
        ("16", ".1f"), ("64", ".1f"), ("256", ".1f"),
    ])
    report.tables += [fleets, packing]
    for name in ["json"] if settings.quick else list(FLEETS):
        for kind in ("inputs", "forked"):
            with report.kept(f"fleet of {name}, {kind}"):
                _fleet(settings, name, kind, fleets, packing)
    with report.kept("cost"):
        report.tables.append(_cost(settings))
    with report.kept("discarded memory"):
        report.tables.append(_discarded(settings))


def _sized(name: str, settings: Settings, arguments: Sequence[object] | None = None) -> Sample:
    sample = real_program(name, "tiny" if settings.quick else "default")
    given = LIVES[name] if arguments is None else arguments
    return sample if settings.quick or not given else replace(sample, args=tuple(map(str, given)))


def _images(
    sample: Sample, parts: Sequence[float], first: Image | None = None, life: int = 0, engine: Engine | None = None,
) -> list[Image]:
    """Images at these parts of a program's life. ``first``: of copies of that one, each run on so much from there;
    ``life``: in safepoints, 0: as long as it is."""
    engine, wasm = engine or runtimes.load(RUNTIME), sample.wasm
    found: list[Image] = []
    with tempfile.TemporaryDirectory() as folder:
        def world() -> World:
            return World(sample, folder=Path(tempfile.mkdtemp(dir=folder)), repeatable=True)

        life = life or _safepoints(sample, world(), engine)
        place, image, passed = world(), first, 0
        try:
            for part in parts:
                if image is None:
                    entry = entry_for(decode_module(wasm))
                    program = Program.fresh(engine, wasm, place.host(), entry, options=COUNTING)
                else:
                    program = Program.restored(engine, wasm, place.host(image.host), image, options=COUNTING)
                with closing(program):
                    program.freeze_at(max(1, int(life * part) - passed))
                    if run_program(engine, program).status is not Status.FROZEN:
                        break
                    found.append(program.capture())
                if first is None:
                    image, passed = found[-1], int(life * part)
        finally:
            place.leave()
    return found


def _safepoints(sample: Sample, world: World, engine: Engine) -> int:
    """How many a whole life passes: the counter tells, which only goes down."""
    with closing(Program.fresh(
        engine, sample.wasm, world.host(), entry_for(decode_module(sample.wasm)), options=COUNTING
    )) as program:
        run_program(engine, program)
        passed: int = (1 << 62) - program.instance.get_global(PREFIX + "count")
    world.leave()
    return passed


def _key(page: bytes) -> bytes:
    return hashlib.sha256(page).digest()


def _life(settings: Settings, sample: Sample, table: Table) -> None:
    count = settings.few(IMAGES)
    images = _images(sample, [(n + 1) / (count + 1) for n in range(count)])
    fresh = Fresh(sample.wasm)
    seen = {_key(page) for page in fresh.pages.values()}
    before: list[bytes] = []
    counts = dict.fromkeys(("zero", "module", "before", "dead", "chain", "new"), 0)
    total = 0
    for image in images:
        now = fresh.memory(image)
        dead = fresh.dead(image)
        total += len(now)
        for number, page in enumerate(now):
            if page == ZERO:
                counts["zero"] += 1
            elif fresh.pages.get(number) == page:
                counts["module"] += 1
            elif number < len(before) and before[number] == page:
                counts["before"] += 1
            elif number in dead:
                counts["dead"] += 1
            elif _key(page) in seen:
                counts["chain"] += 1
            else:
                counts["new"] += 1
                seen.add(_key(page))
        before = now
    part = {name: 100 * number / max(1, total) for name, number in counts.items()}
    table.rows.append([
        sample.name, len(images), total, part["zero"], part["module"], part["before"],
        part["dead"] if fresh.stack is not None else None, part["chain"], part["new"],
    ])
    settings.progress(table.rows[-1])


def _fleet(settings: Settings, name: str, kind: str, table: Table, packing: Table) -> None:
    inputs = [()] * 2 if settings.quick else FLEETS[name]
    sample = _sized(name, settings, inputs[0])
    engine = warm(runtimes.load(RUNTIME))
    life = _safepoints(sample, World(sample, repeatable=True), engine)
    if kind == "inputs":
        members = [_sized(name, settings, given) for given in inputs]
        images = [image for member in members for image in _images(member, [0.5], None, life, engine)]
    else:
        first = _images(sample, [0.5], None, life, engine)[0]
        images = _images(sample, [0.01 * (n + 1) for n in range(len(inputs))], first, life, engine)
    fresh = Fresh(_sized(name, settings).wasm)
    pages: dict[bytes, bytes] = {}
    places: set[tuple[int, bytes]] = set()
    pieces: dict[int, list[bytes]] = {4: [], 16: []}
    total = 0
    for image in images:
        now = fresh.memory(image)
        differ = [page != fresh.pages.get(number, ZERO) and page != ZERO for number, page in enumerate(now)]
        for number, page in enumerate(now):
            if differ[number]:
                total += 1
                key = _key(page)
                pages[key] = page
                places.add((number, key))
        for size, found in pieces.items():
            found += [_key(b"".join(now[at:at + size])) for at in range(0, len(now), size) if any(differ[at:at + size])]
    sizes = [len(encode(image)) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, create=True)
        for number, image in enumerate(images):
            store.add(f"j{number}", partial(save, image))
        kept = sum([path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()])
    table.rows.append([
        name, kind, len(images), total, _saved(len(pages), total), _saved(len(places), total),
        *(_saved(len(set(found)), len(found)) for found in pieces.values()),
        sum(sizes) / 1e6, kept / 1e6, max(sizes) / 1e6,
    ])
    settings.progress(table.rows[-1])
    if kind == "inputs":
        packing.rows.append([name, *_packed(list(pages.values()), b"".join(fresh.pages.values()))])


def _saved(different: int, total: int) -> float:
    """Per cent that need not be kept."""
    return 100 * (1 - different / max(1, total))


def _packed(pages: list[bytes], initial: bytes) -> list[float]:
    plain = zstandard.ZstdCompressor(level=3)
    dictionary = zstandard.ZstdCompressionDict(initial[:1 << 17], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    whole = max(1, len(pages) * PAGE)

    def size(packer: zstandard.ZstdCompressor, by: int) -> float:
        return 100 * sum([
            len(packer.compress(b"".join(pages[at:at + by]))) for at in range(0, len(pages), by)
        ]) / whole

    with_dictionary = zstandard.ZstdCompressor(level=3, dict_data=dictionary)
    return [size(plain, 1), size(with_dictionary, 1), *(size(plain, by) for by in (4, 16, 64, 256))]


def _cost(settings: Settings) -> Table:
    """Adding to a store, and reading back: a whole image of random pages, one that shares all of them, one that
    differs in 1 %."""
    table = Table("A store's work for one image of random pages", [
        ("MiB", "d"), ("image", ""), ("write the image, ms", ".0f"), ("add it, ms", ".0f"), ("read it back, ms", ".0f"),
        ("bytes in the store", ",d"), ("of them index", ",d"),
    ], note="Writing the image is the worker's part: packing, SHA-256 and a sync. Nobody waits for the adding but the "
            "next checkpoint.")
    for mib in ([1] if settings.quick else [64, 512]):
        count = mib << 8
        draw = random.Random(mib)
        content = draw.randbytes(count * PAGE)
        other = bytearray(content)
        for page in draw.sample(range(count), max(1, count // 100)):
            other[page * PAGE:(page + 1) * PAGE] = draw.randbytes(PAGE)
        empty = Image(ModuleRef(bytes(32), 0), Producer("", "", "", ""), Entry(("_start",), 0))
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder, create=True)
            before, indexed = _sizes(Path(folder))
            for what, memory in (("the first", content), ("the same again", content), ("1 % other", bytes(other))):
                image = replace(empty, memories=(MemoryState(0, count >> 4, ((0, memory),)),))
                marks = [time.perf_counter()]

                def write(path: Path, image: Image = image, marks: list[float] = marks) -> bytes:
                    sha256 = save(image, path)
                    marks.append(time.perf_counter())
                    return sha256

                store.add("j", write)
                marks.append(time.perf_counter())
                loaded = store.load("j")
                marks.append(time.perf_counter())
                assert loaded.memories == image.memories
                now, index = _sizes(Path(folder))
                table.rows.append([
                    mib, what, *((b - a) * 1e3 for a, b in pairwise(marks)), now - before,
                    index - indexed,
                ])
                before, indexed = now, index
                settings.progress(table.rows[-1])
    return table


def _sizes(folder: Path) -> tuple[int, int]:
    """Bytes of all files, and of the index."""
    return sum([path.stat().st_size for path in folder.rglob("*") if path.is_file()]), (
        folder / "index.sqlite").stat().st_size


def _discarded(settings: Settings) -> Table:
    mib = 1 if settings.quick else 64
    table = Table(f"A guest that has filled {mib} MiB with random bytes and marked part of it as discardable", [
        ("marked, %", "d"), ("image, bytes", ",d"), ("stop, ms", ".1f"), ("request, ms", ".0f"),
    ])
    wasm = wat(MARKING.format(pages=mib * 16))
    for part in (0, 50, 90):
        arguments = tuple(Value(I32, number) for number in (mib << 20, (mib << 20) * part // 100))
        with Job.start(wasm, RUNTIME, invoke="run", arguments=arguments) as job:
            time.sleep(0.2 if settings.quick else 3.0)
            rows = []
            for _ in range(settings.few(5)):
                began = time.perf_counter()
                taken = job.checkpoint()
                rows.append((taken.size, taken.stopped * 1e3, (time.perf_counter() - began) * 1e3))
        middle = sorted(rows, key=lambda row: row[2])[len(rows) // 2]
        table.rows.append([part, *middle])
        settings.progress(table.rows[-1])
    return table
