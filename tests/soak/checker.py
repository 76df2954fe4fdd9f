"""The judge: reads Redis and the object store itself and holds them against what clients were told.

None of the service's code is used but the rule for a text's tone; names of keys are written out here once more.
"""

from __future__ import annotations

import hashlib
import io
import json
import wave
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from redis import Redis

from tests.soak.evidence import FINAL, Accepted, Evidence
from worker.synthesizers import tone_hertz

QUEUES = ("interactive", "bulk")
ALLOWED_FAILURES = ("poison", "storage-error")
"""What a job may fail of in a soak, its attempts used up. Anything else is a fault of the service."""
READ_AT_ONCE = 500
NUM_READERS = 4

Record = Mapping[str, str]


@dataclass(frozen=True)
class Keys:
    """Names in Redis under the service's prefix."""

    prefix: str = "omnivoice"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}:job:{job_id}"

    @property
    def due(self) -> list[str]:
        return [f"{self.prefix}:due:{queue}" for queue in QUEUES]

    @property
    def leases(self) -> list[str]:
        return [f"{self.prefix}:leases:{queue}" for queue in QUEUES]

    @property
    def messages(self) -> list[str]:
        return [f"{self.prefix}:broker:{queue}" for queue in QUEUES]

    @property
    def unacknowledged(self) -> str:
        return f"{self.prefix}:broker:unacked"


@dataclass(frozen=True)
class Store:
    """A bucket, by a boto3 client; `prefix` stands before every key."""

    client: Any
    bucket: str
    prefix: str = ""

    def sizes(self) -> dict[str, int]:
        """Bytes of every audio object by key."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.prefix}audio/")
        found = (item for page in pages for item in page.get("Contents", []))
        return {item["Key"].removeprefix(self.prefix): item["Size"] for item in found}

    def read(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read()
        return data


@dataclass
class Verdict:
    """`complaints` is empty where every promise was kept; the rest is told, not judged."""

    complaints: list[str] = field(default_factory=list)
    num_by_status: Counter[str] = field(default_factory=Counter)
    num_by_attempts: Counter[int] = field(default_factory=Counter)
    num_failed_by_type: Counter[str] = field(default_factory=Counter)
    num_redelivered: int = 0
    """Jobs that were leased more than once, as their token tells."""
    num_unanswered: int = 0
    """Records of submissions whose answer was lost."""
    num_unreferenced: int = 0
    """Objects of lost leases that no record names: a worker died between upload and ledger."""
    num_unacknowledged: int = 0
    """Messages that kombu notes as being with a worker, most of them with one that was killed."""
    num_heard: int = 0


def num_open(redis: Redis, keys: Keys) -> int:
    """Jobs and messages that wait or are leased."""
    with redis.pipeline(transaction=False) as pipeline:
        for key in (*keys.due, *keys.leases):
            pipeline.zcard(key)
        for key in keys.messages:
            pipeline.llen(key)
        return sum(pipeline.execute())


def waiting_jobs(redis: Redis, keys: list[str]) -> list[str]:
    """Ids in the ledger's sorted sets of these names."""
    return [str(job) for key in keys for job in redis.zrange(key, 0, -1)]


def judge(redis: Redis, store: Store, evidence: Evidence, max_attempts: int, keys: Keys = Keys()) -> Verdict:
    """Look at everything. To be called when all jobs should have ended; `redis` decodes its answers."""
    verdict = Verdict()
    records = _read_records(redis, keys)
    waiting = set(waiting_jobs(redis, [*keys.due, *keys.leases]))
    verdict.complaints += [f"{job} is stuck: it is still due or leased" for job in sorted(waiting)]
    verdict.complaints += [f"stuck: {redis.llen(key)} messages in {key}" for key in keys.messages if redis.llen(key)]
    verdict.num_unacknowledged = int(redis.hlen(keys.unacknowledged))
    verdict.complaints += [f"{job} is lost: accepted, no record" for job in evidence.accepted if job not in records]
    verdict.complaints += _doubled(records, evidence)
    sizes = store.sizes()
    for job_id, record in records.items():
        accepted = evidence.accepted.get(job_id)
        verdict.num_unanswered += accepted is None
        _count(verdict, record)
        complaints = [*_of_record(record, max_attempts), *_of_evidence(record, accepted, evidence)]
        verdict.complaints += [f"{job_id} {complaint}" for complaint in complaints]
    verdict.complaints += _of_objects(verdict, records, sizes)
    verdict.complaints += _of_audio(verdict, records, sizes, store)
    again = _read_records(redis, keys)
    verdict.complaints += [f"{job} changed after its end" for job in records if again.get(job) != records[job]]
    return verdict


def _read_records(redis: Redis, keys: Keys) -> dict[str, Record]:
    start = keys.job("")
    names = sorted(set(redis.scan_iter(f"{start}*", count=1_000)))
    records: dict[str, Record] = {}
    for first in range(0, len(names), READ_AT_ONCE):
        some = names[first : first + READ_AT_ONCE]
        with redis.pipeline(transaction=False) as pipeline:
            for name in some:
                pipeline.hgetall(name)
            records |= {name.removeprefix(start): record for name, record in zip(some, pipeline.execute(), strict=True)}
    return records


def _count(verdict: Verdict, record: Record) -> None:
    verdict.num_by_status[record["status"]] += 1
    verdict.num_by_attempts[int(record["attempts"])] += 1
    verdict.num_redelivered += int(record["token"]) > 1
    if "error" in record:
        verdict.num_failed_by_type[json.loads(record["error"])["type"]] += 1


