"""``wasmckpt plan``: the numbers of `wasmckpt.planning`, read from a command line, said to people and to programs."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.planning import Model, best_interval, simulate, useful_fraction

from .conftest import Cli
from .test_json import check

JOURNAL = ("--journal-cost", "1%", "--replay-speed", "4", "--journal-rate", "10kB/s")
REPLICA = ("--image-size", "1GiB", "--memory-checkpoint", "2ms", "--memory-restore", "50ms")
TRANSFER = ("--step", "1s", "--changes", "1GB", "--bandwidth", "10Gbit/s")


def planned(cli: Cli, *arguments: str) -> Any:
    done = cli("plan", *arguments, "--json")
    assert done.code == 0, done.err
    return check("plan", done.out)


def test_the_numbers_are_those_of_the_library(cli: Cli) -> None:
    """Units are read as they are meant; the best interval, a given one, and the simulation with its seed."""
    found = planned(cli, *"--nodes 200 --mtbf 50d --checkpoint 1.5s --restore 2m --interval 1h".split(),
                    *"--simulate --failures 3000 --seed 5".split())
    model = Model(200, 50 * 86400.0, 1.5, 120.0)
    best = best_interval(1.5, model.system_mtbf)
    assert found["best"] == {"interval": best, "useful": useful_fraction(model, best)}
    assert found["given"] == {"interval": 3600.0, "useful": useful_fraction(model, 3600.0)}
    assert found["simulation"]["useful"] == simulate(model, 3600.0, failures=3000, seed=5).fraction
    assert found["simulation"]["useful"] == pytest.approx(found["given"]["useful"], abs=0.01)
    assert planned(cli, "--failure-rate", "4/y")["node_mtbf"] == pytest.approx(365.25 * 86400 / 4)


def test_all_questions_at_once(cli: Cli) -> None:
    found = planned(cli, "--nodes", "1000", "--checkpoint", "3s", "--restore", "1m", *JOURNAL, *REPLICA, *TRANSFER)
    assert found["journal"]["longer_journal"] is (found["journal"]["break_even_cost"] > 0.01)
    assert found["journal"]["size"] == pytest.approx(found["journal"]["interval"] * 10_000)
    assert found["replica"]["memory"]["useful"] > found["replica"]["storage"]["useful"]
    assert found["transfer"] == {
        "free": True, "ratio": 1.25, "sending": 0.8, "slowdown": 1.0, "largest_changes": 1.25e9, "least_bandwidth": 1e9,
    }
    plain = planned(cli)
    assert plain["journal"] is plain["replica"] is plain["transfer"] is plain["simulation"] is plain["given"] is None


def test_for_people(cli: Cli) -> None:
    """Every answer has a line; where the approximations fail it is said, and elsewhere it is not."""
    options = "--nodes 100 --interval 1m --simulate --failures 500".split()
    good = cli("plan", *options, *JOURNAL, *REPLICA, *TRANSFER)
    assert good.code == 0
    for word in ("best", "Young", "Daly", "given", "ETTR form", "simulated", "journal", "memory/storage", "transfer",
                 "break-even"):
        assert f"\n{word}" in good.out, word
    assert "note" not in good.out
    bad = cli("plan", "--mtbf", "100s", "--checkpoint", "60s")
    assert "Young's and the ETTR form fail here" in bad.out
    assert "never gets done" in cli("plan", "--mtbf", "1s", "--checkpoint", "2h").out


@pytest.mark.parametrize("arguments", [
    "--mtbf 0s", "--mtbf -5d", "--mtbf inf", "--mtbf 5", "--mtbf 5 d", "--mtbf 5parsec", "--mtbf 1e300y",
    "--mtbf 1e-999s", "--mtbf nan", "--failure-rate 0/d", "--failure-rate 3", "--failure-rate 1e300/s",
    "--mtbf 5d --failure-rate 1/d", "--checkpoint 0s", "--restore -1s", "--nodes 0", "--nodes -3", "--nodes 1e3",
    "--nodes 99999999999999999999", "--interval 0s", "--simulate --failures 0", "--simulate --failures 999999999",
    "--simulate --nodes 500000000", "--shape 0", "--shape nan", "--journal-cost 100%", "--journal-cost -1%",
    "--journal-cost 2", "--journal-rate 5kB/s", "--longest-replay 5s", "--journal-cost 1% --replay-speed 0",
    "--journal-cost 1% --journal-rate 5kB", "--image-size 1GiB", "--image-size 1GiB --memory-restore 1s",
    "--image-size 0 --memory-checkpoint 1s --memory-restore 1s", "--step 1s", "--step 1s --changes 5MB",
    "--step 1s --changes 5Mi --bandwidth 0GB/s", "--step 1s --changes 5Qb --bandwidth 1GB/s", "--plot x.pdf",
    "--image-size 1GiB --memory-checkpoint 1s --memory-restore 1s --copies 0",
    "--image-size 1GiB --memory-checkpoint 1s --memory-restore 1s --copies 900",
    "--image-size 1GiB --memory-checkpoint 1s --memory-restore 1s --memory-price inf",
    "--image-size 1GiB --memory-checkpoint 1s --memory-restore 1s --group-share 1",
])
def test_bad_numbers(cli: Cli, arguments: str) -> None:
    """One line that says which, exit code 64, nothing written."""
    done = cli("plan", *arguments.split(" "))
    assert done.code == 64, done.out
    assert done.err.startswith("wasmckpt: error: ")
    assert not done.out
    assert not list(Path().iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan.svg", "plan.png"])
def test_the_plot(cli: Cli, name: str) -> None:
    """An image that readers take, the same each time; it shows what the text says."""
    arguments = ("plan", "--nodes", "100", "--checkpoint", "2s", "--simulate", "--failures", "200", "--plot", name)
    assert cli(*arguments).code == 0
    first = Path(name).read_bytes()
    assert cli(*arguments).code == 0
    assert Path(name).read_bytes() == first
    assert [path.name for path in Path().iterdir()] == [name]
    if name.endswith(".svg"):
        text = "".join(ElementTree.fromstring(first).itertext())
        for shown in ("seconds between", "Young 1974", "Daly 2006", "ETTR form", "simulated", "100 machines"):
            assert shown in text, shown
    else:
        import matplotlib.image

        pixels = matplotlib.image.imread(name)
        assert pixels.shape[0] > 300
        assert pixels.std() > 0.05, "something is drawn"


@pytest.mark.slow
def test_a_plot_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    done = cli("plan", "--plot", "absent/plan.svg")
    assert (done.code, done.out) == (73, "")
    (tmp_path / "folder.svg").mkdir()
    assert cli("plan", "--plot", "folder.svg").code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_without_matplotlib(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra: who does not plot does not need it, who does is told what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli("plan").code == 0
    done = cli("plan", "--plot", "plan.svg")
    assert done.code == 64
    assert "wasmckpt[plot]" in done.err
    assert json.loads(cli("plan", "--json").out)["nodes"] == 1
