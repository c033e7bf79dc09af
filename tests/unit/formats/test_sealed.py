"""Sealed images: what was encrypted or signed comes out as it went in, or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import CheckpointError, ImageError, NotSupported, StorageError, UsageError
from wasmckpt.formats import encode, keys, load, load_chain, load_header, save
from wasmckpt.formats.chain import file_name
from wasmckpt.formats.files import check_kept, rewrap, seal_of
from wasmckpt.formats.image import Image, ParentRef
from wasmckpt.formats.sealed import MAGIC, Sealer, Unsealed
from wasmckpt.formats.sealing import Sealing, current
from wasmckpt.lazydata import replace

from . import sealed_vectors as vectors

NAMES = sorted(vectors.SEALED)
SPEC_WRAPPING, SPEC_SIGNING = b"wasmckpt sealed image: file key\0", b"wasmckpt sealed image: signature\0"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ENCRYPT_WITH", "DECRYPT_WITH", "SIGN_WITH", "REQUIRE_SIGNED_BY", "CONFIG"):
        monkeypatch.delenv(f"WASMCKPT_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


class Ring:
    """Two keys of each kind, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aes, self.other_aes = (self._made(name, keys.ENCRYPTION) for name in ("a.key", "b.key"))
        self.sign, self.other_sign = (self._made(name, keys.SIGNING) for name in ("a.sign", "b.sign"))

    def _made(self, name: str, kind: str) -> str:
        key, path = keys.generate(kind), self.folder / name
        keys.write_keys(path, [key])
        if kind == keys.SIGNING:
            keys.write_keys(f"{path}.pub", [keys.public_of(key)], public=True)
        return str(path)

    def all(self) -> Sealing:
        return Sealing(self.aes, (), self.sign, (f"{self.sign}.pub",))


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path)


@pytest.fixture
def opening(tmp_path: Path) -> Sealing:
    """Opens the vectors."""
    return Sealing(decrypt_with=(vectors.private(vectors.KEY, tmp_path),))


def _vector(name: str) -> bytes:
    return (vectors.FOLDER / f"{name}.wck").read_bytes()


def _unsealed(data: bytes, sealing: Sealing) -> bytes:
    return io.BufferedReader(Unsealed(io.BytesIO(data), sealing)).read()


def _sealed(data: bytes, sealing: Sealing, segment: int = 4096) -> bytes:
    file = io.BytesIO()
    sealer = Sealer(file, sealing, segment=segment)
    for at in range(0, len(data), 1000):
        sealer.write(data[at:at + 1000])
    sealer.finish()
    return file.getvalue()


# What a release wrote


def test_the_folder_holds_all_vectors() -> None:
    assert {path.stem for path in vectors.FOLDER.glob("*.wck")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_open(name: str, opening: Sealing) -> None:
    """Each holds the image, byte for byte as without a seal; who signed is known."""
    encrypted, signed, _ = vectors.SEALED[name]
    path = vectors.FOLDER / f"{name}.wck"
    assert _unsealed(path.read_bytes(), opening) == encode(vectors.image())
    seal = seal_of(path, sealing=opening)
    (public,) = keys.read_public(str(vectors.PUBLIC))
    assert (bool(seal.keys), seal.signer) == (encrypted, public if signed else None)


def test_what_is_signed_is_still_written_the_same(tmp_path: Path) -> None:
    sealing = Sealing(sign_with=vectors.private(vectors.SIGNING, tmp_path))
    assert _sealed(encode(vectors.image()), sealing) == _vector("signed")


def _second_reader(data: bytes, master: bytes) -> tuple[bytes, bytes]:
    """The image, and who signed it: from section 9 of SPEC.md alone."""
    assert data[:8] == bytes.fromhex("8957434B534C0D0A")
    unpacker = msgpack.Unpacker(io.BytesIO(data[8:]))
    version, params, recipients = (unpacker.unpack() for _ in range(3))
    fields = msgpack.unpackb(params)
    cipher, tag, start = None, 0, 8 + unpacker.tell()
    assert version == 1
    if fields["cipher"] == "aes-256-gcm-stream":
        name = hashlib.sha256(b"wasmckpt key\0aes256\0" + master).digest()[:8]
        ((nonce, wrapped),) = [(nonce, wrapped) for id_, nonce, wrapped in recipients if id_ == name]
        cipher, tag = AESGCM(AESGCM(master).decrypt(nonce, wrapped, SPEC_WRAPPING + params)), 16
    length = int.from_bytes(data[-4:], "little")
    body, trailer = data[start:-4 - length], data[-4 - length:-4]
    whole = fields["segment"] + tag
    parts = [body[at:at + whole] for at in range(0, len(body), whole)]
    if cipher is not None:
        parts = [cipher.decrypt(n.to_bytes(11, "big") + b"\0", part, None) for n, part in enumerate(parts)]
        trailer = cipher.decrypt(len(parts).to_bytes(11, "big") + b"\1", trailer, None)
    core, signer, signature = msgpack.unpackb(trailer)
    said = msgpack.unpackb(core)
    image = b"".join(parts)
    assert said["size"] == len(image)
    if signer:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, SPEC_SIGNING + params + core)
        ends = [min((n + 1) * fields["segment"], len(image)) for n in range(len(parts))]
        assert said["digests"] == b"".join(hashlib.sha256(image[:end]).digest() for end in ends)
    return image, signer


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_made_from_the_page_alone_agrees(name: str, tmp_path: Path) -> None:
    (key,) = keys.read_keys(vectors.private(vectors.KEY, tmp_path), keys.ENCRYPTION)
    image, signer = _second_reader(_vector(name), key.secret)
    assert image == encode(vectors.image())
    assert signer == (keys.read_public(str(vectors.PUBLIC))[0].secret if vectors.SEALED[name][1] else b"")


