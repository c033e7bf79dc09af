"""The installed commands on arm64: what the kernel lacks there (here: what qemu's emulation lacks) is found by probes,
said, and done otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from wasmckpt import Job
from wasmckpt.formats import load

from ..cli.programs import COUNT, wat
from ..matrix.check import run_plain
from ..support.arm64 import NAMES, Arm64

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # emulated, on a core that is shared


def command(arm64: Arm64, *words: object) -> CompletedProcess[str]:
    return arm64.run("-m", "wasmckpt.cli", *map(str, words))


def test_doctor_says_what_is_there(arm64: Arm64) -> None:
    """All runtimes; how written pages are found; that copies cannot be looked at."""
    done = command(arm64, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    there = {row["name"]: row for row in told["runtimes"]}
    assert all(there[name]["version"] for name in NAMES)
    assert "x86-64 only" in there["wasmedge-aot"]["problem"]
    system = told["system"]
    assert system["kernel"].endswith("aarch64")
    assert system["fork for snapshots"].startswith("no ("), "qemu has no ptrace"
    assert system["written pages"] == "yes, by compare"
    assert "not implemented" in system["written pages by uffd"]


@pytest.mark.parametrize("runtime", ["wasmtime", pytest.param("wasm3", marks=pytest.mark.soak)])
def test_run_with_a_checkpoint_every_so_often(runtime: str, arm64: Arm64, tmp_path: Path) -> None:
    """A snapshot by fork is tried, refused, and taken in place instead; the program goes on, and comes to the same end.
    Its newest image goes on here."""
    turns = 300_000_000 if runtime == "wasmtime" else 20_000_000
    path = tmp_path / "m.wasm"
    path.write_bytes(wat(COUNT))
    image = tmp_path / "i.wckpt"
    done = command(arm64, "run", "--runtime", runtime, "--checkpoint-every", "200ms", "-o", image, "--json",
                   "--invoke", "run", path, "--", turns)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["checkpoints"] >= 1
    (expected,) = run_plain(wat(COUNT), "run", [turns]).results
    assert str(expected - (1 << 32 if expected >> 31 else 0)) in str(told["results"])
    assert load(image).producer.machine == "aarch64"
    with Job.restore(image, "wasmtime" if runtime == "wasm3" else "wasm3", module=wat(COUNT)) as again:
        assert again.wait().results[0].bits == expected
