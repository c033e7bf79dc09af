"""A backend that stops a program again and again, writes an image, reads it, and goes on in a fresh instance.

Only where an instance shares nothing with others: what it imports are functions of "spectest".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from wasmckpt.errors import NotSupported
from wasmckpt.formats.codec import decode as read_image
from wasmckpt.formats.codec import encode as write_image
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, Module

from ..support.interpreter import START, Import, Machine
from ..support.interpreter.spectest import ReferenceBackend, ReferenceInstance
from ..support.spec import SpecInstance

__all__ = ["Places", "ResumingBackend", "ResumingInstance"]


Places = Literal["instructions", "safepoints"]

CLOSE: Final = 10
DEPTH: Final = 250
"""Frames: an image of a thousand at each of a thousand steps takes for ever."""


class ResumingInstance(ReferenceInstance):
    """An instance that moves: after each instruction, or at each safepoint.

    Long runs would take for ever: after every `CLOSE` moves within one call, the distance to the next grows by one.
    Where an image cannot hold what there is (references), it goes on unmoved.
    """

    def __init__(self, machine: Machine, module: Module, imports: Mapping[tuple[str, str], Import], at: Places) -> None:
        super().__init__(machine)
        self.module = module
        self.imports = imports
        self.at: Places = at
        self.moves = 0
        self.unmoved = 0

    def run(self) -> None:
        first = self.moves + self.unmoved
        while self._run_on(1 + (self.moves + self.unmoved - first) // CLOSE) == "stopped":
            try:
                image = self.machine.image()
            except NotSupported:
                self.unmoved += 1
                continue
            image = read_image(write_image(image))
            self.machine = Machine.from_image(self.module, image, self.imports, max_depth=DEPTH)
            assert self.machine.image() == image, "an image, resumed and taken again, is the same image"
            self.moves += 1

    def _run_on(self, distance: int) -> str:
        if self.at == "instructions":
            return self.machine.run(distance)
        return self.machine.run(stop_at_safepoint=self.machine.safepoints + distance)


class ResumingBackend:
    """Makes instances that move; ``moves`` counts how often they did."""

    def __init__(self, at: Places) -> None:
        self.at: Places = at
        self.spectest = ReferenceBackend().spectest
        self.made: list[ResumingInstance] = []

    @property
    def moves(self) -> int:
        return sum(instance.moves for instance in self.made)

    @property
    def unmoved(self) -> int:
        """How often an image could not hold what there was."""
        return sum(instance.unmoved for instance in self.made)

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> ResumingInstance:
        module = decode(wasm)
        imports: dict[tuple[str, str], Import] = {}
        for item in module.imports:
            if item.module != "spectest" or item.kind not in (ExternKind.FUNC, ExternKind.GLOBAL):
                raise NotSupported("an instance that shares state with others", need="one instance")
            if item.name in self.spectest:
                imports[item.module, item.name] = self.spectest[item.name]
        machine = Machine(module, imports, max_depth=DEPTH)
        made = ResumingInstance(machine, module, imports, self.at)
        self.made.append(made)
        if module.start is not None:
            machine.begin([START])
            made.run()
        return made
