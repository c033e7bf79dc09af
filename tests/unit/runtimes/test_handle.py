"""Foreign objects are released once, children first."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.runtimes.handle import Handle


class _Kept:
    pass


def test_children_go_first_and_everything_once() -> None:
    freed: list[str] = []
    engine = Handle("engine", "e", freed.append)
    module = Handle("module", "m", freed.append, owner=engine)
    store = Handle("store", "s", freed.append, owner=engine)
    inner = Handle("inner", "i", freed.append, owner=store)
    assert (engine.value, inner.value) == ("e", "i")
    engine.close()
    engine.close()
    inner.close()
    assert freed == ["i", "s", "m", "e"]
    assert module.closed
    with pytest.raises(UsageError, match="module is closed"):
        module.value  # noqa: B018
    with pytest.raises(UsageError, match="engine is closed"):
        Handle("late", "l", freed.append, owner=engine)
    assert freed[-1] == "l"  # not leaked


def test_a_child_keeps_its_owner_and_what_it_points_to_alive() -> None:
    freed: list[str] = []
    kept = _Kept()
    seen = weakref.ref(kept)
    owner = Handle("owner", "o", freed.append)
    child = Handle("child", "c", freed.append, owner=owner, keep=(kept,))
    del owner, kept
    gc.collect()
    assert freed == []
    assert seen() is not None
    del child
    gc.collect()
    assert freed == ["c", "o"]
    assert seen() is None


def test_kept_objects_outlive_the_release() -> None:
    kept = _Kept()
    seen = weakref.ref(kept)
    alive_at_release: list[bool] = []
    handle = Handle("h", 1, lambda _: alive_at_release.append(seen() is not None))
    handle.keep(kept)
    del kept
    handle.close()
    gc.collect()
    assert alive_at_release == [True]
    assert seen() is None


@pytest.mark.parametrize("owner_first", [True, False])
def test_children_go_first_in_a_cycle_of_garbage(owner_first: bool) -> None:
    """Python finalizes garbage in any order, and clears the weak references in it before."""
    freed: list[tuple[str, bool]] = []
    kept = _Kept()
    seen = weakref.ref(kept)
    cycle: list[object] = []
    owner = Handle("owner", "o", lambda value: freed.append((value, False)))
    child = Handle("child", "c", lambda value: freed.append((value, True)), owner=owner, keep=(kept, cycle))
    cycle += [owner, child] if owner_first else [child, owner]
    del owner, child, cycle, kept
    gc.collect()
    assert freed == [("c", True), ("o", False)]
    assert seen() is None


def test_an_owner_does_not_keep_a_child_that_nobody_has() -> None:
    freed: list[str] = []
    owner = Handle("owner", "o", freed.append)
    cycle: list[object] = []
    child = Handle("child", "c", freed.append, owner=owner, keep=(cycle,))
    cycle.append(child)
    del child, cycle
    gc.collect()
    assert freed == ["c"]
    owner.close()
    assert freed == ["c", "o"]


def test_no_message_at_the_end_of_the_interpreter() -> None:
    """A handle that lives longer than the globals of its own module."""
    program = (
        "import builtins\nfrom wasmckpt.runtimes import handle\n"
        "builtins.kept = handle.Handle('h', 1, lambda _: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
