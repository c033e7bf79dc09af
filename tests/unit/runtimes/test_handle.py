"""Foreign objects are released once, children first."""

from __future__ import annotations

import gc
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
