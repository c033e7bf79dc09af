"""``make demo``: a real C program starts on wasmtime, is frozen in the middle of its loops, and finishes on Wasm3.

Runs the commands that it prints, as a user would type them; ends with 1 if the output differs from an undisturbed run.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

__all__ = ["main"]

MODULE: Final = Path("build/samples/nbody.wasm")
STEPS: Final = "5000000"
_TRIES: Final = ("250ms", "60ms", "15ms", "3ms")
"""How long it runs before it is frozen; the next one where a fast machine was done by then."""


def main(module: Path = MODULE, steps: str = STEPS) -> int:
    """The demonstration. Gives the exit code."""
    if not module.exists():
        print(f"demo: {module} is missing; make demo builds it", file=sys.stderr)
        return 1
    name = str(module)
    with tempfile.TemporaryDirectory(prefix="wasmckpt-demo-") as folder:
        image = str(Path(folder) / "nbody.wckpt")
        _say("1. The planets of the sun, a C program, undisturbed on wasmtime (a compiler)")
        whole = _run(["run", "--runtime", "wasmtime", name, steps])
        _say("2. Again, but frozen in the middle: its frames, values and memory become a small file")
        for after in _TRIES:
            first = _run(
                ["run", "--runtime", "wasmtime", "--checkpoint-after", after, "--stop", "-o", image, name, steps]
            )
            if Path(image).exists():
                break
            _say("   (this machine was done before that; sooner, then)")
        else:
            print("demo: the program always ended before it could be frozen", file=sys.stderr)
            return 1
        _say("3. What the file holds: every frame, by function and offset of the original module, typed values")
        _run(["inspect", "--pages", "--module", name, image])
        _say("4. It goes on from there on Wasm3 (a small interpreter, another kind of machine)")
        second = _run(["restore", "--runtime", "wasm3", "--module", name, image])
        _say("5. Both outputs, byte for byte")
        if first + second != whole:
            print(f"DIFFERENT: undisturbed {whole!r}, frozen and resumed {first + second!r}")
            return 1
        print(f"identical: {len(whole)} bytes, {len(first)} of them from wasmtime, {len(second)} from Wasm3")
    return 0


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _run(arguments: list[str]) -> bytes:
    """Run one command, show it and its output; gives its standard output. Ends the demonstration if it fails."""
    print("$ wasmckpt " + shlex.join(arguments), flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "wasmckpt.cli", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        check=False,
    )
    sys.stdout.flush()
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    if done.returncode:
        print(f"demo: the command ended with {done.returncode}", file=sys.stderr)
        raise SystemExit(1)
    print(f"   ({time.monotonic() - began:.1f} s)", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