def test_the_page_has_the_numbers_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "formats" / "SPEC.md").read_text()
    assert MAGIC.hex(" ").upper() in page


# There and back


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 20_000])
@pytest.mark.parametrize(("encrypted", "signed"), [(True, False), (False, True), (True, True)])
def test_there_and_back(ring: Ring, size: int, encrypted: bool, signed: bool) -> None:
    sealing = Sealing(ring.aes if encrypted else "", (), ring.sign if signed else "")
    data = os.urandom(size)
    sealed = _sealed(data, sealing)
    assert _unsealed(sealed, sealing) == data
    if size > 8:
        assert (data[:64] in sealed) == (not encrypted)


def test_no_two_files_have_a_key_or_a_nonce_in_common(ring: Ring) -> None:
    """The same image twice shares nothing but what is known of all."""
    one, two = (_sealed(bytes(5000), Sealing(ring.aes)) for _ in range(2))
    assert len(one) == len(two)
    blocks = [{data[at:at + 16] for at in range(120, len(data) - 16)} for data in (one, two)]
    assert not blocks[0] & blocks[1]


def test_files_and_chains(ring: Ring, tmp_path: Path) -> None:
    """`save` and all that loads; a child names its parent by the digest that the image has without a seal."""
    parent = vectors.image()
    sealing = ring.all()
    digest = save(parent, tmp_path / "p", sealing=sealing)
    assert digest == hashlib.sha256(encode(parent)).digest()
    os.rename(tmp_path / "p", tmp_path / file_name(digest))
    child = replace(parent, parent=ParentRef(digest, 1), memories=tuple(
        replace(memory, data=(), zero=()) for memory in parent.memories
    ))
    save(child, tmp_path / "c.wckpt", sealing=sealing)
    with _environment(sealing):
        assert load(tmp_path / "c.wckpt") == child
        assert load_header(tmp_path / "c.wckpt").image.parent == child.parent
        assert load_chain(tmp_path / "c.wckpt").memories == load(tmp_path / file_name(digest)).memories
    assert os.stat(tmp_path / "c.wckpt").st_mode & 0o777 == 0o600


