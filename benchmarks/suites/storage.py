"""What encryption, signatures and a bucket cost, beside plain files: an image of 64 MiB of random bytes. And what
levels and threads of zstd make of an image of a real program."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

from tests.support.toolchain import Unavailable
from tests.support.versitygw import BUCKET, server
from wasmckpt.formats import Entry, Image, MemoryState, ModuleRef, Producer, keys, load, save
from wasmckpt.formats.codec import read_linked
from wasmckpt.formats.files import opened
from wasmckpt.formats.sealing import Sealing
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.job import Job
from wasmckpt.store import Store
from wasmckpt.store.levels import pull, push
from wasmckpt.store.objects import Objects
from wasmckpt.store.remote import RemoteStore

from ..programs import real_program
from ..report import Report, Table
from ..settings import Settings

_MODULE = b"\0asm\1\0\0\0"


def run(settings: Settings, report: Report) -> None:
    """Best of several rounds, in which the ways take turns."""
    size = (1 << 20) if settings.quick else (64 << 20)
    pages = size >> 16
    image = Image(
        ModuleRef(hashlib.sha256(_MODULE).digest(), len(_MODULE)), Producer("benchmark", "none", "0", "none"),
        Entry(("_start",), 0), memories=(MemoryState(0, pages, ((0, os.urandom(size)),)),),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with report.kept("sealing"):
            _sealing(settings, report, image, folder, size)
        with report.kept("compression"):
            _compression(settings, report, folder)
        with report.kept("bucket"):
            _bucket(settings, report, image, folder, size)


def _best(settings: Settings, ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(settings.few(7)):
        for name, act in ways.items():
            since = time.perf_counter()
            act()
            best[name] = min(best[name], time.perf_counter() - since)
    return best


def _sealing(settings: Settings, report: Report, image: Image, folder: Path, size: int) -> None:
    aes, sign = folder / "aes.key", folder / "sign.key"
    keys.write_keys(aes, [keys.generate(keys.ENCRYPTION)])
    keys.write_keys(sign, [keys.generate(keys.SIGNING)])
    kinds = {"plain": Sealing(), "signed": Sealing(sign_with=str(sign)), "encrypted": Sealing(str(aes)),
             "both": Sealing(str(aes), (), str(sign))}

    def read(path: Path, sealing: Sealing) -> None:
        with opened(path, sealing=sealing) as file:
            read_linked(file)

    written = _best(settings, {
        name: lambda name=name, how=how: save(image, folder / name, sealing=how)  # type: ignore[misc]
        for name, how in kinds.items()
    })
    taken = _best(settings, {
        name: lambda name=name, how=how: read(folder / name, how) for name, how in kinds.items()  # type: ignore[misc]
    })
    table = Table(f"An image of {size >> 20} MiB of random bytes", [
        ("", ""), ("written, ms", ".0f"), ("MB/s", ".0f"), ("/ plain", ".2f"), ("read and checked, ms", ".0f"),
        ("MB/s", ".0f"), ("/ plain", ".2f"), ("bytes more", "d"),
    ], note="Written: with the digest of the image, fsync and rename, as a checkpoint is.")
    for name in kinds:
        table.rows.append([
            name, written[name] * 1e3, size / written[name] / 1e6, written[name] / written["plain"], taken[name] * 1e3,
            size / taken[name] / 1e6, taken[name] / taken["plain"],
            (folder / name).stat().st_size - (folder / "plain").stat().st_size,
        ])
        settings.progress(table.rows[-1])
    report.tables.append(table)


def _compression(settings: Settings, report: Report, folder: Path) -> None:
    """Lua as it sorts two million numbers."""
    lua = replace(real_program("lua", "large"), args=("2000000",))
    with open(os.devnull, "r+b") as nowhere:
        config = WasiConfig(args=lua.argv, stdin=nowhere.fileno(), stdout=nowhere.fileno(), stderr=nowhere.fileno())
        with Job.start(lua.wasm, "wasmtime", config=config) as job:
            time.sleep(0.3 if settings.quick else 2.0)
            job.checkpoint(folder / "lua")
    image = load(folder / "lua")
    size = sum(len(raw) for memory in image.memories for _, raw in memory.data)
    ways = [(level, threads) for threads in (1, 2) for level in ((1, 3) if settings.quick else (1, 3, 6, 9, 15))]

    def write(level: int, threads: int) -> None:
        with mock.patch.dict(os.environ, WASMCKPT_ZSTD_LEVEL=str(level), WASMCKPT_ZSTD_THREADS=str(threads)):
            save(image, folder / f"{level}.{threads}")

    times = _best(settings, {f"{level}.{threads}": functools.partial(write, level, threads) for level, threads in ways})
    table = Table(f"Lua's image, {size:,} bytes of pages, written at levels of zstd", [
        ("level", "d"), ("threads", "d"), ("ms", ".0f"), ("MB/s", ".0f"), ("bytes", ",d"), ("/ level 3", ".2f"),
    ])
    usual = (folder / "3.1").stat().st_size
    for level, threads in ways:
        seconds, written = times[f"{level}.{threads}"], (folder / f"{level}.{threads}").stat().st_size
        table.rows.append([level, threads, seconds * 1e3, size / seconds / 1e6, written, written / usual])
        settings.progress(table.rows[-1])
    report.tables.append(table)


def _bucket(settings: Settings, report: Report, image: Image, folder: Path, size: int) -> None:
    try:
        here = server()
    except Unavailable as reason:
        raise RuntimeError(reason.reason) from reason
    with mock.patch.dict(os.environ, here.environment()):
        url = f"s3://{BUCKET}/{os.urandom(6).hex()}"
        store, remote = Store(folder / "store", create=True), RemoteStore(url, create=True)
        entry = store.add("j", lambda path: save(image, path))
        file = store.path / "images" / f"{entry.sha256.hex()}.wckpt"
        objects, copy = Objects(url), folder / "copy"
        digest = hashlib.sha256(file.read_bytes()).digest()

        def upload() -> None:
            with file.open("rb") as source:
                objects.upload("x/large", source)

        def download() -> None:
            copy.unlink(missing_ok=True)
            objects.download("x/large", copy, file.stat().st_size, digest)

        def pushed() -> None:
            remote.remove("j")
            push(store, remote, entry)

        def pulled() -> None:
            shutil.rmtree(folder / "other", ignore_errors=True)
            pull(remote, Store(folder / "other", create=True), "j")

        def floor() -> None:
            with file.open("rb") as source, (folder / "floor").open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())

        times = _best(settings, {"a copy of the file, synced": floor, "upload": upload, "download, digest checked":
                                 download, "push: records looked at, digest, upload, record": pushed,
                                 "pull into a new folder": pulled})
    table = Table(f"The same image and a bucket of versitygw {here.version}, on the same machine", [
        ("", ""), ("ms", ".0f"), ("MB/s", ".0f"), ("/ copy", ".2f"),
    ])
    for name, seconds in times.items():
        table.rows.append([name, seconds * 1e3, size / seconds / 1e6, seconds / times["a copy of the file, synced"]])
        settings.progress(table.rows[-1])
    report.tables.append(table)
