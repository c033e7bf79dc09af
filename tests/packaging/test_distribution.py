"""What is shipped: sdist and wheel are built and looked into, the wheel is used in an empty venv away from the sources.

It is the only test that sees a package missing from the wheel: in the repository the two links always work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.runtimes.provided import wheels

from ..support.tiers import missing

TOP: Final = Path(__file__).resolve().parents[2]
SHIPPED: Final = (
    "pyproject.toml", "setup.py", ".ci", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md",
    "Makefile",
    "wasmckpt", "runtimes", "formats", "tests", "sample_modules", "benchmarks", "docs",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Output of a command that must succeed, run away from the sources."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False, timeout=500,
                          env={**os.environ, **variables})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was made from that sdist; the tree itself stays as it was."""
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    tree.mkdir()
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "target", ".*_cache")
    for name in SHIPPED:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, tree / name, symlinks=True, ignore=junk)
        else:
            shutil.copyfile(TOP / name, tree / name)
    run(sys.executable, "-m", "build", "--outdir", folder, tree, cwd=folder, WASMCKPT_COMPILE="never")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("wasmckpt-*.whl")
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty venv with the wheel and nothing but its own dependencies in it."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    run(folder / "bin" / "wasmckpt", "runtimes", "install", "wasm3", cwd=folder)
    return folder


