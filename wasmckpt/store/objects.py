"""A bucket of object storage: small and large objects, in bounded time and memory, errors as ours.

The library (obstore: Rust's object_store) signs, pools, splits large uploads and repeats what a server refuses with 5xx
or a dropped connection. What it leaves to us: an answer is no longer than was asked for, goes on where a connection was
dropped, has the digest that it should have, and all of it ends within a bound. Credentials come from the environment
alone (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``);
nothing of what the library says of an error is passed on but what is known to hold none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ..errors import CheckpointError, NotSupported, RetryLater, StorageError, UsageError
from ..lazydata import dataclass

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = ["MARK", "SCHEME", "Found", "NoSuchObject", "Objects"]

SCHEME: Final = "s3://"
_PART: Final = 8 << 20
"""Bytes of a piece of an upload or a download."""
_TRIES: Final = 4
"""Times that a piece is asked for."""
_TIMEOUT: Final = 30.0
_MOST_LISTED: Final = 1_000_000
"""Objects of one store; who lists more of them does not end, or has other things beside a store there."""
MARK: Final = "store.json"
"""Key of an object that every store has, the last of all."""
_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT", "AWS_SKIP_SIGNATURE",
)


class NoSuchObject(StorageError):
    """There is no object of that name, or no bucket."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object in a list: its key below the prefix, size, when it was last written, by the server's clock, and a name
    for its content that is another one when that changes."""

    key: str
    size: int
    modified: datetime
    version: str


class Objects:
    """Objects below ``s3://BUCKET/PREFIX``. May be used by several threads.

    Args:
        timeout: seconds that one request may take, each of a few tries; None: ``WASMCKPT_S3_TIMEOUT``, or 30.

    Raises:
        UsageError: that is no such URL, or there are no credentials. NotSupported: the library is not installed.
    """

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self.url = url.rstrip("/")
        found = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,62})(?:/([^?#]*))?", self.url)
        if found is None or any(part in ("", ".", "..") for part in (found[2] or "x").split("/")):
            raise UsageError("a store in a bucket is called s3://BUCKET/PREFIX", url=repr(url))
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as reason:
            raise NotSupported("object storage needs the Python package obstore", hint="pip install 'wasmckpt[s3]'"
                               ) from reason
        if not any(os.environ.get(name) for name in _CREDENTIALS):
            raise UsageError("there are no credentials for object storage", url=self.url,
                             hint="set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if it is not Amazon's, "
                                  "AWS_ENDPOINT_URL")
        self._obs = obstore
        seconds = timedelta(seconds=_seconds() if timeout is None else timeout)
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3") or ""
        config: Any = {"endpoint": endpoint} if endpoint else {}
        if not os.environ.get("AWS_CHECKSUM_ALGORITHM"):
            config["checksum_algorithm"] = "SHA256"  # so that the server refuses what was damaged on the way
        if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
            config["region"] = "us-east-1"
        with self._reported(""):
            self._store: S3Store = S3Store(
                found[1], prefix=found[2] or None, config=config,
                client_options={"timeout": seconds, "connect_timeout": min(seconds, timedelta(seconds=5)),
                                "allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": _TRIES - 1, "retry_timeout": seconds,
                              "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2),
                                          "base": 2}},
            )

    # Small ones

    def read(self, key: str, most: int) -> tuple[bytes, str]:
        """A small object of at most ``most`` bytes, and its version.

        Raises:
            NoSuchObject: there is none. StorageError: it is longer. Else as all methods: `StorageError`; `RetryLater`,
            where the server does not answer in time or answers that it cannot.
        """
        for tries in range(_TRIES):
            with self._reported(key):
                answer = self._obs.get(self._store, key)
                size, version = answer.meta["size"], answer.meta["e_tag"] or ""
                if size > most:
                    raise StorageError("an object is longer than it can be", path=f"{self.url}/{key}", size=size)
                try:
                    data = b"".join(_bounded(answer, size))
                except self._obs.exceptions.BaseError:
                    if tries + 1 == _TRIES:
                        raise
                    continue
                if len(data) == size:
                    return data, version
        raise RetryLater("the object storage cut off its answers", path=f"{self.url}/{key}")

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object that is not there; False: it is. One of several who try at once does."""
        with self._reported(key):
            try:
                self._obs.put(self._store, key, data, mode="create", use_multipart=False)
            except self._obs.exceptions.AlreadyExistsError:
                return False
        return True

    def replace(self, key: str, data: bytes, version: str) -> bool:
        """Write a small object in the place of a version of it that was `read`; False: it is another one by now."""
        with self._reported(key):
            try:
                self._obs.put(self._store, key, data, mode={"e_tag": version}, use_multipart=False)
            except (self._obs.exceptions.PreconditionError, FileNotFoundError):
                return False
        return True

    # Large ones

    def upload(self, key: str, file: IO[bytes]) -> None:
        """Write a file's bytes, from where it stands."""
        with self._reported(key):
            self._obs.put(self._store, key, file, chunk_size=_PART, max_concurrency=3)

    def download(self, key: str, path: Path, size: int, sha256: bytes) -> None:
        """Read an object into a new file, which is not there if this raises.

        Raises:
            StorageError: it has not ``size`` bytes with that digest.
        """
        sha = hashlib.sha256()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                while (at := file.tell()) < size:
                    for data in self._piece(key, at, min(at + _PART, size), size):
                        sha.update(data)
                        file.write(data)
            if sha.digest() != sha256:
                raise StorageError("the object storage gave another object than was put there",
                                   path=f"{self.url}/{key}", need=sha256.hex(), found=sha.hexdigest())
        except BaseException as reason:
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(reason, OSError):
                raise StorageError(f"the image cannot be kept: {reason.strerror}", path=str(path)) from reason
            raise

    def _piece(self, key: str, start: int, end: int, size: int) -> Iterator[bytes]:
        """A piece, gone on with where a connection was dropped, but not for ever."""
        for tries in range(_TRIES):
            with self._reported(key):
                answer = self._obs.get(self._store, key, options={"range": (start, end)})
                if answer.range != (start, end) or answer.meta["size"] != size:
                    raise StorageError("the object storage gave an object of another length than was put there",
                                       path=f"{self.url}/{key}", need=size, found=answer.meta["size"])
                try:
                    for data in _bounded(answer, end - start):
                        yield data
                        start += len(data)
                except self._obs.exceptions.BaseError:
                    if tries + 1 == _TRIES:
                        raise
            if start == end:
                return
        raise RetryLater("the object storage cut off its answers", path=f"{self.url}/{key}")

    # All

    def listed(self, prefix: str = "") -> list[Found]:
        """All objects whose key begins with the folders ``prefix``, by key.

        What is no list at all (a login page of some network) looks to the library like an empty one. So an empty list
        is believed if the `MARK` is listed, and of all objects only one with the mark, which is the last of them: if an
        answer has taken the place of a page in the middle, it is not there.
        """
        found = self._once_listed(prefix)
        if not found and prefix:
            with self._reported(prefix):
                whole = [row["path"] for rows in self._obs.list(self._store, offset=MARK[:-1]) for row in rows]
        else:
            whole = [one.key for one in found] if not prefix else [MARK]
        if MARK not in whole:
            raise RetryLater("the object storage answers with something else than a list", path=f"{self.url}/{prefix}",
                             hint="is AWS_ENDPOINT_URL right?")
        return found

    def _once_listed(self, prefix: str) -> list[Found]:
        for tries in range(_TRIES):
            with self._reported(prefix):
                try:
                    found = []
                    for rows in self._obs.list(self._store, prefix or None, chunk_size=1000):
                        found += [
                            Found(row["path"], row["size"], row["last_modified"], row["e_tag"] or "") for row in rows
                        ]
                        if len(found) > _MOST_LISTED:
                            raise StorageError("the object storage lists more objects than a store has",
                                               path=f"{self.url}/{prefix}", limit=_MOST_LISTED)
                    return found
                except self._obs.exceptions.BaseError:  # cut off: the library does not ask again
                    if tries + 1 == _TRIES:
                        raise
        raise AssertionError

    def delete(self, keys: Iterable[str]) -> None:
        """Take objects away; those that are not there do not matter."""
        with self._reported(""), contextlib.suppress(FileNotFoundError):
            if names := list(keys):
                self._obs.delete(self._store, names)

    def now(self) -> datetime:
        """The server's time: when something that is written now was written."""
        key = f"clock/{os.urandom(8).hex()}"
        with self._reported(key):
            self._obs.put(self._store, key, b"", use_multipart=False)
            try:
                return self._obs.head(self._store, key)["last_modified"]
            finally:
                self._obs.delete(self._store, [key])

    @contextlib.contextmanager
    def _reported(self, key: str) -> Iterator[None]:
        """Errors of the library as ours, without what it says of a request."""
        where = f"{self.url}/{key}" if key else self.url
        try:
            yield
        except FileNotFoundError as reason:
            raise NoSuchObject("there is no such object, or no such bucket", path=where) from reason
        except (PermissionError, self._obs.exceptions.PermissionDeniedError,
                self._obs.exceptions.UnauthenticatedError) as reason:
            raise StorageError("the object storage refuses access", path=where,
                               hint="are the credentials right, and may they do this?") from reason
        except self._obs.exceptions.NotSupportedError as reason:
            raise NotSupported("the object storage lacks what a store needs: conditional writes", path=where
                               ) from reason
        except self._obs.exceptions.BaseError as reason:
            raise _explained(str(reason), where) from reason


