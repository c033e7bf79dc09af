"""What becomes of programs whose worker, agent or machine is gone: decisions, without those who carry them out."""

from .healing import (
    UNABLE,
    Again,
    Attempt,
    Decision,
    GiveUp,
    Policy,
    after_crash,
    is_of_the_runtime,
    others,
)
from .lease import Ballot, Tenure, Version, Voter, majority
from .pressure import ALL_LEAVE, Facts, Kind, Limits, Pressure

__all__ = [
    "ALL_LEAVE", "UNABLE", "Again", "Attempt", "Ballot", "Decision", "Facts", "GiveUp", "Kind", "Limits", "Policy",
    "Pressure", "Tenure", "Version", "Voter", "after_crash", "is_of_the_runtime", "majority", "others",
]
