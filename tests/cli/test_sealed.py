"""Encrypted and signed images on the command line: made, looked at, gone on from, refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from wasmckpt.errors import StorageError
from wasmckpt.formats.files import seal_of
from wasmckpt.formats.sealing import Sealing
from wasmckpt.store import Store

from .conftest import Cli, Module, Spawn, wait_for
from .programs import FOREVER, talk, talk_output
from .test_json import check

pytestmark = pytest.mark.slow

LINES, TURNS, HALF = 20, 20_000, 7_000


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ENCRYPT_WITH", "DECRYPT_WITH", "SIGN_WITH", "REQUIRE_SIGNED_BY", "CONFIG"):
        monkeypatch.delenv(f"WASMCKPT_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def made(cli: Cli, module: Module) -> Path:
    """Keys a.key, b.key, a.sign, b.sign, a program, and i.wckpt, half of its run, encrypted and signed."""
    for name in ("a.key", "b.key", "a.sign", "b.sign"):
        assert cli("key", "generate", "-o", name, *(["--signing"] if name.endswith("sign") else [])).code == 0
    path = module(talk(LINES, TURNS))
    done = cli("run", "--checkpoint-at", HALF, "--stop", "-o", "i.wckpt", "--encrypt-with", "a.key", "--sign-with",
               "a.sign", path)
    assert done.code == 0, done.err
    return path


def test_keys(cli: Cli) -> None:
    """Files that only the owner can read, never written over; what is printed has no secret in it."""
    made = check("key-generate", cli("key", "generate", "-o", "k", "--json").out)
    assert (made["kind"], made["public"]) == ("aes256", None)
    signing = check("key-generate", cli("key", "generate", "--signing", "-o", "s", "--json").out)
    assert Path("s.pub").read_text() == signing["public"] + "\n"
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in ("k", "s")] == [0o600, 0o600]
    for words in (("key", "generate", "-o", "k"), ("key", "generate", "--signing", "-o", "s")):
        done = cli(*words)
        assert done.code == 73
        assert "never written over" in done.err
    shown = cli("key", "generate", "-o", "k2").out + cli("key", "generate", "--signing", "-o", "s2").out
    assert all(Path(name).read_text().split(":")[1].strip() not in shown for name in ("k2", "s2"))


def test_a_sealed_image_goes_on_elsewhere(cli: Cli, made: Path) -> None:
    """On another runtime, with the key and a signature that is asked for; what it writes is as the options say."""
    assert b"lines" not in Path("i.wckpt").read_bytes()
    done = cli("restore", "i.wckpt", "--module", made, "--key", "a.key", "--require-signed-by", "a.sign.pub",
               "--runtime", "wasm3")
    assert done.code == 0, done.err
    assert talk_output(LINES, TURNS).endswith(done.out.encode())
    public = Path("a.sign.pub").read_text().strip()
    done = cli("restore", "i.wckpt", "--module", made, "--encrypt-with", "a.key", "--sign-with", "b.sign",
               "--require-signed-by", public, "--checkpoint-at", 1000, "--stop", "-o", "j.wckpt")
    assert done.code == 0, done.err
    seal = seal_of("j.wckpt", sealing=Sealing(decrypt_with=("a.key",)))
    assert seal.signer is not None
    assert seal.signer.text == Path("b.sign.pub").read_text().strip()
    assert not any(name.startswith(("WASMCKPT_ENCRYPT", "WASMCKPT_DECRYPT", "WASMCKPT_SIGN", "WASMCKPT_REQUIRE_SIGNED"))
                   for name in os.environ), "an option is of its command"


def test_looking_at_one(cli: Cli, made: Path) -> None:
    """`inspect`, `diff` and `verify` say who signed it, with the key; without, that it is encrypted."""
    public = Path("a.sign.pub").read_text().strip()
    data = check("inspect", cli("inspect", "i.wckpt", "--key", "a.key", "--json").out)
    assert (data["signed_by"], len(data["encrypted_with"])) == (public, 1)
    assert f"signed     by {public}" in cli("inspect", "i.wckpt", "--key", "a.key", "--pages").out
    data = check("verify", cli("verify", "i.wckpt", "--module", made, "--key", "a.key", "--json").out)
    assert data["signed_by"] == public
    assert f"encrypted, signed by {public}" in cli("verify", "i.wckpt", "--key", "a.key").out
    assert cli("diff", "i.wckpt", "i.wckpt", "--key", "a.key").code == 0
    for words in ("inspect i.wckpt", "verify i.wckpt", "diff i.wckpt i.wckpt", f"restore i.wckpt --module {made}"):
        done = cli(*words.split())
        assert (done.code, "encrypted, and there is no key" in done.err) == (65, True), done.err
        assert "--key" in done.err
        done = cli(*words.split(), "--key", "b.key")
        assert (done.code, "another key" in done.err) == (65, True), done.err


@pytest.mark.parametrize(("written", "why"), [
    ((), "not signed"), (("--encrypt-with", "a.key"), "not signed"), (("--sign-with", "b.sign"), "not trusted"),
])
def test_what_a_policy_refuses(cli: Cli, made: Path, written: tuple[str, ...], why: str) -> None:
    """The same state without the signature, or with another one; nothing of it runs."""
    done = cli("run", "--checkpoint-at", HALF, "--stop", "-o", "u.wckpt", *written, made)
    assert done.code == 0, done.err
    for words in ("inspect u.wckpt", "verify u.wckpt", "diff u.wckpt i.wckpt", f"restore u.wckpt --module {made}",
                  "store import s u.wckpt --name j"):
        done = cli(*words.split(), "--key", "a.key", "--require-signed-by", "a.sign.pub")
        assert (done.code, why in done.err, done.out) == (65, True, ""), done.err
    assert not Path("s").exists() or Store("s").entries() == []


@pytest.mark.parametrize(("words", "code", "says"), [
    ("run -o x.wckpt --encrypt-with absent program.wasm", 64, "cannot be read"),
    ("run -o x.wckpt --encrypt-with a.sign program.wasm", 64, "no aes256 key"),
    ("run -o x.wckpt --sign-with a.key program.wasm", 64, "no ed25519-secret key"),
    ("run -o x.wckpt --encrypt-with open.key program.wasm", 64, "others than its owner"),
    ("verify i.wckpt --require-signed-by a.key", 64, "no ed25519 key"),
    ("verify i.wckpt --require-signed-by ed25519:AAAA", 64, "not a file of keys"),
    ("key rewrap i.wckpt --key a.key", 64, "no key to encrypt"),
    ("key rewrap i.wckpt --key b.key --encrypt-with b.key", 65, "another key"),
    ("key rewrap program.wasm --key b.key --encrypt-with b.key", 65, "not a sealed image"),
])
def test_keys_that_cannot_be_used(cli: Cli, made: Path, words: str, code: int, says: str) -> None:
    """It is said before the program has started."""
    Path("open.key").write_bytes(Path("a.key").read_bytes())
    os.chmod("open.key", 0o644)
    done = cli(*words.split())
    assert (done.code, says in done.err, done.out) == (code, True, ""), done.err


def test_another_key(cli: Cli, made: Path) -> None:
    done = cli("key", "rewrap", "i.wckpt", "--key", "a.key", "--encrypt-with", "b.key")
    assert done.code == 0, done.err
    assert cli("verify", "i.wckpt", "--key", "a.key").code == 65
    assert cli("verify", "i.wckpt", "--key", "b.key", "--require-signed-by", "a.sign.pub").code == 0


def test_a_configuration_file_is_asked_too(cli: Cli, made: Path, tmp_path: Path) -> None:
    """A policy that nobody has to think of: unsigned images are refused, and what is written is signed."""
    folder = tmp_path / "config" / "wasmckpt"
    folder.mkdir(parents=True)
    assert cli("run", "--checkpoint-at", 1000, "--stop", "-o", "u.wckpt", made).code == 0
    (folder / "config.toml").write_text(f"""[images]
