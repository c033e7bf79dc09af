"""A target that cannot hold the source's depth says so before the source is stopped; others get the stack they need."""

from __future__ import annotations

import time

import psutil
import pytest
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.errors import NotSupported
from wasmckpt.formats import Entry, Frame, Image, ModuleRef, Point, Producer, StopKind
from wasmckpt.snapshot import stack
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.stack import guest_stack
from wasmckpt.snapshot.worker_process import WorkerProcess
from wasmckpt.wasm.values import I32, Value

WASM = bytes(wat2wasm("""(module
  (func $f (param $d i32) (param $a i64) (result i64) (local $i i64)
    (if (i32.eqz (local.get $d)) (then
      (loop $l (br_if $l (i64.ne (local.tee $i (i64.add (local.get $i) (i64.const 1))) (i64.const 0))))
      (return (local.get $a))))
    (i64.add (local.get $a) (call $f (i32.sub (local.get $d) (i32.const 1)) (i64.add (local.get $a) (i64.const 1)))))
  (func (export "run") (param i32) (result i64) (call $f (local.get 0) (i64.const 7))))"""))


def _image(frames: int) -> Image:
    point = Point(0, 30, StopKind.CALL, ((1, 0x7E),), ())
    return Image(
        module=ModuleRef(b"", 0), producer=Producer("", "", "", ""), entry=Entry(("run",), 0), host={}, parent=None,
        frames=(Frame(point, bytes(8)),) * frames, globals=(), tables=(), memories=(), dropped_data=(), dropped_elem=(),
    )


@pytest.mark.parametrize("runtime", runtimes.available())
def test_the_stack_grows_with_the_frames_that_come(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = runtimes.load(runtime)
    plain = guest_stack(engine, WASM, None, 1 << 19)
    assert plain > 2 << 19
    assert guest_stack(engine, WASM, _image(400), 1 << 19) == plain
    assert guest_stack(engine, WASM, _image(100_000), 1 << 19) > 100_000 * 8 * 3
    monkeypatch.setattr(stack, "_LARGEST_THREAD", 64 << 20)
    with pytest.raises(NotSupported, match="1000000 frames"):
        guest_stack(engine, WASM, _image(1_000_000), 1 << 19)


def _ran(job: Job) -> dict[int, float]:
    """Seconds that the threads of its worker had a core."""
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process(job.pid).threads()}


@pytest.mark.slow
def test_too_deep_for_the_target_is_said_before_the_source_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = WorkerProcess.ask

    def noted(self: WorkerProcess, do: str, *args: object, **more: object) -> object:
        asked.append(do)
        return ask(self, do, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(WorkerProcess, "ask", noted)
    monkeypatch.setattr("wasmckpt.snapshot.job._TRIAL", 60.0)
    with Job.start(WASM, "wasmtime", invoke="run", arguments=(Value(I32, 400_000),), stack_bytes=64 << 20) as job:
        before, end = _ran(job), time.monotonic() + 60
        while not any(spent > before.get(thread, 0.0) + 0.3 for thread, spent in _ran(job).items()):  # down there
            assert time.monotonic() < end
            time.sleep(0.02)
        with pytest.raises(NotSupported, match=r"wasm3 cannot hold 40000\d frames"):
            job.migrate("wasm3")
        assert "fits" in asked
        assert "hold" not in asked
        assert job.status() == "running"
        assert job.migrate("wasmtime").frames == 400_002  # and leaves it there: it never ends
