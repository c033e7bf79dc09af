"""A provided runtime is installed whole or not at all, once at a time; what a recipe meets is one clear sentence."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from wasmckpt.errors import RuntimeMissing, StorageError
from wasmckpt.runtimes import provided
from wasmckpt.runtimes.apart import facts_apart
from wasmckpt.runtimes.provided import debian, tools, wamr, wasm3
from wasmckpt.runtimes.provided.installing import install, uninstall

Say = Callable[[str], None]
Recipe = Callable[[Path, Say], None]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WASMCKPT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in provided.NAMES:
        monkeypatch.setenv(f"WASMCKPT_{name.upper()}_LIBRARY", "")  # none
    return tmp_path


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    """``planned(recipe)``: what installs wamr instead of its own recipe."""

    def plan(recipe: Recipe) -> None:
        monkeypatch.setattr(provided, "recipe", lambda _: SimpleNamespace(VERSION="1", FILE="lib.so", install=recipe))

    return plan


def _whole(folder: Path, say: Say) -> None:
    say("at work")
    (folder / "lib.so").write_bytes(b"library")


def test_what_is_installed_is_found_and_not_installed_again(planned: Callable[[Recipe], None]) -> None:
    planned(_whole)
    said: list[str] = []
    path = install("wamr", said.append)
    assert said == ["at work"]
    assert path == provided.library("wamr")
    assert path.parent.name == f"wamr-1-{os.uname().machine}"
    assert install("wamr", said.append) == path
    assert said == ["at work"]
    assert uninstall("wamr")
    assert not uninstall("wamr")
    with pytest.raises(RuntimeMissing, match="runtimes install wamr"):
        provided.library("wamr")


@pytest.mark.parametrize("problem", [RuntimeMissing("no"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_a_try_that_fails_leaves_no_runtime_and_the_next_goes_on(planned: Callable[[Recipe], None],
                                                                problem: BaseException) -> None:
    def fails(folder: Path, say: Say) -> None:
        (folder / "fetched").write_text("long to fetch")
        (folder / "lib.so").write_bytes(b"half")
        raise problem

    planned(fails)
    with pytest.raises((RuntimeMissing, KeyboardInterrupt, StorageError)):
        install("wamr")
    with pytest.raises(RuntimeMissing):
        provided.library("wamr")

    def goes_on(folder: Path, say: Say) -> None:
        assert (folder / "fetched").read_text() == "long to fetch"
        _whole(folder, say)

    planned(goes_on)
    assert install("wamr").read_bytes() == b"library"


def test_a_recipe_that_makes_no_library_is_an_error(planned: Callable[[Recipe], None]) -> None:
    planned(lambda folder, say: None)
    with pytest.raises(RuntimeMissing, match=r"made no lib\.so"):
        install("wamr")


def test_a_full_disk_says_what_to_do(planned: Callable[[Recipe], None]) -> None:
    def full(folder: Path, say: Say) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "lib.so"))

    planned(full)
    with pytest.raises(StorageError, match="No space left") as caught:
        install("wamr")
    assert "WASMCKPT_CACHE" in caught.value.hint


def test_a_cache_that_is_no_folder(planned: Callable[[Recipe], None], cache: Path) -> None:
    planned(_whole)
    (cache / "runtimes").write_text("a file")
    with pytest.raises(StorageError):
        install("wamr")


_OTHER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from wasmckpt.runtimes import provided
from wasmckpt.runtimes.provided.installing import install
def recipe(folder, say):
    print("began", flush=True)
    sys.stdin.read()
    (folder / "lib.so").write_text("other")
provided.recipe = lambda _: SimpleNamespace(VERSION="1", FILE="lib.so", install=recipe)
install("wamr")
"""


def _other() -> subprocess.Popen[str]:
    """Another process that is at it, until its input ends."""
    other = subprocess.Popen([sys.executable, "-c", _OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             cwd=Path(provided.__file__).parents[2])
    assert other.stdout is not None
    assert other.stdout.readline() == "began\n"
    return other


def test_the_second_of_two_at_once_waits_and_has_nothing_to_do(planned: Callable[[Recipe], None]) -> None:
    planned(_whole)
    said: list[str] = []
    with _other() as other:
        def say(line: str) -> None:
            said.append(line)
            assert other.stdin is not None
            other.stdin.close()

        assert install("wamr", say).read_text() == "other"
        assert said == ["another process is at it: waiting"]
        assert other.wait(60) == 0


def test_a_killed_one_keeps_nobody_out(planned: Callable[[Recipe], None]) -> None:
    planned(_whole)
    with _other() as other:
        other.send_signal(signal.SIGKILL)
        other.wait(60)
    began = time.monotonic()
    assert install("wamr").read_bytes() == b"library"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("missing", ["cmake", "make", "cc", "cargo"])
def test_a_missing_tool_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    true = shutil.which("true")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == missing else true)
    with pytest.raises(RuntimeMissing, match=f"there is no {missing} here") as caught:
        install("wamr")
    assert "install" in caught.value.hint
    assert caught.value.fields["runtime"] == "wamr"


def test_no_network_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARGO_HOME", str(tmp_path / "cargo"))
    monkeypatch.setenv("CARGO_NET_OFFLINE", "true")
    with pytest.raises(RuntimeMissing) as caught:
        wamr.install(tmp_path, lambda _: None)
    assert "\n" not in str(caught.value)
    assert "cargo" in str(caught.value)