def _of_record(record: Record, max_attempts: int) -> Iterator[str]:
    """What contradicts itself in a record that should have ended."""
    status, attempts = record["status"], int(record["attempts"])
    if status not in FINAL:
        yield f"is stuck: {status}"
        return
    if "finished_ms" not in record or "lease_ms" in record:
        yield f"has no single end: {status}, but it is leased or has no time of its end"
    if ("result" in record) != (status == "succeeded") or ("error" in record) != (status == "failed"):
        yield f"has no single end: {status}, with {[name for name in ('result', 'error') if name in record]}"
    if attempts > max_attempts or (status == "succeeded" and attempts < 1):
        yield f"has {attempts} attempts of {max_attempts}"
    if status == "failed" and (json.loads(record["error"])["type"] not in ALLOWED_FAILURES or attempts < max_attempts):
        yield f"failed after {attempts} attempts: {record['error']}"
    if status == "cancelled" and "cancel_nonce" not in record and "cancel" not in record:
        yield "is cancelled, and nobody asked for it"
    if status == "expired" and int(record["finished_ms"]) < int(record.get("expires_ms") or 2**62):
        yield "expired before its time"


def _of_evidence(record: Record, accepted: Accepted | None, evidence: Evidence) -> Iterator[str]:
    """Where a record is not what clients were told."""
    request = json.loads(record["request"])
    submission = evidence.submissions.get(int(request["metadata"]["index"]))
    if submission is None or request["text"] != submission.text or request["queue"] != submission.queue:
        yield "is nothing that a client has sent"
    if accepted is None:
        return
    if accepted.submission is not submission and accepted.submission != submission:
        yield "was answered to another submission"
    status = record["status"]
    if accepted.seen - {status}:
        yield f"is {status}, and clients saw it end as {sorted(accepted.seen)}"
    if {200, 202} & set(accepted.cancel_answers) and status != "cancelled":
        yield f"is {status}, and its cancelling was answered {accepted.cancel_answers}"
    if status == "cancelled" and not accepted.cancel_answers:
        yield "is cancelled, and no client asked for it"


def _doubled(records: Mapping[str, Record], evidence: Evidence) -> Iterator[str]:
    """Submissions with an idempotency key that led to more than one job."""
    numbers = Counter(int(json.loads(record["request"])["metadata"]["index"]) for record in records.values())
    for index, count in numbers.items():
        submission = evidence.submissions.get(index)
        if count > 1 and submission is not None and submission.key is not None:
            yield f"seen twice: {count} jobs of submission {index}, which has an idempotency key"


def _key_of(record: Record) -> str:
    """Key of the object that a record names, under the prefix: `audio/<job>/<token>.wav`."""
    uri = str(json.loads(record["result"])["uri"])
    return uri[uri.index("audio/") :]


def _of_objects(verdict: Verdict, records: Mapping[str, Record], sizes: Mapping[str, int]) -> Iterator[str]:
    named = {_key_of(record) for record in records.values() if "result" in record}
    for key in sorted(sizes.keys() - named):
        _, job_id, name = key.split("/")
        record = records.get(job_id)
        if record is None or int(name.partition(".")[0]) > int(record["token"]):
            yield f"{key} is an object of no job, or of a lease that never was"
        elif "result" in record and int(name.partition(".")[0]) == int(record["token"]):
            yield f"{job_id} is seen twice: {key} beside {_key_of(record)}"
        else:
            verdict.num_unreferenced += 1


def _of_audio(verdict: Verdict, records: Mapping[str, Record], sizes: Mapping[str, int], store: Store) -> list[str]:
    succeeded = {job_id: record for job_id, record in records.items() if "result" in record}

    def listen(job_id: str) -> list[str]:
        record = succeeded[job_id]
        key = _key_of(record)
        if key != f"audio/{job_id}/{record['token']}.wav":
            return [f"{job_id} names {key}, not the object of its last lease"]
        if key not in sizes:
            return [f"{job_id} has no object at {key}"]
        return [f"{job_id} {complaint}" for complaint in of_bytes(store.read(key), record)]

    with ThreadPoolExecutor(NUM_READERS) as pool:
        verdict.num_heard = len(succeeded)
        return [complaint for complaints in pool.map(listen, succeeded) for complaint in complaints]


def of_bytes(data: bytes, record: Record) -> Iterator[str]:
    """Where an object is not what its record says, or not the tone of its text."""
    result, request = json.loads(record["result"]), json.loads(record["request"])
    if hashlib.sha256(data).hexdigest() != result["sha256"] or len(data) != result["bytes"]:
        yield "has an object of other bytes than its record says"
    try:
        with wave.open(io.BytesIO(data)) as file:
            samples, rate = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2"), file.getframerate()
    except (wave.Error, EOFError) as error:
        yield f"has an object that is no WAV file: {error}"
        return
    if abs(len(samples) / rate - result["duration_seconds"]) > 1e-6 or len(samples) == 0:
        yield f"has {len(samples)} samples at {rate} Hz, not {result['duration_seconds']} s"
        return
    pitch = float(np.argmax(np.abs(np.fft.rfft(samples * np.hanning(len(samples)))))) * rate / len(samples)
    if abs(pitch - tone_hertz(request["text"])) > rate / len(samples):
        yield f"sounds at {pitch:.0f} Hz, its text at {tone_hertz(request['text'])} Hz: another job's audio"
