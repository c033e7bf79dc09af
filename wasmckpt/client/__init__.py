"""Typed clients of agents, for orchestrators: `AgentClient`, and `AsyncAgentClient` for asyncio.

    >>> from wasmckpt.client import AgentClient
    >>> with AgentClient.local() as agent:                       # doctest: +SKIP
    ...     module = agent.upload("nbody.wasm")
    ...     job = agent.create(JobSpec(module=module.sha256, args=["nbody", "5000000"]))
    ...     print(agent.wait(job.name).exit_code, agent.output(job.name))

`Fleet` is several agents as one: it finds a job wherever it is, chooses where a new one goes, and follows what happens
at all of them.

Both clients have the same methods, made of the same requests (`requests`). What the agent answers with a problem is
raised as the class of `wasmckpt.errors` that it names. An agent that cannot be reached, or does not answer in time, is
`RetryLater`.
"""

from .aio import AsyncAgentClient
from .fleet import Fleet, Happening, Placed, Placement, least_loaded
from .sync import AgentClient
from .where import Where

__all__ = [
    "AgentClient", "AsyncAgentClient", "Fleet", "Happening", "Placed", "Placement", "Where", "least_loaded",
]
