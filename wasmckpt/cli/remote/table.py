"""The commands that an agent can be asked for, and where they are."""

from __future__ import annotations

from typing import Final

__all__ = ["REMOTE"]

REMOTE: Final = {
    "ps": ("jobs", "list jobs"),
    "run": ("run", "upload a program and run it there"),
    "wait": ("jobs", "wait until a job has ended"),
    "logs": ("logs", "show what a job has written"),
    "events": ("logs", "show what has happened"),
    "checkpoint": ("images", "take an image of a job"),
    "checkpoints": ("images", "list the images of a job"),
    "download": ("images", "fetch an image as a file"),
    "upload": ("images", "give an image to a job"),
    "restore": ("images", "let a job go on from one of its images"),
    "hibernate": ("jobs", "put a job away as an image, without a process"),
    "wake": ("jobs", "let a hibernated job go on"),
    "migrate": ("moving", "move a job to another agent and runtime, while it runs"),
    "migrations": ("moving", "list the moves of a job"),
    "neighbours": ("neighbours", "list agents that look after a job, or jobs that this one looks after"),
    "takeover": ("neighbours", "let another agent's job go on here, since that agent is gone"),
    "stop": ("jobs", "end a job, at once or with an image"),
    "start": ("jobs", "start a job that has ended from its beginning"),
    "rm": ("jobs", "forget a job, its output and its images"),
    "modules": ("modules", "list the programs that were uploaded"),
    "node": ("node", "show the machine"),
    "drain": ("node", "freeze all jobs, and start no more"),
    "undrain": ("node", "end a drain"),
}
"""Name -> file, and what it does."""
