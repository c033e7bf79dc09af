"""Durations, sizes, folders, variables."""

from __future__ import annotations

import click
import pytest

from wasmckpt.cli.output import amount, duration
from wasmckpt.cli.params import DIRECTORY, DURATION, ENVIRONMENT, RUNTIME, SIZE, Grant


@pytest.mark.parametrize(("text", "seconds"), [
    ("300ms", 0.3), ("2s", 2.0), ("1m", 60.0), ("1.5h", 5400.0), ("10us", 1e-5), ("7ns", 7e-9), ("0s", 0.0),
])
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "s", "-1s", "1 s", "1d", "nan", "1e3s", "١s", "400000h", "9" * 400 + "s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(("text", "size"), [("64k", 65536), ("8M", 8 << 20), ("512MiB", 1 << 29), ("65536", 65536)])
def test_sizes(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "1", "1G", "5G", "-1k", "8T", "M", "9" * 5000])
def test_no_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(("text", "grant"), [
    ("/a", Grant("/a", "/a", False)), ("/a::/b", Grant("/a", "/b", False)), ("/a::/b::ro", Grant("/a", "/b", True)),
    ("/a::ro", Grant("/a", "/a", True)), (".", Grant(".", ".", False)), ("c:/d::e", Grant("c:/d", "e", False)),
])
def test_folders(text: str, grant: Grant) -> None:
    assert DIRECTORY.convert(text, None, None) == grant


@pytest.mark.parametrize("text", ["", "::", "::/b", "/a::", "::ro"])
def test_no_folders(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DIRECTORY.convert(text, None, None)


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "value")
    assert ENVIRONMENT.convert("A=b=c", None, None) == ("A", "b=c")
    assert ENVIRONMENT.convert("A=", None, None) == ("A", "")
    assert ENVIRONMENT.convert("HERE", None, None) == ("HERE", "value")
    for text in ("", "=x", "NOT_HERE"):
        with pytest.raises(click.BadParameter):
            ENVIRONMENT.convert(text, None, None)


def test_runtimes() -> None:
    assert RUNTIME.convert("wasm3", None, None) == "wasm3"
    with pytest.raises(click.BadParameter, match="wasmtime"):
        RUNTIME.convert("other", None, None)


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 ns"), (2.5e-7, "250 ns"), (1.5e-5, "15 us"), (0.0123, "12.3 ms"), (1.0, "1 s"), (123.4, "123 s"),
])
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (1023 << 10, "1023 KiB"),
    (3 << 29, "1.5 GiB"), (1 << 42, "4096 GiB"),
])
def test_amounts_for_people(size: int, text: str) -> None:
    assert amount(size) == text