class _environment:
    """What `Sealing` says, as the variables of this process."""

    def __init__(self, sealing: Sealing) -> None:
        self._patch = pytest.MonkeyPatch()
        for name, value in (("ENCRYPT_WITH", sealing.encrypt_with), ("SIGN_WITH", sealing.sign_with),
                            ("DECRYPT_WITH", os.pathsep.join(sealing.decrypt_with)),
                            ("REQUIRE_SIGNED_BY", ",".join(sealing.require_signed_by))):
            self._patch.setenv(f"WASMCKPT_{name}", value)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def test_a_parent_that_lost_its_seal_is_refused(ring: Ring, tmp_path: Path) -> None:
    """A policy is for each image of a chain."""
    parent = vectors.image()
    digest = save(parent, tmp_path / "p")
    os.rename(tmp_path / "p", tmp_path / file_name(digest))
    child = replace(parent, parent=ParentRef(digest, 1))
    save(child, tmp_path / "c.wckpt", sealing=ring.all())
    with _environment(ring.all()), pytest.raises(ImageError, match="not signed"):
        load_chain(tmp_path / "c.wckpt")


def test_one_segment_is_in_memory(ring: Ring) -> None:
    """Of 24 MiB, on the way in and out."""
    sealing, piece, file = ring.all(), os.urandom(1 << 20), io.BytesIO()
    file.write(bytes(26 << 20))  # so that growing it is not what is measured
    file.seek(0)
    tracemalloc.start()
    try:
        sealer = Sealer(file, sealing)
        for _ in range(24):
            sealer.write(piece)
        sealer.finish()
        file.truncate()
        file.seek(0)
        reader = io.BufferedReader(Unsealed(file, sealing), 1 << 16)
        read = 0
        while data := reader.read(1 << 20):
            read += len(data)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert read == 24 << 20


# What is refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encrypted", "signed", "both"])
def test_every_flip_is_refused(name: str, opening: Sealing) -> None:
    """Whatever bit, of whatever byte."""
    data = _vector(name)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ImageError):
            _unsealed(bytes(damaged), opening)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encrypted", "signed", "both"])
def test_every_cut_is_refused(name: str, opening: Sealing) -> None:
    """Anywhere at the end, or from anywhere on; and whatever follows."""
    data = _vector(name)
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + data[at + 1:]):
            with pytest.raises(ImageError):
                _unsealed(damaged, opening)
    for more in (b"\0", data[-4:], data):
        with pytest.raises(ImageError):
            _unsealed(data + more, opening)


@pytest.mark.parametrize("encrypted", [False, True])
def test_segments_that_are_moved_doubled_or_left_out(ring: Ring, encrypted: bool) -> None:
    """Segments of one size, so that only their order tells. (Without encryption: the signature.)"""
    sealing = Sealing(ring.aes) if encrypted else Sealing(sign_with=ring.sign)
    image = os.urandom(3 * 4096)
    data = _sealed(image, sealing)
    whole = 4096 + (16 if encrypted else 0)
    end = len(data) - 4 - int.from_bytes(data[-4:], "little")
    a, b, c = (data[end - n * whole:end - (n - 1) * whole] for n in (3, 2, 1))
    head, tail = data[:end - 3 * whole], data[end:]
    assert head + a + b + c + tail == data
    for parts in ((b, a, c), (a, c, b), (a, a, c), (a, b), (b, c), (a, b, c, c), (c, b, a)):
        with pytest.raises(ImageError):
            _unsealed(head + b"".join(parts) + tail, sealing)


def _with_trailer(data: bytes, change: Any) -> bytes:
    """A signed image that is not encrypted, with another trailer."""
    length = int.from_bytes(data[-4:], "little")
    trailer = msgpack.packb(change(msgpack.unpackb(data[-4 - length:-4])))
    changed: bytes = data[:-4 - length] + trailer + len(trailer).to_bytes(4, "little")
    return changed


def test_signatures_that_are_not_of_this_image(ring: Ring) -> None:
    """Of another one, by another one, of nobody: each by name."""
    mine, sealing = os.urandom(10_000), Sealing(sign_with=ring.sign)
    data, other = _sealed(mine, sealing), _sealed(os.urandom(10_000), sealing)
    length = int.from_bytes(other[-4:], "little")
    with pytest.raises(ImageError, match="not what was signed"):
        _unsealed(data[:-4 - length] + other[-4 - length:], sealing)
    with pytest.raises(ImageError, match="signature is wrong"):
        _unsealed(_with_trailer(data, lambda t: [t[0], keys.read_public(f"{ring.other_sign}.pub")[0].secret, t[2]]),
                  sealing)
    with pytest.raises(ImageError, match="neither encrypted nor signed"):
        _unsealed(_with_trailer(data, lambda t: [msgpack.packb({"size": 10_000, "digests": b""}), b"", b""]), sealing)
    with pytest.raises(ImageError, match="signature is wrong"):
        _unsealed(_with_trailer(data, lambda t: [t[0], b"", t[2]]), sealing)