def test_no_keys_of_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "_KEYRING", tmp_path / "none")
    with pytest.raises(RuntimeMissing, match="keys"):
        debian.unpack(["libsimde-dev"], tmp_path, of="wamr")


def test_a_program_that_fails_says_its_own_words() -> None:
    script = "echo noise; echo 'error: the reason'; echo more; exit 3"
    with pytest.raises(RuntimeMissing, match="sh failed: error: the reason"):
        tools.run(["sh", "-c", script], of="wamr", complaint="error")
    with pytest.raises(RuntimeMissing, match="sh failed: more"):
        tools.run(["sh", "-c", script], of="wamr")
    with pytest.raises(RuntimeMissing, match="does not start"):
        tools.run(["/nonexistent/tool"], of="wamr")
    assert tools.run(["sh", "-c", "echo a; echo b >&2"], of="wamr") == ["a", "b"]


def test_wasm3_is_compiled_by_pip_and_spared_what_newer_compilers_refuse(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    """With a pip that writes down what it is given; the real one is in the packaging tests."""
    called = tmp_path / "called"
    (tmp_path / "pip.py").write_text(
        f"import os, sys; open({str(called)!r}, 'a').write(repr((sys.argv[1:], os.environ.get('CFLAGS'))) + chr(10))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CFLAGS", "-O1")
    wasm3.install(lambda _: None)
    (line,) = called.read_text().splitlines()
    arguments, flags = ast.literal_eval(line)
    assert arguments[1] == "install"
    assert sorted(word.partition(">")[0].partition("<")[0] for word in arguments[2:]) == ["cffi", "pywasm3"]
    assert flags == "-O1 -Wno-incompatible-pointer-types"
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeMissing, match="there is no no-such-compiler here"):
        wasm3.install(lambda _: None)


def test_pip_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text("import sys; print('noise'); print('ERROR: no network'); sys.exit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeMissing, match=r"wasm3 cannot be installed: .* failed: ERROR: no network"):
        wasm3.install(lambda _: None)
    with pytest.raises(RuntimeMissing, match="ERROR: no network"):
        wasm3.uninstall()


def test_an_interruption_ends_the_program_too() -> None:
    started = time.monotonic()

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tools.run(["sh", "-c", "echo a; sleep 60 & wait"], of="wamr", progress=stop)
    assert time.monotonic() - started < 40


_NOT_ONE = b"\x7fELF and nothing more"


def test_a_library_of_the_users_own_goes_first_and_is_looked_at(planned: Callable[[Recipe], None], cache: Path,
                                                               ) -> None:
    planned(_whole)
    install("wamr")
    own = cache / "own.so"
    own.write_bytes(_NOT_ONE)
    config = cache / "config" / "wasmckpt" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[wamr]\nlibrary = "{own}"\n')
    assert provided.library("wamr") == own
    (fact,) = facts_apart(["wamr"])
    assert fact.version is None
    assert "this build of WAMR cannot be used" in fact.problem
    provided.use("wamr", str(cache / "absent.so"))  # goes before the config file
    (fact,) = facts_apart(["wamr"])
    assert "is not there" in fact.problem


def test_a_runtime_that_crashes_takes_nothing_else_down(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A library of the right name that kills the process that loads it."""
    source = cache / "crash.c"
    source.write_text("__attribute__((constructor)) static void crash(void) { __builtin_trap(); }\n")
    subprocess.run(["cc", "-shared", "-o", cache / "crash.so", source], check=True)
    monkeypatch.setenv("WASMCKPT_WAMR_LIBRARY", str(cache / "crash.so"))
    wamr_fact, wasmtime_fact = facts_apart(["wamr", "wasmtime"])
    assert "breaks when it is loaded (signal " in wamr_fact.problem
    assert wasmtime_fact.version


@pytest.mark.slow
def test_wamr_is_built_from_nothing() -> None:
    said: list[str] = []
    path = install("wamr", said.append)
    assert path.is_file()
    assert sorted(item.name for item in path.parent.iterdir()) == ["LICENSE", "libiwasm.so"]
    assert said[0].startswith("fetching")
    (fact,) = facts_apart(["wamr"])
    assert (fact.version, fact.problem) == (wamr.VERSION, "")
    assert fact.capabilities is not None
    assert {"simd", "tail-calls", "atomics", "reference-types", "extended-const"} <= fact.capabilities.features


@pytest.mark.soak
def test_builds_of_wamr_with_other_options(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """What is not built in is not claimed; a build that cannot be used says why."""
    options = wamr._OPTIONS | {"WAMR_BUILD_TAIL_CALL": "0", "WAMR_BUILD_SHARED_MEMORY": "0",
                               "WAMR_BUILD_THREAD_MGR": "0", "WAMR_BUILD_DUMP_CALL_STACK": "0"}
    monkeypatch.setattr(wamr, "_OPTIONS", options)
    monkeypatch.setattr(wamr, "_simd", lambda *_: wamr._NO_SIMD)
    install("wamr")
    (fact,) = facts_apart(["wamr"])
    assert fact.capabilities is not None
    assert fact.capabilities.features.isdisjoint({"simd", "tail-calls", "atomics"})
    assert not fact.capabilities.traps_name_function
    uninstall("wamr")
    monkeypatch.setattr(wamr, "_OPTIONS", options | {"WAMR_DISABLE_HW_BOUND_CHECK": "0"})
    install("wamr")
    (fact,) = facts_apart(["wamr"])
    assert "hardware bound check" in fact.problem
