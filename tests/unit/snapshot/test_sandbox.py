"""A worker in its sandbox cannot do what it is there to prevent, on any runtime, and a program runs in it as ever."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from wasmckpt import Job, UserFunction, WasiConfig, runtimes
from wasmckpt.errors import StorageError, UsageError
from wasmckpt.formats import ParentRef, load
from wasmckpt.lazydata import replace
from wasmckpt.snapshot import landlock, seccomp
from wasmckpt.snapshot.job import check
from wasmckpt.snapshot.sandbox import Sandbox
from wasmckpt.wasm.values import I32, Value

from ...agent.guests import SLEEPS
from ...cli.programs import FOREVER, wat
from ...support import forbidden, tiers

_ASKS = """(module (import "test" "attempt" (func $attempt (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param i32) (result i32) (call $attempt (local.get 0))))"""
ROOT = os.geteuid() == 0
NOBODY = 65534
_NAMES = [call.__name__.strip("_") for call in forbidden.ATTEMPTS]


@pytest.fixture(autouse=True)
def _walls() -> None:
    if not landlock.interface() or not seccomp.supported():
        tiers.missing("sandbox", "this kernel has no Landlock or no filters of system calls")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the program was not given, which anybody may use."""
    for name in ("secret", "to-be-deleted"):
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(0o666)
    folder = tmp_path
    while folder != folder.parent and folder.stat().st_uid == os.geteuid() and folder.name:
        folder.chmod(0o777)
        folder = folder.parent
        if folder == Path("/tmp"):
            break
    monkeypatch.setenv(forbidden.OUTSIDE, str(tmp_path))
    monkeypatch.setenv("WASMCKPT_TEST_OWNER", str(os.getpid()))
    return tmp_path


def _let(runtime: str, function: str, sandbox: Sandbox | None, names: set[str]) -> set[str]:
    """Which of these attempts were not refused."""
    wanted = sum(1 << number for number, name in enumerate(_NAMES) if name in names)
    with Job.start(
        wat(_ASKS), runtime, invoke="run", arguments=(Value(I32, wanted),), sandbox=sandbox,
        host_functions={("test", "attempt"): UserFunction("i32 -> i32", f"tests.support.forbidden:{function}")},
    ) as job:
        found = job.wait().results[0].bits
    return {name for number, name in enumerate(_NAMES) if found >> number & 1}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", runtimes.available())
def test_what_is_forbidden(runtime: str, outside: Path) -> None:
    """To a program that has taken over its worker, and to copies of that (as those of which images are made)."""
    check(wat(_ASKS), runtime, sandbox=Sandbox(writes_cache=True), host_functions={
        ("test", "attempt"): UserFunction("i32 -> i32", "tests.support.forbidden:attempt")})  # so it is compiled
    for function in ("attempt", "attempt_in_a_copy"):
        assert _let(runtime, function, Sandbox(), set(_NAMES)) == set()
        if ROOT and runtime != "wasmedge-aot":  # which finds nothing compiled as another user
            assert _let(runtime, function, Sandbox(NOBODY, NOBODY), set(_NAMES)) == set()
    assert sorted(path.name for path in outside.iterdir()) == ["secret", "to-be-deleted"]


@pytest.mark.slow
def test_without_it_all_that_is_allowed(outside: Path) -> None:
    """So the attempts are real ones. (Some are root's alone; some systems have switched rings off.)"""
    tried = set(_NAMES) - {"change_root"} - (
        set() if ROOT else {"namespace", "root_again", "system_setting", "host_name"})
    for function in ("attempt", "attempt_in_a_copy"):
        assert _let("wasmtime", function, None, tried) | {"ring"} == tried


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="only root can give a worker to another user")
@pytest.mark.parametrize("runtime", [name for name in runtimes.available() if name != "wasmedge-aot"])
def test_another_user(runtime: str, tmp_path: Path) -> None:
    """It runs, is frozen in each way, moves and goes on; its files are that user's."""
    sandbox = Sandbox(NOBODY, NOBODY)
    with Job.start(wat(FOREVER), runtime, sandbox=sandbox) as job:
        assert _ids(job.pid) == {NOBODY}
        assert job.walls["user"] == NOBODY
        assert job.checkpoint().way != "in-place"
        job.migrate(runtime)
        assert _ids(job.pid) == {NOBODY}
        image = tmp_path / "i.wckpt"
        assert job.checkpoint(image, stop=True).way == "stop"
    with Job.restore(image, runtime, module=wat(FOREVER), sandbox=sandbox) as job:
        assert _ids(job.pid) == {NOBODY}
        while job.checkpoint().frames != 1:  # it may be at its beginning still
            time.sleep(0.01)