def test_whom_a_policy_trusts(ring: Ring, tmp_path: Path) -> None:
    """Unsigned, encrypted only, and signed by another one are refused, each by name; before anything is looked at."""
    trusted = Sealing(ring.aes, (), "", (f"{ring.sign}.pub",))
    for how, why in ((Sealing(), "is not signed"), (Sealing(ring.aes), "is not signed"),
                     (Sealing(sign_with=ring.other_sign), "not trusted"),
                     (Sealing(ring.aes, (), ring.other_sign), "not trusted")):
        save(vectors.image(), tmp_path / "i", sealing=how)
        with _environment(trusted):
            for read in (load, load_header, load_chain, seal_of):
                with pytest.raises(ImageError, match=why):
                    read(tmp_path / "i")
    save(vectors.image(), tmp_path / "i", sealing=Sealing(sign_with=ring.sign))
    with _environment(trusted):
        assert load(tmp_path / "i") == vectors.image()
    both = (keys.read_public(f"{ring.other_sign}.pub")[0].text, keys.read_public(f"{ring.sign}.pub")[0].text)
    with _environment(Sealing(require_signed_by=both)):
        assert load(tmp_path / "i") == vectors.image()


def test_nothing_is_looked_at_before_it_is_known_to_be_signed(ring: Ring, tmp_path: Path) -> None:
    """What a decoder would stumble over (a length of four gigabytes) never reaches it."""
    sealing = Sealing(sign_with=ring.sign)
    save(vectors.image(), tmp_path / "i", sealing=sealing)
    data = (tmp_path / "i").read_bytes()
    at = data.index(b"\x89WCKPT\r\n") + 8
    (tmp_path / "i").write_bytes(data[:at] + b"\xc6\xff\xff\xff\xff" + data[at + 5:])
    for read in (load, load_header):
        with pytest.raises(ImageError, match="not what was signed"):
            read(tmp_path / "i")


