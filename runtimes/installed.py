"""The version of an installed distribution, cheaply: ``importlib.metadata`` costs 30 ms of imports at each start."""

from __future__ import annotations

from pathlib import Path

__all__ = ["installed_version"]


def installed_version(distribution: str, module_file: str | None) -> str:
    """Version of ``distribution``, one of whose modules lies at ``module_file``.

    Read from the name of the ``.dist-info`` folder beside the module; asked of ``importlib.metadata`` where that is not
    there. Raises `importlib.metadata.PackageNotFoundError`.
    """
    if module_file is not None:
        for folder in Path(module_file).resolve().parents[:2]:
            found = [path.name for path in folder.glob(f"{distribution}-*.dist-info")]
            if len(found) == 1:
                return found[0].removeprefix(f"{distribution}-").removesuffix(".dist-info")
    from importlib import metadata  # slow, and only here

    return metadata.version(distribution)