encrypt_with = "{tmp_path}/a.key"
sign_with = "{tmp_path}/a.sign"
require_signed_by = ["{tmp_path}/a.sign.pub"]
""")
    assert "not signed" in cli("restore", "u.wckpt", "--module", made).err
    assert cli("restore", "i.wckpt", "--module", made).code == 0
    assert cli("run", "--checkpoint-at", 1000, "--stop", "-o", "v.wckpt", made).code == 0
    assert json.loads(cli("verify", "v.wckpt", "--json").out)["encrypted_with"]


def _count(store: Path) -> int:
    try:
        return len(Store(store).entries())
    except StorageError:  # it is being made
        return 0


@pytest.mark.slow
def test_a_running_program_and_its_store(cli: Cli, made: Path, module: Module, spawn: Spawn, tmp_path: Path) -> None:
    """Images that another terminal asks for, a move, and a store with chains: sealed as the program was started to."""
    path, store = module(FOREVER, "forever.wasm"), tmp_path / "store"
    options = ("--encrypt-with", "a.key", "--sign-with", "a.sign")
    process = spawn("run", "--name", "j1", "--store", store, "--checkpoint-every", "50ms", *options, path)
    wait_for(lambda: _count(store) >= 3, "three checkpoints")
    assert cli("checkpoint", "j1", "-o", tmp_path / "c.wckpt").code == 0
    assert cli("migrate", "j1", "--to", "wasm3").code == 0
    assert cli("checkpoint", "j1", "-o", tmp_path / "d.wckpt").code == 0
    process.kill()
    process.communicate()
    reading = ("--key", "a.key", "--require-signed-by", "a.sign.pub")
    for image in ("c.wckpt", "d.wckpt"):
        assert cli("verify", image, *reading).code == 0
    assert cli("store", "verify", store, *reading).code == 0
    assert "encrypted" in cli("store", "verify", store).out
    number = next(entry.number for entry in Store(store).entries() if entry.position)
    compact = ("store", "compact", store, "j1", "--number", number)
    assert "would not be" in cli(*compact, "--key", "a.key").err
    assert cli(*compact, *options).code == 0
    assert cli("store", "export", store, "j1", "-o", "clear.wckpt", "--key", "a.key").code == 0
    assert cli("inspect", "clear.wckpt").code == 0, "whoever has the key can have it in the clear"
    go_on = ("restore", "--store", store, "j1", *reading, "--checkpoint-after", "50ms", "--stop")
    done = cli(*go_on)
    assert (done.code, "add --sign-with" in done.err) == (64, True), "what it would write is refused when it is read"
    done = cli(*go_on, *options)
    assert done.code == 0, done.err


def test_an_option_that_is_refused_leaves_nothing(cli: Cli, made: Path) -> None:
    """The next command of the same process is as if it had not been."""
    assert cli("verify", "i.wckpt", "--key", "absent").code == 64
    assert cli("run", "-o", "x.wckpt", "--encrypt-with", "a.sign", made).code == 64
    assert cli("run", "--checkpoint-at", HALF, "--stop", "-o", "x.wckpt", made).code == 0
    assert cli("inspect", "x.wckpt").code == 0


@pytest.mark.parametrize("words", [["--encrypt-with", "a.key"], ["--sign-with", "a.sign"],
                                   ["--require-signed-by", "a.sign.pub"]])
def test_no_journal_beside_what_is_sealed(cli: Cli, made: Path, words: list[str]) -> None:
    """It is neither encrypted nor signed, and who could write one would say what the program does next; so it is
    refused when it is asked for and when it lies there."""
    asked = cli("restore", "i.wckpt", "--module", made, "--key", "a.key", "--journal", *words)
    assert (asked.code, asked.out) == (64, "")
    assert "neither encrypted nor signed" in asked.err
    assert not Path("i.wckpt.journal").exists()
    assert cli("run", "--journal", "-o", "j.wckpt", made).code == 0
    Path("j.wckpt.journal").rename("i.wckpt.journal")
    forged = cli("restore", "i.wckpt", "--module", made, "--key", "a.key", *words)
    assert (forged.code, forged.out) == (64, "")
    without = cli("restore", "i.wckpt", "--module", made, "--key", "a.key", "--no-journal", *words)
    assert (without.code, without.out) == (0, talk_output(LINES, TURNS)[-len(without.out):].decode())
    if "--require-signed-by" not in words:
        started = cli("run", "--journal", "-o", "k.wckpt", *words, made)
        assert (started.code, started.out, Path("k.wckpt").exists()) == (64, "", False)
