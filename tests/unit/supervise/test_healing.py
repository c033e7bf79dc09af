"""What is decided after crashes, as a table; whatever the attempts are, it comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.supervise import UNABLE, Again, Attempt, GiveUp, Policy, after_crash, others

HERE = ["wasmtime", "wasmer", "wamr", "wasmedge", "wasmedge-aot", "wasm3"]
POLICY = Policy(5, 2, 0.5, ["wamr", "wasm3"])


def _attempts(text: str) -> list[Attempt]:
    """``runtime how image``, one after the other."""
    found = []
    for n, line in enumerate(text.split(",")):
        runtime, how, image = line.split()
        found.append(Attempt(float(n), runtime, how, None if image == "-" else int(image)))
    return found


@pytest.mark.parametrize(("attempts", "before", "decision"), [
    # the first one may be chance, at once; then with pauses that grow, up to a minute
    ("wasmtime SIGSEGV -", 0, Again("wasmtime", 0.0, 1)),
    ("wasmtime SIGKILL 3,wasmtime SIGKILL 3", 1, Again("wasmtime", 0.5, 2)),
    ("wasmtime SIGKILL 3,wasmtime SIGKILL 3,wasmtime SIGKILL 3", 2, Again("wasmtime", 1.0, 3)),
    ("wasmtime StorageError 3,wasmtime StorageError 3", 1, Again("wasmtime", 0.5, 2)),
    # the same place: another runtime
    ("wasmtime SIGSEGV 3,wasmtime SIGSEGV 3", 1, Again("wamr", 0.0, 0, "wasmtime")),
    ("wasmtime SIGSEGV -,wasmtime SIGSEGV -", 1, Again("wamr", 0.0, 0, "wasmtime")),
    ("wasmtime status 3,wasmtime SIGSEGV 3".replace("status 3", "status_1 3"), 1, Again("wasmtime", 0.5, 2)),
    # not the same: another image, another signal, another runtime
    ("wasmtime SIGSEGV 3,wasmtime SIGSEGV 4", 1, Again("wasmtime", 0.5, 2)),
    ("wasmtime SIGSEGV 3,wasmtime SIGBUS 3", 1, Again("wasmtime", 0.5, 2)),
    ("wasmtime SIGSEGV 3,wasmtime SIGSEGV 3,wamr SIGSEGV 3", 0, Again("wamr", 0.0, 1)),
    # one that cannot run it is passed over, and nothing is learnt of it
    (f"wasmtime SIGSEGV 3,wasmtime SIGSEGV 3,wamr {UNABLE} 3", 0, Again("wasm3", 0.0, 0)),
    # no other is left
    ("wasmtime SIGABRT 3,wasmtime SIGABRT 3,wamr SIGSEGV 3,wamr SIGSEGV 3,wasm3 SIGBUS 3,wasm3 SIGBUS 3", 1,
     GiveUp("no runtime gets past that place: wasmtime (SIGABRT), wamr (SIGSEGV), wasm3 (SIGBUS)", "wasm3")),
    (f"wasmtime SIGABRT 3,wasmtime SIGABRT 3,wamr SIGSEGV 3,wamr SIGSEGV 3,wasm3 {UNABLE} 3", 0,
     GiveUp("no runtime gets past that place: wasmtime (SIGABRT), wamr (SIGSEGV), wasm3 (cannot run it)")),
    # too often
    ("wasmtime SIGKILL 3", 5, GiveUp("it has crashed 6 times in a row")),
    ("wasmtime SIGKILL 3", 4, Again("wasmtime", 4.0, 5)),
])
def test_what_is_decided(attempts: str, before: int, decision: Again | GiveUp) -> None:
    assert after_crash(_attempts(attempts), before, POLICY) == decision


def test_without_other_runtimes() -> None:
    """By policy, or because there are none: the same runtime is tried until it is too often."""
    twice = _attempts("wasmtime SIGSEGV 3,wasmtime SIGSEGV 3")
    for policy in (Policy(5, 2, 0.5, []), Policy(5, 0, 0.5, ["wamr"])):
        assert after_crash(twice, 1, policy) == Again("wasmtime", 0.5, 2)
        assert after_crash(twice, 5, policy) == GiveUp("it has crashed 6 times in a row")


def test_other_kinds_come_first() -> None:
    assert others("wasmtime", HERE) == ["wamr", "wasmedge", "wasm3", "wasmer"]
    assert others("wasmer", HERE) == ["wamr", "wasmedge", "wasm3", "wasmtime"]
    assert others("wasm3", HERE) == ["wasmtime", "wasmer", "wamr", "wasmedge"]
    assert others("wamr", ["wamr"]) == []


@given(st.integers(0, 6), st.integers(0, 4), st.lists(st.sampled_from(HERE), unique=True),
       st.lists(st.tuples(st.sampled_from(["SIGSEGV", "SIGKILL", UNABLE, "status 1"]), st.integers(0, 2)), min_size=80,
                max_size=80))
def test_it_comes_to_an_end(most: int, at_one_place: int, runtimes: list[str], ends: list[tuple[str, int]]) -> None:
    """No runtime is come back to, none is tried more often than the policy allows, and then it is over."""
    policy = Policy(most, at_one_place, 0.5, runtimes)
    runtime, crashes, attempts = "wasmtime", 0, list[Attempt]()
    for how, image in ends:
        attempts.append(Attempt(0.0, runtime, how, image))
        decision = after_crash(attempts, crashes, policy)
        if isinstance(decision, GiveUp):
            break
        assert decision.runtime == runtime or decision.runtime not in {one.runtime for one in attempts}
        assert decision.crashes <= most
        assert 0 <= decision.pause <= 60
        runtime, crashes = decision.runtime, decision.crashes
    else:
        raise AssertionError("it goes on for ever")
    assert len(attempts) <= (most + 1) * (len(runtimes) + 1)