def _bounded(answer: Any, size: int) -> Iterator[bytes]:
    """An answer's bytes, but no more than were asked for."""
    for data in answer.stream(min_chunk_size=1 << 20):
        size -= len(data)
        if size < 0:
            raise StorageError("the object storage answers with more than was asked for")
        yield bytes(data)


_STATUS: Final = re.compile(r"status:? (?:code:? )?([1-5][0-9][0-9])")
_SAID: Final[Mapping[str, str]] = {
    "timed out": "the object storage does not answer in time", "TimedOut": "the object storage does not answer in time",
    "Connect": "the object storage cannot be reached", "ConnectionRefused": "the object storage cannot be reached",
    "dns error": "the object storage cannot be found",
}


def _explained(text: str, where: str) -> CheckpointError:
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if 400 <= status < 500 and status not in (408, 429):
        return StorageError(f"the object storage refuses a request with status {status}", path=where)
    for sign, what in _SAID.items():
        if sign in text and not status:
            return RetryLater(what, path=where, hint="see AWS_ENDPOINT_URL; WASMCKPT_S3_TIMEOUT gives it more seconds")
    what = f" with status {status}" if status else " or is cut off"
    return RetryLater(f"the object storage fails{what}", path=where, hint="try again later")


def _seconds() -> float:
    text = os.environ.get("WASMCKPT_S3_TIMEOUT", "")
    try:
        seconds = float(text) if text else _TIMEOUT
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise UsageError("WASMCKPT_S3_TIMEOUT is no number of seconds from 0.1 to 3600", value=repr(text))
    return seconds