def _ids(pid: int) -> set[int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(lines["CapEff"], 16) == int(lines["CapPrm"], 16) == int(lines["CapBnd"], 16) == 0
    assert (lines["NoNewPrivs"].strip(), lines["Seccomp"].strip()) == ("1", "2")
    return {int(word) for name in ("Uid", "Gid") for word in lines[name].split()}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
@pytest.mark.parametrize("runtime", runtimes.available())
def test_its_images_are_the_same(runtime: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, differences, the last one: as files they are what a worker without a sandbox writes."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    images, whole = [], []
    for sandbox in (None, Sandbox()):
        with Job.start(SLEEPS, runtime, sandbox=sandbox) as job:
            job.idle()
            first = job.checkpoint(tmp_path / "1.wckpt", track=True)
            second = job.checkpoint(tmp_path / "2.wckpt", track=True, parent=ParentRef(first.sha256, 1))
            whole.append(second.parent is None)
            assert second.size == (tmp_path / "2.wckpt").stat().st_size
            last = job.checkpoint(tmp_path / "3.wckpt", stop=True)
            assert job.wait().how == "stopped"
            assert ("in-place" in (first.way, second.way)) == (way == "in-place")
            assert first.sha256 == hashlib.sha256((tmp_path / "1.wckpt").read_bytes()).digest()
        images.append([replace(load(tmp_path / f"{n}.wckpt"), host={}) for n in (1, 3)])
        assert last.size == (tmp_path / "3.wckpt").stat().st_size
    assert images[0] == images[1]
    assert whole[0] == whole[1]
    assert not (way == "fork" and whole[0])


@pytest.mark.slow
def test_an_image_that_cannot_be_written_leaves_the_program_running(tmp_path: Path) -> None:
    with Job.start(wat(FOREVER), sandbox=Sandbox()) as job:
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "absent" / "i.wckpt", tmp_path / "folder"):
            for stop in (False, True):
                with pytest.raises(StorageError):
                    job.checkpoint(path, stop=stop)
                assert job.status() == "running"
        assert job.checkpoint(stop=True).way == "stop"


_FILES = """(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 100) "name")
  (func (export "run") (param $how i32) (result i32)
    (call $open (i32.const 3) (i32.const 0) (i32.const 100) (i32.const 4) (local.get $how)
      (select (i64.const 66) (i64.const 2) (local.get $how)) (i64.const 0) (i32.const 0) (i32.const 8))))"""


@pytest.mark.slow
@pytest.mark.parametrize("user", [None, NOBODY] if ROOT else [None])
def test_its_own_folders(user: int | None, tmp_path: Path) -> None:
    """It may change those that it was given, and only look at those that were given to be looked at."""
    given = tmp_path / "given"
    given.mkdir()
    if user is not None:
        os.chown(given, user, user)
    sandbox = Sandbox(user, user)
    for read_only, how, created in ((["/d"], 1, False), ([], 1, True), ([], 0, True)):
        config = WasiConfig(preopens=[(given, "/d")], read_only=read_only)
        with Job.start(wat(_FILES), config=config, invoke="run", arguments=(Value(I32, how),), sandbox=sandbox) as job:
            assert (job.wait().results[0].bits == 0) is created
        assert (given / "name").exists() is created


def test_users_that_are_none() -> None:
    for user, group in ((0, 0), (1, None), (None, 1), (0, 1), (1, 0)):
        with pytest.raises(UsageError):
            Sandbox(user, group)
