"""Bugs planted into the journal are seen: by the program's output, or by the journal itself.

The program runs in a worker, a Python of its own: what is planted is imported there by way of ``sitecustomize``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.errors import CheckpointError, WorkerDied

from ..journal.harness import Story
from ..support.pairs import BASE
from ..support.tiers import every_nth

BUGS = {
    "none": ("sent", 20, ""),
    "a call is not written down": ("sent", 20, """
        add = Journal._add
        def planted(self, item, seen=[0]):
            seen[0] += 1
            if seen[0] == 30:
                self.calls += 1
                self._buffered += 1
            else:
                add(self, item)
        Journal._add = planted
    """),
    "nobody asks whether the last output had gone": ("sent", 20, """
        Journal._settle = lambda self, items, frame: None
    """),
    "output that came before comes again": ("sent", 20, """
        answer = Journal._answer
        def planted(self, number, check, memory):
            first = self._queue[0]
            if first[0] == -1 and first[3] == "out":
                os.write(1, first[8])
            return answer(self, number, check, memory)
        Journal._answer = planted
    """),
    "the last output is taken to have gone": ("sending", 20, """
        recorder.INTENT = -1
        settle = Journal._settle
        def planted(self, items, frame):
            intent = items[-1]
            return recorder.output_sent(intent, len(intent[8])) if intent[3] == "out" else settle(self, items, frame)
        Journal._settle = planted
    """),
    "input that had been taken is forgotten": ("taken", 2, """
        settle = Journal._settle
        Journal._settle = lambda self, items, frame: None if items[-1][3] == "in" else settle(self, items, frame)
    """),
    "results come after what came of them": ("sent", 20, """
        write = Journal._write
        def planted(self, more=(), moment=None, *, effect=True, always=False):
            kept, self._buffer = self._buffer, []
            counted, self._buffered = self._buffered, 0
            if moment is None:
                self._buffer, self._buffered = kept, counted
                return write(self, more, moment, effect=effect, always=always)
            write(self, more, moment, effect=effect, always=always)
            self._buffer, self._buffered = kept, counted
        Journal._write = planted
        recorder.JournalFile.frame_end = lambda self, moment, items, end=recorder.JournalFile.frame_end: (
            end(self, moment, items[-1:]))
    """),
    "a file's call is simply made again": ("done", 12, """
        recorder.settle = lambda name, before, table, memory, args, call: call(memory, *args)
    """),
    "the clock begins anew": ("sent", 8, """
        from wasmckpt.host.clocks import GuestClocks
        GuestClocks.resume = lambda self, readings, *, suspended_time_counts: (
            setattr(self, "_offset", -self._host_monotonic()))
    """),
}


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> bool:
    """Whether something is wrong in the end."""
    step, number, text = BUGS[name]
    lines = [line[8:] for line in text.splitlines()]
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(
        "import os\nfrom wasmckpt.host.journal import recorder\nfrom wasmckpt.host.journal.recorder import Journal\n"
        + "\n".join(lines) + "\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(
        [str(tmp_path / "planted"), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("WASMCKPT_FAULT", f"journal.{step}:kill:{number}")
    story = Story(tmp_path, 0, turns=14)
    try:
        try:
            story.finish(story.start(BASE[0]))
            raise AssertionError("it was not killed")
        except WorkerDied:
            story.drain()
        monkeypatch.delenv("WASMCKPT_FAULT")
        story.check(story.finish(story.restore(BASE[1])))
    except AssertionError as wrong:
        return "was not killed" not in str(wrong)
    except CheckpointError:
        return True
    finally:
        story.close()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", *every_nth([name for name in BUGS if name != "none"], check=9, test=2)])
def test_planted_bugs_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert told(tmp_path, monkeypatch, name) == (name != "none")
