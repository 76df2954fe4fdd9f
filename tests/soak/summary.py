"""The last page of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from tests.soak import recovery
from tests.soak.checker import Verdict
from tests.soak.cluster import Cluster
from tests.soak.evidence import Evidence
from tests.soak.faults import Injector
from tests.soak.recovery import Watch

MAX_COMPLAINTS = 40


def print_summary(
    say: Callable[[str], None],
    verdict: Verdict,
    evidence: Evidence,
    cluster: Cluster,
    injector: Injector,
    watch: Watch,
    seconds: float,
) -> bool:
    """Whether the run was clean."""
    surprises = [
        f"{end.name} ended by itself with status {end.status}; log: {end.log}"
        for slot in cluster.slots
        for end in slot.exits
        if end.is_surprise
    ]
    complaints = [*verdict.complaints, *evidence.problems, *injector.problems, *surprises]
    exits = Counter(
        f"{slot.name.partition('-')[0]} {end.asked.name if end.asked else 'by itself'} → {end.status}"
        for slot in cluster.slots
        for end in slot.exits
    )
    struck = f"{cluster.redis_proxy.num_struck} to Redis, {cluster.s3_proxy.num_struck} to S3"
    say("")
    say(f"{len(evidence.accepted)} jobs accepted in {seconds:.0f} s, {len(injector.done)} faults")
    say(f"faults            {_shown(Counter(fault.kind for fault, _, _ in injector.done))}")
    say(f"harmed            connections and requests: {struck}")
    say(f"ends of processes {_shown(exits)}")
    say(f"clients           {_shown(evidence.counts)}")
    say(f"jobs by status    {_shown(verdict.num_by_status)}; failed by {_shown(verdict.num_failed_by_type)}")
    say(f"jobs by attempts  {_shown(verdict.num_by_attempts)}; leased more than once: {verdict.num_redelivered}")
    say(f"audio             {verdict.num_heard} objects heard, {verdict.num_unreferenced} left by lost leases")
    say(f"without an answer {verdict.num_unanswered} records; kombu still notes {verdict.num_unacknowledged} messages")
    for line in recovery.table(watch.recoveries, {fault.at: (start, end) for fault, start, end in injector.done}):
        say(line)
    say("")
    for complaint in complaints[:MAX_COMPLAINTS]:
        say(f"COMPLAINT {complaint}")
    if len(complaints) > MAX_COMPLAINTS:
        say(f"… and {len(complaints) - MAX_COMPLAINTS} more")
    say(f"verdict: {'clean' if not complaints else f'{len(complaints)} complaints'}")
    return not complaints


def _shown(counts: Mapping[str, int] | Mapping[int, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items(), key=str)) or "none"