def test_keys_that_do_not_fit(ring: Ring, tmp_path: Path) -> None:
    save(vectors.image(), tmp_path / "i", sealing=Sealing(ring.aes))
    with pytest.raises(ImageError, match="there is no key"):
        load(tmp_path / "i")
    with _environment(Sealing(decrypt_with=(ring.other_aes,))), pytest.raises(ImageError, match="another key"):
        load(tmp_path / "i")
    with _environment(Sealing(decrypt_with=(ring.other_aes, ring.aes))):
        assert load(tmp_path / "i") == vectors.image()
    lying = Path(tmp_path / "i").read_bytes().replace(
        keys.read_keys(ring.aes, keys.ENCRYPTION)[0].id, keys.read_keys(ring.other_aes, keys.ENCRYPTION)[0].id
    )
    with pytest.raises(ImageError, match="damaged"):
        _unsealed(lying, Sealing(decrypt_with=(ring.other_aes,)))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_key_that_others_can_read_is_none(ring: Ring, mode: int) -> None:
    for path, kind in ((ring.aes, keys.ENCRYPTION), (ring.sign, keys.SIGNING)):
        os.chmod(path, mode)
        with pytest.raises(UsageError, match="others than its owner"):
            keys.read_keys(path, kind)
        os.chmod(path, 0o400)
        assert len(keys.read_keys(path, kind)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_a_key_of_another_user_is_none(ring: Ring) -> None:
    os.chown(ring.aes, 65534, 65534)
    with pytest.raises(UsageError, match="another user's"):
        keys.read_keys(ring.aes, keys.ENCRYPTION)


@pytest.mark.parametrize("content", [
    b"", b"nonsense", b"aes256:AAAA", b"aes256:" + b"A" * 43 + b"!", b"aes128:" + b"A" * 43 + b"=", b"\0" * 100_000,
    b"aes256", b"\xff\xfe:x", b"# only words\n",
])
def test_what_is_no_file_of_keys(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="not a file of keys"):
        keys.read_keys(path, keys.ENCRYPTION)


def test_keys_of_the_wrong_kind_or_that_are_not_there(ring: Ring, tmp_path: Path) -> None:
    for name, kind in ((ring.aes, keys.SIGNING), (ring.sign, keys.ENCRYPTION), (f"{ring.sign}.pub", keys.SIGNING)):
        with pytest.raises(UsageError, match=f"no {kind} key"):
            keys.read_keys(name, kind)
    for path in (tmp_path / "absent", tmp_path, "a\0b"):
        with pytest.raises(UsageError, match="cannot be read"):
            keys.read_keys(path, keys.ENCRYPTION)
    with pytest.raises(StorageError, match="cannot be written"):
        keys.write_keys(ring.aes, [keys.generate(keys.ENCRYPTION)])


def test_no_secret_is_shown(ring: Ring, tmp_path: Path) -> None:
    """In no error, and in no form of a key but the one that is written to its file."""
    secrets = [key.text.partition(":")[2] for path, kind in ((ring.aes, keys.ENCRYPTION), (ring.sign, keys.SIGNING))
               for key in keys.read_keys(path, kind)]
    shown = [repr(keys.read_keys(ring.aes, keys.ENCRYPTION)), repr(keys.read_keys(ring.sign, keys.SIGNING))]
    os.chmod(ring.aes, 0o644)
    save(vectors.image(), tmp_path / "i", sealing=Sealing(ring.other_aes, (), ring.sign))
    for sealing in (Sealing(ring.aes), Sealing(decrypt_with=(ring.aes,)), Sealing(sign_with=ring.sign)):
        with pytest.raises(CheckpointError) as caught, _environment(sealing):
            load(tmp_path / "i")
        shown.append(str(caught.value))
    assert not any(secret in text for secret in secrets for text in shown)


def test_without_the_library(ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images without a seal need it not; for others the error says how to get it."""
    save(vectors.image(), tmp_path / "i", sealing=Sealing(ring.aes))
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat", None)
    for do in (lambda: load(tmp_path / "i"), lambda: save(vectors.image(), tmp_path / "x", sealing=Sealing(ring.aes))):
        with pytest.raises(NotSupported, match="cryptography") as caught:
            do()
        assert "wasmckpt[crypto]" in str(caught.value)
    assert not (tmp_path / "x").exists()
    save(vectors.image(), tmp_path / "plain")
    assert load(tmp_path / "plain") == vectors.image()


# Other keys


def test_another_key_takes_the_place_of_one(ring: Ring, tmp_path: Path) -> None:
    """The old one opens it no more, all else is as it was; a file of several keys reads old and new images."""
    path = tmp_path / "i"
    save(vectors.image(), path, sealing=Sealing(ring.aes, (), ring.sign))
    before = path.read_bytes()
    rewrap(path, sealing=Sealing(ring.other_aes, (ring.aes,)))
    assert path.read_bytes()[-1000:] == before[-1000:]
    with _environment(Sealing(ring.aes)), pytest.raises(ImageError, match="another key"):
        load(path)
    with _environment(Sealing(ring.other_aes, (), "", (f"{ring.sign}.pub",))):
        assert load(path) == vectors.image()
    save(vectors.image(), tmp_path / "old", sealing=Sealing(ring.aes))
    both = tmp_path / "both.key"
    keys.write_keys(both, [key for name in (ring.other_aes, ring.aes) for key in keys.read_keys(name, keys.ENCRYPTION)])
    with _environment(Sealing(str(both))):
        assert load(path) == load(tmp_path / "old") == vectors.image()
        save(vectors.image(), tmp_path / "new")
    with _environment(Sealing(ring.other_aes)):
        assert load(tmp_path / "new") == vectors.image()
    for sealing, why in ((Sealing(ring.other_aes), "another key"), (Sealing("", (ring.aes,)), "no key to encrypt")):
        with pytest.raises(CheckpointError, match=why):
            rewrap(tmp_path / "old", sealing=sealing)
    save(vectors.image(), tmp_path / "plain")
    for path in (tmp_path / "plain", Path(vectors.FOLDER / "signed.wck")):
        with pytest.raises(ImageError, match=r"not encrypted|not a sealed"):
            rewrap(path, sealing=Sealing(ring.aes))


def test_what_replaces_a_sealed_image_is_sealed(ring: Ring, tmp_path: Path) -> None:
    save(vectors.image(), tmp_path / "i", sealing=Sealing(ring.aes, (), ring.sign))
    for sealing, what in ((Sealing("", (ring.aes,), ring.sign), "encrypted"), (Sealing(ring.aes), "signed")):
        with _environment(sealing), pytest.raises(UsageError, match=f"is {what}"):
            check_kept(tmp_path / "i")
    with _environment(ring.all()):
        check_kept(tmp_path / "i")


# What is asked for


def test_variables_and_the_configuration_file(ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, where a variable does not say something else; names in it are relative to it."""
    assert current() == Sealing()
    folder = tmp_path / "config" / "wasmckpt"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        '[images]\nencrypt_with = "x.key"\ndecrypt_with = ["/y.key"]\nrequire_signed_by = ["ed25519:abc", "s.pub"]\n'
    )
    want = Sealing(str(folder / "x.key"), ("/y.key",), "", ("ed25519:abc", str(folder / "s.pub")))
    assert current() == want
    monkeypatch.setenv("WASMCKPT_DECRYPT_WITH", "/a:/b")
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", "")
    assert current() == replace(want, encrypt_with="", decrypt_with=("/a", "/b"))
    monkeypatch.setenv("WASMCKPT_CONFIG", str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="cannot be read"):
        current()


@pytest.mark.parametrize("text", ["[images", "[images]\nencrypt = 'x'", "[images]\nsign_with = 3", "images = 3"])
def test_a_configuration_file_that_says_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("WASMCKPT_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(UsageError, match="configuration file"):
        current()


# Whatever bytes


@pytest.fixture(scope="module")
def any_key(tmp_path_factory: pytest.TempPathFactory) -> Sealing:
    return Sealing(decrypt_with=(vectors.private(vectors.KEY, tmp_path_factory.mktemp("keys")),))


@given(data=st.binary(max_size=300))
def test_any_bytes_behind_the_magic_are_refused(any_key: Sealing, data: bytes) -> None:
    with pytest.raises(ImageError):
        _unsealed(MAGIC + data, any_key)


@pytest.mark.parametrize(("params", "recipients"), [
    ({"cipher": "none", "segment": 0}, []), ({"cipher": "none", "segment": 1 << 40}, []),
    ({"cipher": "none", "segment": 4096}, [[bytes(8), bytes(12), bytes(48)]]),
    ({"cipher": "rot13", "segment": 4096}, []),
    ({"cipher": "aes-256-gcm-stream", "segment": 4096}, []), ({"segment": 4096}, []), ({"cipher": "none"}, []), (3, []),
    ({"cipher": "aes-256-gcm-stream", "segment": 4096}, [[bytes(8), bytes(12), bytes(48)]] * 1000),
    ({"cipher": "aes-256-gcm-stream", "segment": 4096}, [[b"", b"", b""]]), ({"cipher": "none", "segment": 4096}, 7),
])
def test_heads_that_lie(any_key: Sealing, params: object, recipients: object) -> None:
    head = MAGIC + b"\1" + msgpack.packb(msgpack.packb(params)) + msgpack.packb(recipients)
    for rest in (b"", bytes(10_000), b"\xff" * 10_000, (1 << 31).to_bytes(4, "little")):
        with pytest.raises(ImageError):
            _unsealed(head + rest, any_key)


def test_a_newer_version(any_key: Sealing) -> None:
    with pytest.raises(ImageError, match="version 2") as caught:
        _unsealed(MAGIC + b"\2" + bytes(100), any_key)
    assert "newer wasmckpt" in caught.value.hint


def test_the_image_inside_is_checked_as_ever(ring: Ring, tmp_path: Path) -> None:
    """A signature is no reason to believe that it is an image."""
    (tmp_path / "i").write_bytes(_sealed(b"this is not an image at all", ring.all()))
    with _environment(ring.all()), pytest.raises(ImageError, match="not an image"):
        load(tmp_path / "i")
    image: Image = vectors.image()
    (tmp_path / "i").write_bytes(_sealed(encode(image)[:-1], ring.all()))
    with _environment(ring.all()), pytest.raises(ImageError, match="cut short"):
        load(tmp_path / "i")
