"""The backends for written pages on kernels that have soft-dirty bits: the same tests, in a virtual machine."""

from __future__ import annotations

import importlib.util
import os
import random
import re
from pathlib import Path

import pytest

from ..support.pairs import SEED
from ..support.tiers import TIER, missing
from .machine import NoMachine, run

TOP = Path(__file__).parents[2]
MAIN = """
import sys, pytest
from wasmckpt.dirty import BACKENDS, probe
for name in BACKENDS:
    print("VERDICT", name, probe(name).works, probe(name).why)
sys.exit(pytest.main(["-q", "-rs", "--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "/app",
                      "/app/tests/unit/dirty/test_backends.py"]))
"""
KERNELS = {
    "linux-image-6.12-cloud-amd64": {"uffd": True, "soft-dirty": True},
    "linux-image-cloud-amd64": {"uffd": False, "soft-dirty": True},  # Debian 12's own, 6.1
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # an emulated machine, on a core that is shared
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the machine's kernel and qemu are those for x86-64"),
]


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


@pytest.mark.parametrize("kernel", KERNELS if TIER == "soak" else random.Random(SEED).sample([*KERNELS], 1))
def test_soft_dirty_bits_and_what_comes_before_them(kernel: str, tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(MAIN)
    files = {"main.py": main, "wasmckpt/dirty": TOP / "wasmckpt/dirty"}
    for path in ("wasmckpt/__init__.py", "wasmckpt/errors.py", "wasmckpt/lazydata.py", "wasmckpt/lazyload.py",
                 "wasmckpt/version.py", "tests/__init__.py", "tests/unit/__init__.py",
                 "tests/support/__init__.py", "tests/support/tiers.py"):
        files[path] = TOP / path
    for name in ("__init__.py", "area.py", "test_backends.py"):
        files[f"tests/unit/dirty/{name}"] = TOP / "tests/unit/dirty" / name
    for package in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"):
        source = _package(package)
        files[package if source.is_dir() else source.name] = source
    try:
        code, text = run(kernel, files, tmp_path)
    except NoMachine as problem:
        missing("vm", f"no virtual machine: {problem}")
    found = {name: works == "True" for name, works in re.findall(r"^VERDICT (\S+) (\S+)", text, re.MULTILINE)}
    assert code == 0, text[-4000:]
    assert found == {**KERNELS[kernel], "compare": True}
    passed = re.search(r"(\d+) passed", text)
    assert passed, text[-2000:]
    assert int(passed[1]) >= 30
