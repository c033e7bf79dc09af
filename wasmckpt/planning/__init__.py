"""How often to take a checkpoint, where to keep it, and what that costs: arithmetic, with no program in sight.

One model is behind everything. A job computes for ``interval`` seconds, takes a checkpoint that costs ``checkpoint``
seconds, and so on. Failures come at random, ``1 / mtbf`` a second for all nodes together; each costs ``restart``
seconds, may strike again meanwhile, and throws the job back to its last checkpoint. The **useful fraction** is work
done over time passed.

    intervals   the best interval: Young, Daly, and without approximation; the useful fraction, also in the form of ETTR
    simulation  the same job with injected failures, event by event: what the formulas are checked against
    journal     longer journal or more images
    replicas    a replica in a neighbour's memory, or images on storage
    transfer    whether sending the changes hides behind the computation
    pace        the interval of a running program, from what its own checkpoints cost

All times are seconds, all rates per second, all sizes bytes. Nothing here imports the rest of the package.
"""

from __future__ import annotations

from ..lazyload import on_first_use

TYPE_CHECKING = False

__getattr__ = on_first_use(__name__, {
    **dict.fromkeys(
        ("Model", "Sense", "best_interval", "daly_interval", "ettr", "useful_fraction", "young_interval"), "intervals"
    ),
    "JournalChoice": "journal", "compare_journal": "journal", "DEFAULT_OVERHEAD": "pace", "Pace": "pace",
    "ReplicaChoice": "replicas", "compare_replicas": "replicas", "mean_time_to_loss": "replicas",
    "Simulated": "simulation", "simulate": "simulation", "Transfer": "transfer", "hide_transfer": "transfer",
})

__all__ = [
    "DEFAULT_OVERHEAD", "JournalChoice", "Model", "Pace", "ReplicaChoice", "Sense", "Simulated", "Transfer",
    "best_interval", "compare_journal", "compare_replicas", "daly_interval", "ettr", "hide_transfer",
    "mean_time_to_loss", "simulate", "useful_fraction", "young_interval",
]

if TYPE_CHECKING:
    from .intervals import Model, Sense, best_interval, daly_interval, ettr, useful_fraction, young_interval
    from .journal import JournalChoice, compare_journal
    from .pace import DEFAULT_OVERHEAD, Pace
    from .replicas import ReplicaChoice, compare_replicas, mean_time_to_loss
    from .simulation import Simulated, simulate
    from .transfer import Transfer, hide_transfer
