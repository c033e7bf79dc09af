"""For Prometheus: what the agent has and has done, in its text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .service import Agent

__all__ = ["CONTENT_TYPE", "metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_COUNTERS: Final = {
    "starts": ("wasmckpt_job_starts", "Workers that were started."),
    "exits": ("wasmckpt_job_exits", "Programs that ended by themselves."),
    "failures": ("wasmckpt_job_failures", "Jobs that have failed."),
    "crashes": ("wasmckpt_job_crashes", "Workers that died, or could not be started."),
    "checkpoints": ("wasmckpt_checkpoints", "Images taken."),
    "failed checkpoints": ("wasmckpt_checkpoint_failures", "Images that could not be taken."),
    "take-overs": ("wasmckpt_take_overs", "Jobs of other agents that go on here since those were lost."),
    "internal errors": ("wasmckpt_internal_errors", "Errors of the agent itself."),
}


class _Collector(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        agent = self._agent
        jobs = GaugeMetricFamily("wasmckpt_jobs", "Jobs in each state.", labels=["state"])
        for state, number in agent.records.counts().items():
            jobs.add_metric([state], number)
        yield jobs
        for name, (metric, text) in _COUNTERS.items():
            yield CounterMetricFamily(metric, text, value=agent.jobs.counts[name])
        yield CounterMetricFamily("wasmckpt_stopped_seconds", "Time that programs stood still for their images.",
                                  value=agent.jobs.counts["stopped ns"] / 1e9)
        warm, afresh = agent.node.stand_by.counts()
        workers = CounterMetricFamily("wasmckpt_workers", "Worker processes, forked from one that stood by or started "
                                      "afresh.", labels=["from"])
        workers.add_metric(["standing by"], warm)
        workers.add_metric(["afresh"], afresh)
        yield workers
        yield GaugeMetricFamily("wasmckpt_draining", "1: no job is started.", value=int(agent.jobs.draining))
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(agent.config.state))
        yield GaugeMetricFamily("wasmckpt_node_memory_available_bytes", "Of the machine.", value=memory.available)
        yield GaugeMetricFamily("wasmckpt_node_memory_total_bytes", "Of the machine.", value=memory.total)
        yield GaugeMetricFamily("wasmckpt_node_disk_free_bytes", "Where the agent's state is.", value=disk.free)
        yield GaugeMetricFamily("wasmckpt_node_load1", "Of the last minute.", value=psutil.getloadavg()[0])


def metrics(agent: Agent) -> bytes:
    """As they are now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(agent))
    return generate_latest(registry)
