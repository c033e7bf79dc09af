"""Bugs planted into seals and buckets are seen by the tests that are there for them."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wasmckpt.errors import CheckpointError
from wasmckpt.formats import files, sealed
from wasmckpt.store import objects, remote
from wasmckpt.store.objects import Objects

from ..store import test_remote as buckets
from ..support import versitygw
from ..support.buckets import bucket, bucket_server, spoiled
from ..support.misbehaving import Proxy
from ..unit.formats import test_sealed as seals

__all__ = ["bucket", "bucket_server", "spoiled"]

SEEN = (AssertionError, CheckpointError, pytest.fail.Exception)


@pytest.fixture
def ring(tmp_path: Path) -> seals.Ring:
    return seals.Ring(tmp_path)


def test_a_nonce_that_does_not_count(ring: seals.Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_nonce", lambda number, last: bytes(11) + bytes([last]))
    with pytest.raises(SEEN):
        seals.test_segments_that_are_moved_doubled_or_left_out(ring, True)


def test_a_key_that_is_used_for_two_files(ring: seals.Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", bytes)
    with pytest.raises(SEEN):
        seals.test_no_two_files_have_a_key_or_a_nonce_in_common(ring)


def test_a_policy_that_trusts_everybody(
    ring: seals.Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "policy_refuses", lambda sealing, signer: None)
    monkeypatch.setattr(files, "MAGIC", b"")  # an image without a seal is not asked for one
    with pytest.raises(SEEN):
        seals.test_whom_a_policy_trusts(ring, tmp_path)


def test_a_signature_that_is_of_the_end_alone(ring: seals.Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are not compared with what was signed."""
    unsealed = sealed.Unsealed.__init__

    def forget(self: Any, *arguments: Any) -> None:
        unsealed(self, *arguments)
        self._digests = b""

    monkeypatch.setattr(sealed.Unsealed, "__init__", forget)
    with pytest.raises(SEEN):
        seals.test_signatures_that_are_not_of_this_image(ring)


@pytest.mark.slow
def test_gc_that_forgets_what_was_named(
    bucket: str, bucket_server: versitygw.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.RemoteStore, "_bury", lambda self, record: None)
    with pytest.raises(SEEN):
        buckets.test_what_somebody_may_rely_on_stays(bucket, bucket_server)


@pytest.mark.slow
def test_a_record_that_replaces_another(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are taken without asking whether somebody has them."""
    def put(self: Any, key: str, data: bytes) -> bool:
        self.upload(key, io.BytesIO(data))
        return True

    monkeypatch.setattr(Objects, "create", put)
    with pytest.raises(SEEN):
        buckets.test_many_writers_of_one_name_and_gc(bucket)


@pytest.mark.slow
def test_a_download_that_is_believed(bucket: str, spoiled: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    class Believer:
        def __init__(self) -> None:
            self.update = lambda data: None

        def digest(self) -> Any:
            return self

        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(objects, "hashlib", SimpleNamespace(sha256=Believer))
    with pytest.raises(SEEN):
        buckets.test_an_answer_that_is_not_what_was_put_there(bucket, spoiled, "flip")
