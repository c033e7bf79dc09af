"""The sandbox: from a path that the guest gave to a place on the host that is surely below its root.

Paths are resolved here, one component at a time, each opened relative to the directory before it and never through a
symlink (``openat`` with ``O_NOFOLLOW``); symlinks are read and their contents resolved the same way, from the same
root. The operating system is only ever given single names. So whatever is renamed or swapped while a path is being
resolved, each step goes from a directory to a direct child of it, and none leaves the root: ``..`` is not given to the
system either, it resolves the names before it once more from the root.
"""

from __future__ import annotations

import errno
import os
import stat

from .abi import Errno, WasiError

__all__ = ["Place", "decode_path", "join"]

_MOST_LINKS = 40
_MOST_RACES = 8
_LONGEST_PATH = 4096
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def decode_path(raw: bytes) -> bytes:
    """The path as the guest gave it. Raises `WasiError`: ``EILSEQ`` if not UTF-8 or with a NUL, ``ENAMETOOLONG``."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise WasiError(Errno.ILSEQ) from None
    if b"\0" in raw:
        raise WasiError(Errno.INVAL)
    if len(raw) > _LONGEST_PATH:
        raise WasiError(Errno.NAMETOOLONG)
    return raw


def join(base: bytes, name: bytes) -> bytes:
    """``base/name``; either may be empty, and ``.`` counts as empty."""
    return b"/".join(part for part in (base, name) if part not in (b"", b"."))


class Place:
    """A name in an open directory: ``path`` resolved below the directory ``root_fd`` up to its last component.

    Use as a context manager; it closes what it opened.

    Args:
        root_fd: directory of the host that must not be left.
        path: relative path of the guest. An absolute one, or one that climbs out, gives ``EPERM``.

    Attributes:
        parent: host descriptor of the directory that holds the name.
        name: the last component; ``b"."`` if the path ends in a directory that has just been gone through.
        must_be_directory: whether the path ended in a slash (or dot).

    Raises:
        WasiError: ``EPERM``, ``ENOENT`` (empty), ``ELOOP``, ``ENOTDIR`` ...
        OSError: as the system says for a component.
    """

    def __init__(self, root_fd: int, path: bytes) -> None:
        self.parent = root_fd
        self.name = b"."
        self.must_be_directory = False
        self._root = root_fd
        self._names: list[bytes] = []
        self._todo: list[bytes] = []
        self._links = 0
        try:
            self._push(path)
            self._walk()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the parent, if it was opened here."""
        if self.parent != self._root:
            os.close(self.parent)
            self.parent = self._root

    @property
    def path(self) -> bytes:
        """The resolved path below the root, without dots and symlinks but perhaps the last; empty for the root."""
        return join(b"/".join(self._names), self.name)

    def follow(self) -> bool:
        """If the name is a symlink now, go where it points (and say so): the place is then another one."""
        target = self._link_target(self.name)
        if target is None:
            return False
        self._push(target)
        self._walk()
        return True

    def follow_all(self) -> None:
        """Follow as long as the name is a symlink."""
        while self.follow():
            pass

    def stat(self) -> os.stat_result:
        """Of the name itself, not of what a symlink points to."""
        return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)

    def exists(self) -> bool:
        """Whether there is something under the name, a dangling symlink too."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def require_directory(self) -> None:
        """After a trailing slash the name has to be a directory, if it is there. Raises `WasiError` (``ENOTDIR``)."""
        if not self.must_be_directory:
            return
        try:
            mode = self.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise WasiError(Errno.NOTDIR)

    def _push(self, path: bytes) -> None:
        """Put the components of ``path`` before what is left to do."""
        if not path:
            raise WasiError(Errno.NOENT)
        if path.startswith(b"/"):
            raise WasiError(Errno.PERM)
        if len(path) > _LONGEST_PATH:
            raise WasiError(Errno.NAMETOOLONG)
        parts = path.split(b"/")
        if parts[-1] in (b"", b".", b".."):
            self.must_be_directory = True
        final = parts[-1] == b"." and not self._todo
        self._todo += [part for part in reversed(parts) if part not in (b"", b".")]
        if final:
            # "a/." names what is in the directory, and calls that change names refuse it.
            self._todo.insert(0, b".")

    def _walk(self) -> None:
        """Go on until a single component is left: the name."""
        while self._todo:
            part = self._todo.pop()
            if part == b"..":
                self._climb()
            elif part == b".":
                break
            elif self._todo:
                self._step(part)
            else:
                self.name = part
                return
        self.name = b"."

    def _step(self, part: bytes) -> None:
        for attempt in range(_MOST_RACES + 1):
            try:
                fd = os.open(part, _STEP, dir_fd=self.parent)
                break
            except OSError as error:
                target = self._link_target(part)
                if target is not None:
                    self._push_link(target)
                    return
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or attempt == _MOST_RACES or not self._is_dir(part):
                    raise
                # A symlink when opened, a directory when read: somebody is swapping them. Look once more.
        self.close()
        self.parent = fd
        self._names.append(part)

    def _is_dir(self, name: bytes) -> bool:
        return stat.S_ISDIR(os.stat(name, dir_fd=self.parent, follow_symlinks=False).st_mode)

    def _push_link(self, target: bytes) -> None:
        outer, self.must_be_directory = self.must_be_directory, False
        self._push(target)
        self.must_be_directory = outer

    def _link_target(self, name: bytes) -> bytes | None:
        """Contents of the symlink, None if it is not one. Raises `WasiError` (``ELOOP``) after too many."""
        try:
            target = os.readlink(name, dir_fd=self.parent)
        except OSError:
            return None
        self._links += 1
        if self._links > _MOST_LINKS:
            raise WasiError(Errno.LOOP)
        return target

    def _climb(self) -> None:
        if not self._names:
            raise WasiError(Errno.PERM)
        names = self._names[:-1]
        self.close()
        self._names = []
        for name in names:
            fd = os.open(name, _STEP, dir_fd=self.parent)
            self.close()
            self.parent = fd
            self._names.append(name)
