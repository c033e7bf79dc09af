"""Jobs: what one is to be, and what it is."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from .base import Document, Name, Sha256
from .problem import Problem
from .states import State

__all__ = [
    "CheckpointPolicy", "Crash", "HibernationPolicy", "JobInfo", "JobLimits", "JobSpec", "Preopen", "RestartPolicy",
    "Signal", "SpecInfo", "Stop",
]

_MODULE: Final = "d3d1bc89ecf9662dd509947aab9cbbca049b382bbf62c86f4d20b3204df1df2c"
_MOST: Final = 1000
"""Arguments, variables, folders, labels."""
_LONGEST: Final = 1 << 17
"""Characters of an argument or a variable."""
Text = Annotated[str, Field(max_length=_LONGEST)]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Preopen(Document):
    """A folder for the program."""

    host: str = Field(description="Absolute path on the node, below one of the roots that the agent allows.",
                      min_length=1, max_length=4096)
    guest: str = Field(description="Its name in the program.", min_length=1, max_length=4096)
    read_only: bool = Field(False, description="The program may not change anything in it.")

    @field_validator("host", "guest")
    @classmethod
    def _no_nul(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("a path has no NUL")
        path.encode()
        return path


class JobLimits(Document):
    """What the job may use at most."""

    memory_bytes: int | None = Field(
        None, ge=128 << 20, le=1 << 44,
        description="Of the worker's process: the program's memory, its code, and some 75 MiB of our own. When it is "
                    "reached the program's `memory.grow` gives -1. Absent: the agent's own default.",
    )
    cpu_seconds: int | None = Field(None, ge=1, le=1 << 31, description="Processor time of one run; then it is killed.")
    open_files: int | None = Field(None, ge=64, le=1 << 20, description="Descriptors of the worker's process.")
    stack_bytes: int = Field(8 << 20, ge=64 << 10, le=512 << 20, description="The program's stack.")
    log_bytes: int = Field(64 << 20, ge=1 << 16, le=1 << 40,
                           description="Of each of its logs; when it is longer, its beginning goes.")


class CheckpointPolicy(Document):
    """When images of it are taken, without being asked for."""

    every_seconds: Annotated[float, Field(ge=0.05, le=366 * 86400)] | Literal["auto"] | None = Field(
        None, description="So many seconds after each; `auto`: as often as `overhead` allows.",
    )
    overhead: float = Field(0.035, gt=0, le=1, description="Of `auto`: the part of all time that images may cost.")
    keep: int = Field(3, ge=1, le=100_000, description="The newest so many images are kept.")
    journal: bool = Field(False, description="Keep a journal: after a crash nothing is lost and nothing comes twice.")
    journal_sync: Literal["batch", "always"] = Field("batch", description="`always`: it outlives a power cut as well.")
    accept_changed_files: bool = Field(
        False, description="Go on from an image even where files are not as they were when it was taken.")


class RestartPolicy(Document):
    """What to do when its worker dies. (A trap or an exit code is the program's own end, and no reason.)"""

    policy: Literal["on-crash", "never"] = Field(
        "on-crash", description="`on-crash`: go on from the newest image, or else from the beginning.")
    most: int = Field(5, ge=0, le=1_000_000, description="Crashes in a row, on one runtime, after which it has failed.")
    backoff_seconds: float = Field(
        0.5, ge=0, le=3600, description="Before the second attempt; twice as much before each one after it.")
    at_one_place: int = Field(
        2, ge=0, le=1_000_000, description="The runtime has crashed so often, in the same way and with no image "
                                           "between: then another one goes on. 0: never.")
    runtimes: list[Annotated[str, Field(max_length=64)]] | Literal["auto"] = Field(
        "auto", description="Which ones then, in this order; `auto`: those that are here, other kinds first.",
        examples=[["wamr", "wasm3"]])


class Crash(Document):
    """A time that the job's worker died, or could not be started."""

    at: float = Field(description="Seconds since 1970.")
    runtime: str = Field(examples=["wasmtime"])
    how: str = Field(description="The signal's name; `status N`: it ended by itself; `unable`: that runtime cannot run "
                                 "the program; or the kind of error that kept it from starting.", examples=["SIGSEGV"])
    image: int | None = Field(description="Number of the job's newest image then.")


class HibernationPolicy(Document):
    """When it is put away as an image, without a process, by itself."""

    after_idle_seconds: float | None = Field(
        None, ge=0.05, le=366 * 86400, description="It has waited so long, for input or for a time.")
    wake_after_seconds: float | None = Field(
        None, ge=0.05, le=366 * 86400, description="It goes on by itself after so long.")


class JobSpec(Document):
    """A program, and how it is to run."""

    name: Name | None = Field(None, description="Of its own on this agent; absent: the agent makes one.")
    module: Sha256 = Field(description="SHA-256 of a module that was uploaded.", examples=[_MODULE])
    runtime: str = Field("wasmtime", max_length=64, examples=["wasmtime", "wasm3"],
                         description="Which runtime runs it.")
    args: list[Text] = Field([], max_length=_MOST, description="`argv`, the program's name first.",
                             examples=[["nbody", "5000000"]])
    env: dict[Text, Text] = Field({}, max_length=_MOST, description="Environment variables; values are not shown.")
    invoke: str | None = Field(None, max_length=_LONGEST, description="An export to call; absent: `_start`.")
    arguments: list[Text] = Field([], max_length=_MOST, description="Of that export: numbers of its types.")
    preopens: list[Preopen] = Field([], max_length=_MOST, description="Folders, in this order.")
    random_seed: int | None = Field(None, ge=0, lt=1 << 63, description="The same random numbers each time.")
    canonical_nans: bool = Field(False, description="NaNs of its arithmetic are the same on all processors.")
    limits: JobLimits = JobLimits()
    labels: dict[LabelName, LabelValue] = Field({}, max_length=64, examples=[{"app": "sim"}],
                                                description="To find it by.")
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    restart: RestartPolicy = RestartPolicy()
    hibernate: HibernationPolicy = HibernationPolicy()
    neighbours: list[Annotated[str, Field(max_length=2000, pattern=r"^https?://[^/?#\s@]+$")]] = Field(
        [], max_length=8, examples=[["https://b.example:7420", "https://c.example:7420"]],
        description="Addresses of other agents that keep its newest image in their memory. Two or more of them take it "
                    "over when this node is lost, and it runs only as long as most of all of them can be reached.")
    start: bool = Field(True, description="false: make it, stopped; images can be uploaded to it before it is started.")

    model_config = ConfigDict(json_schema_extra={"examples": [{
        "name": "j1", "module": _MODULE, "runtime": "wasmtime", "args": ["nbody", "5000000"],
        "labels": {"app": "sim"}, "checkpoint": {"every_seconds": 10, "keep": 3},
    }]})

    @field_validator("args", "arguments")
    @classmethod
    def _texts(cls, texts: list[str]) -> list[str]:
        for text in texts:
            _check_text(text)
        return texts

    @field_validator("env")
    @classmethod
    def _variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            _check_text(name)
            _check_text(value)
            if not name or "=" in name:
                raise ValueError("a variable's name is not empty and has no =")
        return env

    @field_validator("preopens")
    @classmethod
    def _distinct(cls, preopens: list[Preopen]) -> list[Preopen]:
        if len({preopen.guest for preopen in preopens}) < len(preopens):
            raise ValueError("two folders have one name in the program")
        return preopens

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if self.neighbours and self.checkpoint.journal:
            raise ValueError("a job with a journal has no neighbours: what follows its images is on this node alone")
        if len(set(self.neighbours)) < len(self.neighbours):
            raise ValueError("a neighbour is named twice")
        if self.arguments and self.invoke is None:
            raise ValueError("arguments without invoke; a program's own are args")
        return self


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("a text for a program has no NUL")
    text.encode()  # a lone surrogate has no bytes


class SpecInfo(Document):
    """As `JobSpec`, but of environment variables the names only."""

    name: str
    module: str
    runtime: str = Field(description="Which one it was made with.")
    args: list[str]
    env_names: list[str]
    invoke: str | None
    arguments: list[str]
    preopens: list[Preopen]
    random_seed: int | None
    canonical_nans: bool
    limits: JobLimits
    checkpoint: CheckpointPolicy
    restart: RestartPolicy
    hibernate: HibernationPolicy
    neighbours: list[str]


class JobInfo(Document):
    """A job as it is now."""

    id: str = Field(description="Of this job and no other, anywhere.", examples=["6f1c0e5a9f0b4f4c8f5b0a9be0a4f5c1"])
    name: str = Field(description="On this agent.", examples=["j1"])
    state: State
    why: str = Field("", description="Why it is in that state, for people.", examples=["", "drain"])
    runtime: str = Field(description="On which it runs, or is to.")
    labels: dict[str, str]
    created: float = Field(description="Seconds since 1970.")
    changed: float = Field(description="When it came into its state; seconds since 1970.")
    exit_code: int | None = Field(description="Of a program that has ended: its own, or 134 if it trapped.")
    results: list[str] = Field(description="Of an export that was called.")
    problem: Problem | None = Field(description="Why it failed.")
    runs: int = Field(description="Workers that it has had.")
    restarts: int = Field(description="Crashes in a row, on this runtime.")
    crashes: list[Crash] = Field(description="Since it was last well: the newest fifty.")
    checkpoint: int | None = Field(description="Number of its newest image.")
    epoch: int = Field(description="Rises with each change of the agent that owns it.")
    pid: int | None = Field(description="Process id of its worker.")
    wake_at: float | None = Field(description="When a hibernated one goes on by itself; seconds since 1970.")
    spec: SpecInfo


class Signal(Document):
    """Something that a job is to do, for which nobody waits."""

    signal: Literal["checkpoint", "hibernate", "wake"] = Field(description="What.", examples=["checkpoint"])


class Stop(Document):
    """How to stop a job."""

    checkpoint: bool = Field(False, description="With an image, from which it can go on; else it is killed.",
                             examples=[True])