def test_the_wheel_is_pure_where_nothing_can_be_compiled(wheel: Path, built: Path, tmp_path: Path) -> None:
    """Without a compiler, with nothing said of it; the same file as where compiling is forbidden."""
    assert wheel.name.endswith("-py3-none-any.whl")
    said = run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, built / "tree", cwd=tmp_path,
               CC="/no/such/compiler", WASMCKPT_COMPILE="auto")
    (found,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(found).namelist() == zipfile.ZipFile(wheel).namelist()
    assert found.name == wheel.name
    assert not any(word in said for word in ("mypy", "compiler", "Traceback", "failed"))


@pytest.mark.parametrize(("asked", "says"), [("always", "mypyc"), ("perhaps", "choose one of auto, always, never")])
def test_a_wheel_that_cannot_be_as_asked_for_is_not_built(asked: str, says: str, built: Path, tmp_path: Path) -> None:
    """In this environment, which has no compiler."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, '.ci'); sys.modules['mypyc'] = None\n"
         "import backend; backend.build_wheel(sys.argv[1], {'compile': sys.argv[2]})", tmp_path, asked],
        cwd=built / "tree", capture_output=True, text=True, check=False, timeout=500,
    )
    assert done.returncode
    assert says in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_a_failing_compiler_leaves_a_pure_wheel(built: Path, tmp_path: Path) -> None:
    """Where it is not asked for by name."""
    code = ("import sys; sys.path.insert(0, '.ci'); import backend\n"
            "from setuptools import build_meta\n"
            "real = build_meta.build_wheel\n"
            "def build(*given):\n"
            "    import os\n"
            "    if backend.ASKED in os.environ: raise RuntimeError('no space left')\n"
            "    print('pure', given[1]); return 'x.whl'\n"
            "build_meta.build_wheel = build; backend._has_compiler = lambda: True\n"
            "print(backend.build_wheel('.', {'compile': 'auto'}))")
    said = run(sys.executable, "-c", code, cwd=built / "tree")
    assert said.splitlines()[-2:] == ["pure {}", "x.whl"]
    assert "no space left" in said


def own_modules() -> set[str]:
    """Every Python file that must be in the wheel, by its path there."""
    return {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in (("wasmckpt", TOP / "wasmckpt"), ("wasmckpt/runtimes", TOP / "runtimes"),
                                ("wasmckpt/formats", TOP / "formats"))
        for path in folder.rglob("*.py")
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Both linked packages and the type marker are in it; no tests, samples or top-level formats and runtimes."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"wasmckpt"}
    assert own_modules() <= set(names)
    assert {"wasmckpt/py.typed", "wasmckpt/host/wasmckpt.h", "wasmckpt/formats/__init__.py",
            "wasmckpt/runtimes/__init__.py"} <= set(names)
    shim = TOP / "runtimes/provided/wasmer_shim"
    sources = {f"wasmckpt/{path.relative_to(TOP)}" for path in shim.rglob("*") if path.is_file()}
    assert sources == {name for name in names if "/wasmer_shim/" in name}
    assert not [name for name in names if name.endswith((".pyc", ".c", ".wat", ".wasm"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_is_enough_to_test_with(built: Path) -> None:
    """It has the tests, the samples and the licence beside the sources."""
    (sdist,) = built.glob("wasmckpt-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py", "tests/support/samples.py",
            "sample_modules/manifest.toml", "sample_modules/nbody.c", "sample_modules/common.h"} <= names
    assert own_modules() <= names
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_wheel_works_away_from_the_sources(venv: Path, tmp_path: Path) -> None:
    """Imports all come from the venv, in a folder from which the sources cannot be seen."""
    python = venv / "bin" / "python"
    code = ("import wasmckpt, wasmckpt.formats, wasmckpt.runtimes, wasmckpt.wasm\n"
            "print(wasmckpt.__file__, wasmckpt.formats.__file__, wasmckpt.runtimes.__file__, sep='\\n')")
    places = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert all(Path(place).is_relative_to(venv) for place in places)


def test_the_installed_command_says_its_version(venv: Path, tmp_path: Path) -> None:
    """The script in bin/ finds its module and everything that imports."""
    assert "0.1.0" in run(venv / "bin" / "wasmckpt", "--version", cwd=tmp_path)


def test_the_installed_command_moves_a_program(venv: Path, tmp_path: Path) -> None:
    """Frozen on wasmtime, finished on Wasm3."""
    command = venv / "bin" / "wasmckpt"
    (tmp_path / "sum.wasm").write_bytes(wat2wasm("""(module (func (export "run") (param $n i32) (result i32)
        (local $s i32) (loop $l (local.set $s (i32.add (local.get $s) (local.get $n)))
        (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))) (local.get $s)))"""))
    run(command, "run", "--invoke", "run", "--checkpoint-at", "500", "--stop", "-o", "i.wckpt", "sum.wasm", "100000",
        cwd=tmp_path)
    assert run(command, "restore", "--runtime", "wasm3", "--module", "sum.wasm", "i.wckpt", cwd=tmp_path).split() == [
        str(100_000 * 100_001 // 2 - (1 << 32))]


@pytest.mark.parametrize("name", ["wamr", "wasmer"])
def test_a_runtimes_own_package_is_all_that_a_user_needs(name: str, venv: Path, tmp_path: Path) -> None:
    """Made from the library that is installed here; nothing but the package is there for the program that uses it."""
    if name not in runtimes.available():
        missing(name, f"wasmckpt runtimes install {name}")
    run(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", wheels.build(name, tmp_path),
        cwd=tmp_path)
    (tmp_path / "seven.wasm").write_bytes(wat2wasm('(module (func (export "seven") (result i32) (i32.const 7)))'))
    command = ("env", "-u", f"WASMCKPT_{name.upper()}_LIBRARY", f"WASMCKPT_CACHE={tmp_path / 'none'}",
               venv / "bin" / "wasmckpt", "run", "--runtime", name, "--invoke", "seven", "seven.wasm")
    assert run(*command, cwd=tmp_path).split() == ["7"]
    run(venv / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", f"wasmckpt-{name}", cwd=tmp_path)
    gone = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert f"wasmckpt runtimes install {name}" in gone.stderr


def test_types_reach_the_user(venv: Path, tmp_path: Path) -> None:
    """A type checker sees our annotations through the installed wheel, and an error against them."""
    def check(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "user.py").write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"),
             "--python-executable", str(venv / "bin" / "python"), "user.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )

    good = "from wasmckpt.wasm.values import I32, Value\nvalue: Value = Value(I32, 5)\nbits: int = value.bits\n"
    assert check(good).returncode == 0, check(good).stdout
    wrong = check(good.replace("bits: int", "bits: str"))
    assert wrong.returncode == 1
    assert "Incompatible types in assignment" in wrong.stdout
