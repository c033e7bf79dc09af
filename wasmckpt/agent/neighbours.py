"""Agents that look after each other's jobs: leases for those that are this one's, take-overs of those that were not.

`wasmckpt.supervise.lease` says who may run a job, `replicas` has this agent's own votes, and a `Link` to each other
agent asks for theirs and brings it the newest images. This module carries out what follows from that:

- A job that has neighbours is started only while most of its voters have promised to vote for nobody else, and its
  worker has that time as a deadline of the kernel's. Some time before it would come the job is frozen instead, so that
  nothing is lost; it goes on when the promises are back.
- When nothing is promised to anybody about a job that is kept here, this agent asks for votes; with most of them the
  job is its own, and goes on from its newest image.
- When another agent is said to own a job, this one lets go of it.

The fencing token of all this is the *term*, which rises with each change of the owner: by votes, and by a move, with
which the owner gives it away. A job's ``epoch``, the token of moves, rises with each attempt at one as well; that of a
job that was taken over is larger than any that an earlier owner can have given.

Two threads: one puts off deadlines, freezes, starts and lets go, and never waits for others; what has to ask them
(whether they would look after a job, for votes) is the business of the second one, and of the links.

With fewer than three voters nobody can take over by itself (neither can tell a dead machine from a cut cable), so no
promises are needed.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from ..api import ENDED, Candidacy, Entrusted, Inquiry, JobSpec, Neighbour, Promise, Replica, State, Vote
from ..errors import CheckpointError, Conflict, NotFound, NotSupported, RetryLater, RuntimeMissing, UsageError
from ..faults import point
from ..lazydata import dataclass, replace
from ..runtimes import absent, available
from ..supervise import Tenure, others
from .link import NEIGHBOURS, Link
from .peer import Peer, tell
from .records import Record
from .replicas import Kept, now
from .takeover import let_go, take_over

if TYPE_CHECKING:
    from .service import Agent

__all__ = ["Neighbours", "Seen"]

_TURNS: Final = 5
"""In the time that a promise lasts: how often each one is asked for."""
_FREEZE_AT: Final = 0.4
"""Part of that time that is left when a job is frozen, since no more promises come."""
_FREEZE_NEW_AT: Final = 0.15
_START_AT: Final = 0.5
"""Part of it that has to be left for a job to be started."""
_HANDED: Final = 0.45
"""Part of it that an owner has to have left when it gives a job away by a move."""
_FEWEST: Final = 3
"""Voters among which somebody can take over."""
_EVERYWHERE: Final = ("0.0.0.0", "::")
_AWAY: Final = (State.MOVED, State.ARRIVING)


@dataclass(frozen=True, slots=True)
class Seen:
    """A neighbour when it was last asked about a job: what it answered and when, or why it did not (``silent``), and
    why it does not keep what it should (``problem``)."""

    promise: Promise | None = None
    heard: float | None = None
    silent: str = ""
    problem: str = ""


class Neighbours:
    """Of one agent, which others reach at ``url``; None: they do not."""

    def __init__(self, agent: Agent, url: str | None) -> None:
        self.agent, self.url = agent, None if url is None else url.rstrip("/")
        self.duration = agent.config.lease
        self._lock = threading.Lock()
        self._tenures: dict[str, Tenure] = {}
        self._inherited: dict[str, float] = {}
        """Until when the promises to the one that a job came from hold, at least."""
        self._seen: dict[tuple[str, str], Seen] = {}
        self._links: dict[str, Link] = {}
        self._candidate_at: dict[str, float] = {}
        self._overtaken: dict[str, int] = {}
        """Of jobs of this agent: a term for which a voter has voted for somebody else."""
        self._lost: dict[str, tuple[int, str]] = {}
        self._over = threading.Event()
        self._wake = threading.Event()
        self._freezing: set[str] = set()
        self._told: dict[str, set[str]] = {}
        """Neighbours that know that a job is over."""
        self._threads: list[threading.Thread] = []
        self._standing = ThreadPoolExecutor(4, "elections")
        self._votes = ThreadPoolExecutor(16, "votes")
        agent.replicas.lost = self._is_lost
        agent.replicas.came = self.start

    def start(self) -> None:
        """If there is anything to do. Idempotent."""
        with self._lock:
            if self._threads or self._over.is_set():
                return
            if not self.agent.replicas.all() and not self.agent.records.with_neighbours():
                return
            for turn in (self._turn, self._ask_turn):
                self._threads.append(threading.Thread(target=self._run, args=(turn,), name="neighbours", daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Nothing is begun any more; images that are on their way get some time. Idempotent."""
        self._over.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(60.0)
        for link in self._links.values():
            link.close()
        self._standing.shutdown(cancel_futures=True)
        self._votes.shutdown(cancel_futures=True)

    # Making

    def check(self, spec: JobSpec) -> None:
        """Ask the neighbours of a job that is to be made. Raises `UsageError`, and what one of them refuses it with."""
        if not spec.neighbours:
            return
        if self.url is None:
            raise UsageError("this agent does not know its own address, which its neighbours need",
                             setting="advertise")
        for url in spec.neighbours:
            if url not in self._peers():
                raise UsageError("the agent's settings do not have that neighbour", url=url, setting="peers")
            if url == self.url:
                raise UsageError("an agent is not its own neighbour", url=url)
        config = self.agent.config
        if config.advertise is None and (not config.port or config.host in _EVERYWHERE):
            raise UsageError("neighbours have to find this agent at one address, also when it starts again",
                             url=self.url, setting="advertise", hint="set it, or listen on one address and port")
        self._ids(spec)

    def _ids(self, spec: JobSpec) -> dict[str, str]:
        """Of all voters, by address. Raises what one of them refuses it with."""
        assert self.url is not None
        found = {self.url: self.agent.node.id}
        for url in spec.neighbours:
            answer = tell(self.peer(url), f"{NEIGHBOURS}/ask", {
                "spec": spec.model_dump(mode="json"), "you": url,
                "others": [self.url, *(other for other in spec.neighbours if other != url)],
            }, self.duration)
            found[url] = str(answer["id"])
        return found

    def would(self, asked: Inquiry) -> None:
        """Whether this one would look after a job. Raises what it refuses it with."""
        if self.url != asked.you:
            raise UsageError("that neighbour knows itself by another address", url=asked.you, address=self.url,
                             hint="use that address, or its setting advertise")
        for url in asked.others:
            if url not in self._peers():
                raise UsageError("the settings of that neighbour do not have all of the others", url=url,
                                 setting="peers")
        self.agent.jobs.check(asked.spec.model_copy(update={"invoke": None, "arguments": []}))

    def replicas(self) -> list[Replica]:
        """Jobs of other agents that are looked after here."""
        return self.agent.replicas.infos(self.is_own, self.agent.standbys.has)

    def _peers(self) -> set[str]:
        return {url.rstrip("/") for url in self.agent.config.peers}

    def peer(self, url: str) -> Peer:
        """Another agent, as the settings have it."""
        return self.agent.departures.peer(url, None)

    # Looking

    def until(self, record: Record) -> float:
        """When the promises end by which a job may run here (`replicas.now`); infinity: it needs none."""
        if not record.spec.neighbours:
            return float("inf")
        kept = self.agent.replicas.get(record.id)
        if kept is None or kept.over or self.url not in kept.voters:
            return float("inf") if len(record.spec.neighbours) + 1 < _FEWEST else float("-inf")
        if len(kept.voters) < _FEWEST:
            return float("inf") if kept.owned else float("-inf")
        with self._lock:
            tenure = self._tenures.get(record.id)
            deadline = float("-inf") if tenure is None else tenure.deadline
            return max(deadline, self._inherited.get(record.id, deadline))

    def may_start(self, record: Record) -> bool:
        """Whether there is time enough for that."""
        if not record.spec.neighbours:  # most jobs, and all that are pending are asked about
            return True
        kept = self.agent.replicas.get(record.id)
        return self.until(record) > now() + _START_AT * (self.duration if kept is None else kept.duration)

    def check_move(self, record: Record, url: str) -> None:
        """Raises `NotSupported`: a job with neighbours moves to one of them only; `RetryLater`: the promises to this
        agent end too soon to be handed over."""
        if not record.spec.neighbours:
            return
        kept = self.agent.replicas.get(record.id)
        if kept is None or url.rstrip("/") not in kept.voters:
            raise NotSupported("a job that neighbours look after moves to one of them only", job=record.name, url=url,
                               need="one of " + ", ".join(record.spec.neighbours))
        if self.until(record) - now() < _HANDED * kept.duration:
            raise RetryLater("most of the job's neighbours do not answer", job=record.name)

    def term_for_heir(self, record: Record) -> int | None:
        """The term of the agent to which a job is moved; None: it has no neighbours."""
        kept = self.agent.replicas.get(record.id) if record.spec.neighbours else None
        return None if kept is None else kept.owned + 1

    def check_arrival(self, job: str, spec: JobSpec, term: int | None) -> None:
        """Raises `NotSupported`: a job with neighbours comes to one of them only; `Conflict`: it has a newer owner."""
        if not spec.neighbours:
            return
        kept = self.agent.replicas.get(job)
        if kept is None or kept.over or self.url not in kept.voters or term is None:
            raise NotSupported("a job that neighbours look after moves to one of them only", job=job,
                               need="one of " + ", ".join(spec.neighbours))
        if term <= kept.ballot.term:
            raise Conflict("the job has a newer owner", job=job, term=kept.ballot.term, site=kept.ballot.site)

    def gives(self, db: sqlite3.Connection, job: str) -> None:
        """A job is moved away: in the transaction that says so."""
        self.agent.replicas.owns(db, job, 0)
        with self._lock:
            self._tenures.pop(job, None)
            self._inherited.pop(job, None)

    def arrives(self, db: sqlite3.Connection, job: str, term: int | None) -> None:
        """A job that was moved here is this agent's from that term on: in the transaction that says so."""
        if term is not None and self.url is not None:
            self.agent.replicas.inherit(db, job, self.url, term)

    def infos(self, record: Record) -> list[Neighbour]:
        """Those of a job, as they were last heard of."""
        kept = self.agent.replicas.get(record.id)
        voters = {} if kept is None else kept.voters
        found = []
        for url in record.spec.neighbours if kept is None else sorted(set(voters) - {self.url}):
            with self._lock:
                seen = self._seen.get((record.id, url), Seen(problem="not asked yet"))
            found.append(Neighbour(
                url=url, id=voters.get(url, ""), number=None if seen.promise is None else seen.promise.number,
                heard=None if seen.heard is None else round(now() - seen.heard, 3),
                problem=seen.silent or seen.problem,
            ))
        return found

    def seen(self, job: str, url: str) -> Seen:
        """The same, of one."""
        with self._lock:
            return self._seen.get((job, url), Seen())

    def owned(self) -> list[tuple[Record, Kept]]:
        """Jobs with neighbours that are this agent's and have not ended."""
        found = []
        for kept in self.agent.replicas.all():
            with contextlib.suppress(NotFound):
                record = self.agent.records.get(kept.job)
                if kept.owned and record.spec.neighbours and record.state not in (*_AWAY, *ENDED):
                    found.append((record, kept))
        return found

    # What links have heard

    def heard(self, kept: Kept, url: str, promise: Promise | None, asked: float) -> None:
        """A neighbour was asked then, and has promised or not; None: it does not know the job."""
        job = kept.job
        with self._lock:
            before = self._seen.get((job, url), Seen())
            self._seen[job, url] = Seen(promise, now(), problem=before.problem)
            if promise is not None and promise.granted:
                self._tenures[job] = self._tenure(kept).granted(url, asked, kept.duration)
        if promise is None or promise.granted or promise.term <= kept.owned:
            return
        if promise.owned and promise.site != self.url:
            self._is_lost(job, promise.term, promise.site)
        else:  # it has voted for a candidate, perhaps in vain
            with self._lock:
                self._overtaken[job] = max(promise.term, self._overtaken.get(job, 0))

    def failed(self, job: str, url: str, problem: CheckpointError, *, silent: bool = False) -> None:
        """It has refused something; ``silent``: or could not be asked."""
        with self._lock:
            before = self._seen.get((job, url), Seen())
            self._seen[job, url] = replace(before, silent=str(problem)) if silent else replace(
                before, problem=str(problem))

    def well(self, job: str, url: str, promise: Promise) -> None:
        """It keeps what it should."""
        with self._lock:
            self._seen[job, url] = Seen(promise, now())

    def inherits(self, job: str, prepared: float) -> float:
        """A job has come here by a move from its owner, for which it was prepared then. That one has decided it later,
        and only because its promises held for some time more: so do they for this one, which is its heir. Gives until
        when; infinity: it has no neighbours."""
        kept = self.agent.replicas.get(job)
        if kept is None:
            return float("inf")
        with self._lock:
            until = self._inherited[job] = prepared + _HANDED * kept.duration
        self._wake.set()
        return until

    def _tenure(self, kept: Kept) -> Tenure:
        """With the lock. What was promised under an older term holds: it was promised to this site."""
        assert self.url is not None
        found = self._tenures.get(kept.job)
        if found is None or found.voters != frozenset(kept.voters):
            found = Tenure.of(self.url, kept.owned, kept.voters)
        return found if found.term == kept.owned else replace(found, term=kept.owned)

    def _is_lost(self, job: str, term: int, site: str) -> None:
        if site != self.url:
            with self._lock:
                self._lost[job] = (term, site)
            self._wake.set()

    # The threads

    def _run(self, turn: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                turn()
            except CheckpointError:  # the disk is full, say: the next turn
                pass
            except Exception as problem:  # a bug, of which the jobs shall not suffer
                self.agent.jobs.internal_error(problem)
            self._wake.wait(self.duration / _TURNS)
            self._wake.clear()

    def _turn(self) -> None:
        self._let_go()
        owned = self.agent.replicas.owned()  # those that have ended too, until all know that
        for kept in owned:
            self._own_vote(kept)
        self._link(owned)
        for record, kept in self.owned():
            self._hold(record, kept)

    def _ask_turn(self) -> None:
        for record in self.agent.records.with_neighbours():
            if record.state not in (*_AWAY, *ENDED):
                with contextlib.suppress(Conflict):  # another one's by now, as the votes have it
                    self._begin(record)
        self._go_on(self.owned())
        self._finish()
        if self.url is not None and not self.agent.jobs.draining and not self.agent.jobs.closing:
            self._take_over()

    def _begin(self, record: Record) -> None:
        """A job that is new, or lives again, gets its row."""
        kept = self.agent.replicas.get(record.id)
        if (kept is not None and not kept.over) or self.url is None:
            return
        try:
            voters = dict(kept.voters) if kept is not None else self._ids(record.spec)
            term = 1 if kept is None else kept.ballot.term + (not kept.owned)
        except CheckpointError as problem:
            for url in record.spec.neighbours:
                self.failed(record.id, url, problem, silent=True)
            return
        lasts = self.duration if kept is None else kept.duration
        self.agent.replicas.entrust(record.id, self.entrusted(record, term, voters, lasts), owned=True)
        self._wake.set()

    def entrusted(self, record: Record, term: int, voters: Mapping[str, str], lasts: float) -> Entrusted:
        """What its neighbours are given of a job."""
        assert self.url is not None
        return Entrusted(name=record.name, spec=record.spec, runtime=record.runtime, site=self.url, term=term,
                         voters=dict(voters), duration=lasts)

    def _own_vote(self, kept: Kept) -> None:
        """This agent's own promise to itself."""
        assert self.url is not None
        asked = now()
        if self.agent.replicas.renew(kept.job, self.url, kept.owned):
            with self._lock:
                self._tenures[kept.job] = self._tenure(kept).granted(self.url, asked, kept.duration)
        elif kept.ballot.term > kept.owned:
            with self._lock:
                self._overtaken.setdefault(kept.job, kept.ballot.term)

    def _go_on(self, owned: list[tuple[Record, Kept]]) -> None:
        """Be elected again where voters have voted for somebody else, who was not."""
        with self._lock:
            overtaken, self._overtaken = self._overtaken, {}
        for _, kept in owned:
            if kept.job in overtaken and len(kept.voters) >= _FEWEST:
                with contextlib.suppress(CheckpointError):
                    tenure = self._elected(kept, max(overtaken[kept.job], kept.ballot.term) + 1)
                    if tenure is not None:
                        self.agent.replicas.elected(kept.job, tenure.term)
                        with self._lock:
                            self._tenures[kept.job] = tenure

    def _link(self, owned: list[Kept]) -> None:
        """Links to all who have a vote about a job of this agent."""
        for url in {url for kept in owned for url in kept.voters if url != self.url} - self._links.keys():
            self._links[url] = Link(self, url, self.duration / _TURNS)

    def _hold(self, record: Record, kept: Kept) -> None:
        """As the promises are: a worker's deadline is put off, a job is frozen, or goes on."""
        until, jobs = self.until(record), self.agent.jobs
        left = until - now()
        runner = jobs.runner(record.id)
        if runner is not None and until < float("inf"):
            with contextlib.suppress(CheckpointError):
                runner.job.end_at(until, wait=False)
            if (left < self._latest(record.id) * kept.duration and record.state is State.RUNNING
                    and record.id not in self._freezing):
                self._freezing.add(record.id)
                jobs.soon(record, lambda: self._freeze(record.id))
        elif record.state is State.HIBERNATED and record.why == "neighbours" and self.may_start(record):
            jobs.soon(record, lambda: jobs.wake(record.id))
        elif record.state is State.PENDING and self.may_start(record):
            jobs.start_due()

    def _freeze(self, job: str) -> None:
        try:
            self.agent.jobs.freeze(job, "neighbours")
        finally:
            self._freezing.discard(job)

    def _latest(self, job: str) -> float:
        """Part of the time of a promise that is left when a job is frozen; one that has just come here has little."""
        with self._lock:
            tenure = self._tenures.get(job)
        return _FREEZE_AT if tenure is not None and tenure.deadline > float("-inf") else _FREEZE_NEW_AT

    def _let_go(self) -> None:
        """Of jobs that other agents own now."""
        with self._lock:
            lost, self._lost = self._lost, {}
        for job, (term, site) in lost.items():
            with self._lock:
                self._tenures.pop(job, None)
                self._inherited.pop(job, None)
                self._overtaken.pop(job, None)
            self._standing.submit(self._lets_go, job, term, site)

    def _lets_go(self, job: str, term: int, site: str) -> None:
        try:
            let_go(self.agent, job, term, site)
        except NotFound:
            self.agent.replicas.elected(job, 0)
        except CheckpointError:
            self._is_lost(job, term, site)  # the next turn

    def ended(self, job: str, url: str) -> None:
        """A neighbour knows that a job is over."""
        with self._lock:
            self._told.setdefault(job, set()).add(url)

    def has_heard_the_end(self, job: str, url: str) -> bool:
        """Whether it does."""
        with self._lock:
            return url in self._told.get(job, ())

    def _finish(self) -> None:
        """Jobs of which all neighbours know that they are over."""
        closing = self.agent.replicas.closing()
        with self._lock:
            self._told = {kept.job: self._told[kept.job] for kept in closing if kept.job in self._told}
            over = [kept for kept in closing if set(kept.voters) - {self.url} <= self._told.get(kept.job, set())]
        for kept in over:
            try:
                self.agent.replicas.over(kept.job, kept.owned, self.url or "")
            except Conflict:  # another one has taken it over before it has heard
                self.agent.replicas.elected(kept.job, 0)
            with self._lock:
                self._tenures.pop(kept.job, None)

    # Taking over

    def _take_over(self) -> None:
        due = {kept.job: kept for kept in self.agent.replicas.due()
               if len(kept.voters) >= _FEWEST and not self.is_own(kept.job)}
        for job in self._candidate_at.keys() - due.keys():
            del self._candidate_at[job]
        standing = []
        for job, kept in due.items():
            # Not all at the same time, or each would have the vote of itself only.
            at = self._candidate_at.setdefault(job, now() + random.random() * kept.duration / 3)
            if now() >= at:
                self._candidate_at[job] = now() + kept.duration * (0.5 + random.random())
                standing.append((job, self._standing.submit(self._stand, kept)))
        for job, stands in standing:
            try:
                stands.result()
            except CheckpointError as problem:
                self.agent.events.say(job, "neighbours", f"it could not be taken over: {problem}")

    def is_own(self, job: str) -> bool:
        """Whether a job is at this agent."""
        try:
            return self.agent.records.get(job).state not in _AWAY
        except NotFound:
            return False

    def _stand(self, kept: Kept) -> None:
        """Ask for votes, and take the job over if there are enough."""
        tenure = self._elected(kept, kept.ballot.term + 1)
        if tenure is None:
            return
        point("neighbours.elected")
        with self._lock:
            self._tenures[kept.job] = tenure
        take_over(self.agent, kept, tenure.term, self.runtime_for(kept))
        self._wake.set()

    def _elected(self, kept: Kept, term: int) -> Tenure | None:
        """Be elected for a term; None: not enough have voted for that. All are asked first whether they would, so that
        nobody is disturbed in vain."""
        assert self.url is not None
        own = self.agent.node.id
        for trial in (True, False):
            tenure, asked = Tenure.of(self.url, term, kept.voters), now()
            candidacy = Candidacy(site=self.url, voter=own, term=term, newest=kept.ballot.newest, trial=trial)
            if not self.agent.replicas.vote(kept.job, candidacy).granted:
                return None
            point("neighbours.stands")
            tenure = tenure.granted(self.url, asked, kept.duration)
            votes = [self._votes.submit(self._ask_vote, kept, url, candidacy.model_copy(update={"voter": voter}))
                     for url, voter in kept.voters.items() if url != self.url]
            for vote in votes:
                url, at, granted = vote.result()
                if granted:
                    tenure = tenure.granted(url, at, kept.duration)
            if not tenure.may_run(now()):
                return None
        return tenure

    def _ask_vote(self, kept: Kept, url: str, candidacy: Candidacy) -> tuple[str, float, bool]:
        """Whom, when, and whether it votes so."""
        asked = now()
        with contextlib.suppress(CheckpointError, ValueError):
            answer = tell(self.peer(url), f"{NEIGHBOURS}/{kept.job}/vote", candidacy.model_dump(mode="json"),
                          kept.duration / 3)
            return url, asked, Vote.model_validate(answer).granted
        return url, asked, False

    def force(self, name: str) -> Record:
        """A person says that a job's owner is gone: it is this agent's, and needs nobody's vote from now on. Raises
        `NotFound`: it is not looked after here, or its image is lost; `Conflict`: it is this agent's."""
        kept = self.agent.replicas.find(name)
        if self.url is None or self.is_own(kept.job):
            raise Conflict("the job is this agent's already", job=kept.name)
        if len(kept.voters) >= _FEWEST:
            raise NotSupported("more than half of the job's agents decide who runs it", job=kept.name,
                               need=f"{len(kept.voters) // 2 + 1} of " + ", ".join(kept.voters),
                               hint="start them, or mend the network between them")
        self.agent.replicas.hand_out(kept)
        term, voters = kept.ballot.term + 1, {self.url: self.agent.node.id}
        self.agent.replicas.seize(kept.job, term, self.url, voters)
        take_over(self.agent, kept, term, self.runtime_for(kept))
        self._wake.set()
        return self.agent.records.get(kept.job)

    @staticmethod
    def runtime_for(kept: Kept) -> str:
        """The one that it ran on, or else another one that is here."""
        wanted = kept.spec.restart.runtimes
        candidates = [kept.runtime, *(others(kept.runtime, available()) if wanted == "auto" else wanted)]
        for name in candidates:
            with contextlib.suppress(UsageError, RuntimeMissing):
                if absent(name) is None:
                    return name
        return kept.runtime
