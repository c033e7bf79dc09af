"""``python -m benchmarks [SUITE ...] [--quick] [--runtimes A,B] [--write-docs] [--list]``

Without a suite all are run, each in a process of its own. Full runs keep their results in ``benchmarks/results``, those
on runtimes that were asked for beside the usual ones', and make docs/benchmarks.md anew; ``--write-docs`` alone makes
it from what is kept. Exit code 1: something failed (a missed goal is no failure).
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from typing import Final

from wasmckpt import runtimes

from . import docs
from .facts import facts, sentence
from .report import RESULTS, Report
from .settings import Settings

SUITES: Final = (
    "overhead-kernels", "overhead-programs", "ablation", "canonical-nans", "asyncify", "latency", "resume", "snapshot",
    "rewriting",
    "dirty", "incremental", "auto", "what-not-to-save", "journal", "storage", "floors", "rewriting-memory", "endurance",
    "copy-before-write", "pairs", "resume-large", "agent", "live-migration",
)


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures; ratios within one run.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all if none")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, two rounds: shows that it works, no figures")
    parser.add_argument("--runtimes", default="wasmtime,wasm3", metavar="A,B", help="runtimes to measure")
    parser.add_argument("--write-docs", action="store_true", help="make docs/benchmarks.md from the kept results")
    parser.add_argument("--list", action="store_true", help="list the suites")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.suites if name not in SUITES]:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    if options.list:
        for name in SUITES:
            print(f"{name:18} {(suite_module(name).__doc__ or '').splitlines()[0]}")
        return 0
    status = 0
    if options.suites or not options.write_docs:
        if len(options.suites) == 1:
            settings = Settings(options.quick, tuple(options.runtimes.split(",")))
            if argv is None:
                _enter(settings)
            status = one(options.suites[0], settings)
        else:
            status = all_of(options.suites or list(SUITES), argv if argv is not None else sys.argv[1:])
    if options.write_docs:
        print(docs.write(SUITES))
    return status


def _enter(settings: Settings) -> None:
    """Begin anew in a process that can load the runtimes, where one brings a C library of its own."""
    words = next(filter(None, map(runtimes.loader, settings.names)), ())
    if words and not os.path.samefile("/proc/self/exe", words[0]):
        os.execv(words[0], [*words, sys.executable, "-m", __package__ or "", *sys.argv[1:]])


def suite_module(name: str) -> object:
    """The module of a suite."""
    return importlib.import_module(f"{__package__}.suites.{name.replace('-', '_')}")


def one(name: str, settings: Settings) -> int:
    """Run one suite here, print it and, if it was a full run, keep it."""
    usual = settings.names == Settings().names
    report = Report(name, settings.quick, facts(), () if usual else settings.names)
    print(f"# {name}\n\n{sentence(report.facts)}\n", flush=True)
    with report.kept(name):
        suite_module(name).run(settings, report)  # type: ignore[attr-defined]
    print(report.markdown() + "\n", flush=True)
    if not settings.quick:
        report.save(RESULTS)
        docs.write(SUITES)
    return 1 if report.failures else 0


def all_of(names: list[str], argv: list[str]) -> int:
    """Run several suites, each in its own process: a crash takes down one of them, and memory starts afresh."""
    passed_on = [word for word in argv if word not in SUITES and word != "--write-docs"]
    failed = []
    for name in names:
        done = subprocess.run([sys.executable, "-m", __package__, name, *passed_on], check=False)
        if done.returncode:
            failed.append(f"{name} ({done.returncode})")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
