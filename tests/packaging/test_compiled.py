"""The rewriter compiled, as wheels carry it, does what the same sources do as Python: the same bytes, the same errors.

What is compared runs in processes of its own: this one has the sources, and a planted difference must be seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from ..support import compiled
from ..support.samples import KERNELS, SAMPLES, build, manifest
from ..support.tiers import by_tier, missing
from ..support.toolchain import Unavailable
from ..unit.wasm.generated import flipped, smith

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

_CHILD: Final = """
import hashlib, json, sys
from pathlib import Path
for name in ("mypy", "mypyc", "mypy_extensions", "librt", "setuptools"):
    sys.modules[name] = None  # a user has none of them
from wasmckpt.errors import CheckpointError
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.wasm import validate
OPTIONS = (
    Options(),
    Options(poll="global", minimal_leb=True, label_values=True, strip_names=True, canonical_nans=True),
    Options(plan="all", count=True, all_locals=True, label_vectors=True, depth_counter=True, side_modules=True,
            own_table_items=True),
)
found = {"compiled": validate.__file__.endswith(".so")}
for path in json.load(sys.stdin):
    wasm = Path(path).read_bytes()
    for n, options in enumerate(OPTIONS):
        try:
            out = instrument(wasm, options)
            packed = repr((out.sites.packed(), out.graph.suspends, out.features, out.linker.functions)).encode()
            found[f"{path} {n}"] = hashlib.sha256(out.wasm + packed).hexdigest()
        except CheckpointError as error:
            found[f"{path} {n}"] = f"{type(error).__name__} {error} {error.fields}"
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as it is and the compiled modules."""
    try:
        return compiled.tree(tmp_path_factory.mktemp("compiled"))
    except Unavailable as reason:
        missing(reason.need, reason.reason)


def outcomes(tree: Path, modules: Sequence[Path], cwd: Path) -> dict[str, Any]:
    """For each module and some options a digest of all that was made of it, or the error."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=json.dumps([str(path) for path in modules]), capture_output=True,
        text=True, check=False, cwd=cwd, env={**os.environ, "PYTHONPATH": str(tree)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("compiled") == (tree != compiled.TOP)
    return found


def both(tree: Path, modules: Sequence[Path], cwd: Path) -> dict[str, Any]:
    """What both give."""
    found = outcomes(tree, modules, cwd)
    assert found == outcomes(compiled.TOP, modules, cwd)
    assert len(found) == 3 * len(modules)
    return found


def samples() -> Iterator[Path]:
    """All samples and kernels that are built, the largest ones in soak only."""
    for folder in (SAMPLES, KERNELS):
        for name in manifest(folder):
            try:
                path = build(name, folder, only_cached=True)
            except Unavailable:
                continue
            if path.stat().st_size < by_tier(check=100_000, test=400_000, soak=1 << 30):
                yield path


def test_what_is_compiled(tree: Path, tmp_path: Path) -> None:
    """All modules of the two folders but those that setup.py leaves out."""
    names = [".".join(path.relative_to(compiled.TOP).with_suffix("").parts) for folder in ("wasm", "instrument")
             for path in sorted((compiled.TOP / "wasmckpt" / folder).rglob("*.py")) if path.name != "__init__.py"]
    code = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(tree)})
    files = [Path(line) for line in done.stdout.splitlines()]
    assert {path.stem for path in files if path.suffix != ".so"} == {"cache", "kept_resumes", "options"}
    assert len(files) > 35
    assert all(path.is_relative_to(tree) for path in files)


def test_the_wheel_is_for_this_machine() -> None:
    try:
        name = (compiled.build() / "name").read_text()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in name
    assert "linux" in name


def test_samples_are_rewritten_to_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    modules = list(samples())
    assert len(modules) > 30
    both(tree, modules, tmp_path)


def test_generated_modules_and_their_errors(tree: Path, tmp_path: Path) -> None:
    """Valid ones, and each of them damaged in many ways: errors have the same texts and the same fields."""
    modules = []
    for seed in range(by_tier(check=4, test=12, soak=60)):
        for n in range(by_tier(check=10, test=40, soak=100)):
            wasm = smith(seed) if not n else flipped(smith(seed), n)
            modules.append(tmp_path / f"{seed}-{n}.wasm")
            modules[-1].write_bytes(wasm)
    kinds = {text.split()[0] for text in both(tree, modules, tmp_path).values() if " " in text}
    assert "InvalidModule" in kinds


def test_a_difference_is_seen(tree: Path, tmp_path: Path) -> None:
    """The compiled modules beside sources of which one says something else."""
    changed = compiled.tree(tmp_path / "changed")
    options = changed / "wasmckpt" / "instrument" / "options.py"  # not compiled
    options.write_text(options.read_text().replace("unroll: int = 4", "unroll: int = 3"))
    modules = list(samples())[:10]
    assert outcomes(changed, modules, tmp_path) != outcomes(tree, modules, tmp_path)


def test_unit_tests_of_the_rewriter_pass(tree: Path, tmp_path: Path) -> None:
    """Those that `make check` has, on the compiled modules."""
    (tmp_path / "expect_compiled.py").write_text(
        "from wasmckpt.wasm import validate\nassert validate.__file__.endswith('.so')\n"
    )
    tier = by_tier(check="check", test="check", soak="test")
    env = {**os.environ, "PYTHONPATH": f"{tree}:{tmp_path}", "WASMCKPT_TIER": tier, "WASMCKPT_REQUIRE": "",
           "PYTEST_ADDOPTS": "", "PYTHONSAFEPATH": "1"}  # the sources, in the present folder, do not come first
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "expect_compiled", "-p", "no:cacheprovider",
         "-p", "no:xdist", "tests/unit/wasm", "tests/unit/instrument", "tests/golden"],
        capture_output=True, text=True, check=False, cwd=compiled.TOP, env=env,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_doctor_says_so(tree: Path, tmp_path: Path) -> None:
    for folder, says in ((tree, "yes"), (compiled.TOP, "no (pure Python)")):
        done = subprocess.run(
            [sys.executable, "-m", "wasmckpt.cli", "doctor", "--json"], capture_output=True, text=True, check=False,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(folder)},
        )
        assert json.loads(done.stdout)["system"]["compiled rewriter"] == says


def test_a_cache_entry_serves_both(tree: Path, tmp_path: Path) -> None:
    """The same sources, so the same key: what one kept the other takes, and would have written the same."""
    code = """
import sys
from pathlib import Path
from wasmckpt.instrument.cache import cached_instrument
from wasmckpt.instrument.options import Options
cached_instrument(Path(sys.argv[1]).read_bytes(), Options(side_modules=True), Path(sys.argv[2]))
"""
    module = next(samples())
    entries = []
    for folder, target in ((tree, "one"), (compiled.TOP, "two")):
        subprocess.run([sys.executable, "-c", code, module, tmp_path / target], check=True, cwd=tmp_path,
                       env={**os.environ, "PYTHONPATH": str(folder)})
        files = sorted(path for path in (tmp_path / target).rglob("*") if path.is_file())
        entries.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert entries[0] == entries[1]
    assert len(entries[0]) == 3
