"""Stores in buckets on the command line: a program goes on elsewhere from what was copied while it ran."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wasmckpt.errors import CheckpointError
from wasmckpt.formats import load
from wasmckpt.store import Series, Store
from wasmckpt.store.remote import RemoteStore

from ..support.buckets import bucket, bucket_server, spoiled
from ..support.misbehaving import Proxy, once
from ..support.versitygw import SECRET
from ..unit.store.images import MODULE, Program
from .conftest import Cli, Module, Spawn, wait_for
from .programs import FOREVER, talk, talk_output
from .test_json import check

__all__ = ["bucket", "bucket_server", "spoiled"]

pytestmark = pytest.mark.slow

LINES, TURNS = 10, 150_000_000


def _remote(url: str) -> list[int]:
    try:
        return [entry.number for entry in RemoteStore(url).entries()]
    except CheckpointError:
        return []


def test_a_machine_that_is_lost(cli: Cli, module: Module, spawn: Spawn, tmp_path: Path, bucket: str) -> None:
    """The command is killed and its folder gone: another machine goes on from the bucket, on another runtime, and its
    own checkpoints have numbers behind those."""
    store, path = tmp_path / "store", module(talk(LINES, TURNS))
    process = spawn("run", "--store", store, "--remote", bucket, "--checkpoint-every", "60ms", "--name", "j1", path)
    wait_for(lambda: len(_remote(bucket)) >= 3, "three copies")
    process.kill()
    first = process.communicate()[0]
    wait_for(lambda: _remote(bucket) == [entry.number for entry in Store(store).entries()],
             "the other copies, by what has outlived the command")
    here = _remote(bucket)
    shutil.rmtree(store)
    path.unlink()
    done = cli("restore", "--store", tmp_path / "new", "--remote", bucket, "j1", "--checkpoint-every", "200ms")
    assert done.code == 0, done.err
    whole = talk_output(LINES, TURNS)
    assert whole.startswith(first)
    assert whole.endswith(done.out.encode())
    assert len(first) + len(done.out) >= len(whole)
    new = Store(tmp_path / "new").entries("j1")
    assert min([entry.number for entry in new], default=here[-1] + 1) == here[-1] + 1
    assert _remote(bucket) == [*here, *(entry.number for entry in new)]
    assert "not copied" not in done.err
    again = cli("restore", "--runtime", "wasm3", "--store", bucket, "j1", "--number", here[0], "--checkpoint-after",
                "50ms", "--stop")
    assert again.code == 0, again.err
    assert f"in {bucket}" in again.err
    assert cli("store", "verify", bucket).code == 0


def test_looking_after_a_bucket(cli: Cli, module: Module, bucket: str) -> None:
    """Every command that takes a folder."""
    Path("x.wasm").write_bytes(MODULE)
    store = Store("s", create=True)
    program, series = Program(), Series(store, "j1", MODULE)
    for _ in range(3):
        program.take(series)
    assert "copied 3 images" in cli("store", "push", "s", bucket).err
    assert "copied 0 images" in cli("store", "push", "s", bucket, "j1").err
    there, here = (check("store-ls", cli("store", "ls", where, "--json").out) for where in (bucket, "s"))
    assert [(row["number"], row["taken"]) for row in there] == [(row["number"], row["taken"]) for row in here]
    assert check("store-verify", cli("store", "verify", bucket, "--json").out)["good"] is True
    assert "3 of j1" in cli("store", "pull", bucket, "t", "j1").err
    assert "already" in cli("store", "pull", bucket, "t", "j1").err
    assert cli("store", "compact", bucket).code == 0
    assert cli("store", "export", bucket, "j1", "-o", "out.wckpt", "--carry-module").code == 0
    assert load("out.wckpt").parent is None
    assert cli("store", "import", bucket, "out.wckpt", "--name", "j2").code == 0
    assert cli("store", "rm", bucket, "j1", "--number", "1").code == 0
    assert check("store-gc", cli("store", "gc", bucket, "--keep-last", "1", "--json").out)["images"] == 1
    assert [row["job"] for row in check("store-ls", cli("store", "ls", bucket, "--json").out)] == ["j1", "j2"]
    assert cli("store", "export", bucket, "j1", "-o", "again.wckpt").code == 0


def test_a_bucket_that_does_not_answer(
    cli: Cli, module: Module, bucket: str, spoiled: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs all the same, and what is missing is said; a restore takes the folder."""
    monkeypatch.setenv("WASMCKPT_S3_TIMEOUT", "0.5")
    spoiled.rule = once("", what="unavailable", times=10_000)
    path = module(talk(LINES, TURNS))
    done = cli("run", "--store", "s", "--remote", bucket, "--remote-wait", "1s", "--checkpoint-every", "50ms", "--name",
               "j1", path)
    assert done.code == 0, done.err
    assert done.out.encode() == talk_output(LINES, TURNS)
    there = len(Store("s").entries())
    assert f"not copied: {there} checkpoint" in done.err
    assert "503" in done.err
    done = cli("restore", "--store", "s", "--remote", bucket, "--remote-wait", "1s", "j1")
    assert done.code == 0, done.err
    spoiled.rule = lambda method, path: ""
    monkeypatch.delenv("WASMCKPT_S3_TIMEOUT")
    assert cli("store", "push", "s", bucket).code == 0
    assert len(_remote(bucket)) == there


@pytest.mark.parametrize(("words", "code", "says"), [
    ("run --remote URL program.wasm", 64, "without a store"),
    ("run --store s --remote nowhere program.wasm", 64, "s3://BUCKET/PREFIX"),
    ("run --store URL --remote URL program.wasm", 64, "in a folder"),
    ("run --store s3:// program.wasm", 64, "s3://BUCKET/PREFIX"),
    ("restore --store URL j1", 73, "no store"),
    ("store ls URL", 73, "no store"),
    ("store pull URL s j1", 73, "no store"),
    ("store push absent URL", 73, "no store"),
])
def test_what_is_refused(cli: Cli, module: Module, bucket: str, words: str, code: int, says: str) -> None:
    module(FOREVER)
    done = cli(*words.replace("URL", bucket).split())
    assert (done.code, says in done.err, SECRET in done.err) == (code, True, False), done.err
