"""``python -m tests.real [NAME ...]``: checks and measures programs, writes what ``docs/compatibility.md`` shows."""

from __future__ import annotations

import argparse
import os
import sys

from wasmckpt import runtimes

from ..support.toolchain import Unavailable
from .figures import ORDER, load, measure, store
from .programs import PROGRAMS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real", description="Measures real programs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--runtimes", default=",".join(ORDER), help="that they are moved between, as far as they can")
    parser.add_argument("--moves", type=int, help="default: through all ordered pairs of these")
    options = parser.parse_args()
    words = next(filter(None, map(runtimes.loader, runtimes.available())), ())
    if words and not os.path.samefile("/proc/self/exe", words[0]):  # see tests/conftest.py
        os.execv(words[0], [*words, sys.executable, "-m", "tests.real", *sys.argv[1:]])
    failed = 0
    for one in PROGRAMS:
        if options.names and one.name not in options.names:
            continue
        engines = [name for name in options.runtimes.split(",")
                   if name in runtimes.available() and name not in one.refused and name not in one.left_out]
        try:
            row = measure(one, engines, options.moves)
        except (Unavailable, AssertionError) as problem:
            print(f"{one.name}: {str(problem)[:2000]}", file=sys.stderr)
            failed += 1
            continue
        print(one.name, row, flush=True)
        store({**load(), one.name: row})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
