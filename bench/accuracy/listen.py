"""Make the audio of what `generate` left, have a recogniser hear it, and put all figures into one table."""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from bench.accuracy.agreement import Pieces, agreement
from bench.accuracy.kept import Folder
from bench.accuracy.rows import BASELINE, Row
from bench.accuracy.texts import SHORT
from bench.accuracy.words import Mean, Recogniser, numbers_right, word_errors, words
from bench.peers.ours import wav_of
from bench.plot import markdown
from omnivoice import SamplingParams
from omnivoice.errors import GenerationFailed
from omnivoice.finishing import finish
from omnivoice.model.codec import Codec

HEADER = (
    "row",
    "texts",
    "words wrong, mean [95 %]",
    "median",
    "of all words",
    "more than baseline [95 %]",
    "codes equal",
    "texts equal",
    "texts as in own batches",
    "one step: masked",
    "one step: unmasked next",
    "audio, s",
    "took, s",
    "real-time factor",
)


class Ear:
    """What is heard of codes: decoded and finished as the engine does, in float32, and transcribed.

    What was heard is kept in a file, so that the same codes of another row, or of a run that was cut, cost nothing.
    """

    def __init__(self, checkpoint: Path, kept: Path) -> None:
        self._codec = Codec.from_folder(checkpoint, torch.device("cpu"), torch.float32)
        self._recogniser = Recogniser()
        self._kept = kept
        lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
        self._heard: dict[str, str] = dict(map(json.loads, lines))

    def __call__(self, pieces: Pieces) -> str:
        """Nothing is heard of what the engine would refuse to finish."""
        key = hashlib.sha256(b"".join(piece.tobytes() + b"|" for piece in pieces)).hexdigest()
        if key not in self._heard:
            self._heard[key] = self._listen(pieces)
            with self._kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self._heard[key]]) + "\n")
        return self._heard[key]

    def _listen(self, pieces: Pieces) -> str:
        chunks = self._codec.decode_batch([piece.astype("int64") for piece in pieces])
        try:
            waveform = finish(chunks, SamplingParams(), None)
        except GenerationFailed:
            return ""
        return self._recogniser(wav_of(waveform))


def counted(texts: Mapping[str, Any], heard: Mapping[str, str]) -> dict[str, Any]:
    """Of one row: words wrong and words there are, by name; whether a text's numbers were right, where it has any."""
    errors, lengths, right = {}, {}, {}
    for name, said in heard.items():
        text = texts[name]
        errors[name] = word_errors(text["spoken"], said, text["text"])
        lengths[name] = len(words(text["spoken"]))
        if text["numbers"]:
            right[name] = numbers_right(text["numbers"], said)
    return {"errors": errors, "lengths": lengths, "numbers_right": right}


def figures_of(counts: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> dict[str, Any]:
    """Rates of a row, and how much more they are than the baseline's for the same texts, in pairs."""
    rates = rates_of(counts)
    figures: dict[str, Any] = {
        "texts": len(rates),
        "mean": Mean.of(list(rates.values())),
        "median": statistics.median(rates.values()),
        "all_words": sum(counts["errors"].values()) / sum(counts["lengths"].values()),
        "more": None,
        "without_errors": sum(not errors for errors in counts["errors"].values()),
        "numbers_right": sum(counts["numbers_right"].values()) if counts["numbers_right"] else None,
    }
    if baseline is not None:
        theirs = rates_of(baseline)
        figures["more"] = Mean.of([rate - theirs[name] for name, rate in rates.items()])
    return figures


def rates_of(counts: Mapping[str, Any]) -> dict[str, float]:
    return {name: errors / counts["lengths"][name] for name, errors in counts["errors"].items()}


def percent(share: float | None) -> str:
    """Two digits; only what is all equal shows as 100."""
    if share is None:
        return "–"
    return "100 %" if share == 1.0 else f"{min(100 * share, 99.99):.2f} %"


def cells_of(row: Mapping[str, Any], forced: Mapping[str, Any] | None) -> list[str]:
    """A line under `HEADER`, of a row's figures and its engine's steps from the baseline's states."""
    figures, shares, own = row["figures"], row["agreement"] or {}, row["own"] or {}
    factor = "–" if row["paced"] else f"{row['seconds'] / row['audio_seconds']:.4f}"
    return [
        row["name"],
        str(figures["texts"]),
        figures["mean"].shown(),
        f"{100 * figures['median']:.1f} %",
        f"{100 * figures['all_words']:.1f} %",
        "–" if figures["more"] is None else figures["more"].shown("+"),
        percent(shares.get("codes")),
        percent(shares.get("utterances")),
        percent(own.get("utterances")),
        *(percent(forced[cells]["all"] if forced else None) for cells in ("masked", "unmasked next")),
        f"{row['audio_seconds']:.0f}",
        f"{row['seconds']:.1f}",
        factor,
    ]


def table(results: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """Markdown of all rows that were listened to, and what else is to be told of them."""
    forced = results["forced"]
    lines = [cells_of(row, forced.get(row["engine"])) for row in rows.values()]
    parts = [
        f"{results['device']}, torch {results['torch']}, {results['date']}; {results['num_step']} steps where a row "
        "names none; heard by whisper-tiny; baseline: the row of float32 eager that has the same texts",
        markdown(HEADER, lines),
        markdown(["words wrong, by voice", *_voices(results)], _voice_rows(results, rows)),
    ]
    found = [(row["name"], row["figures"]) for row in rows.values() if row["figures"]["numbers_right"] is not None]
    notes = [
        f"- {name}: all numbers right in {figures['numbers_right']} of {figures['texts']}, all words in "
        f"{figures['without_errors']}"
        for name, figures in found
    ]
    notes += [f"- not there: {name}: {why}" for name, why in results["not_there"].items()]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"


def _voices(results: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(text["instruct"] for text in results["texts"].values()))


def _voice_rows(results: Mapping[str, Any], rows: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for row in rows.values():
        if row["kind"] != SHORT:
            continue
        rates: dict[str, list[float]] = {voice: [] for voice in _voices(results)}
        for name, rate in rates_of(row["counts"]).items():
            rates[results["texts"][name]["instruct"]].append(rate)
        lines.append([row["name"], *(Mean.of(mine).shown() if mine else "–" for mine in rates.values())])
    return lines


def own_batches(folder: Folder, slug: str, codes: Mapping[str, Pieces]) -> dict[str, Any] | None:
    """How a row's codes agree with those of the same engine in full batches; None of that row itself."""
    row = folder.results["rows"][slug]
    other = Row(row["engine"].removesuffix(", step mode"), row["kind"]).slug
    if other == slug or other not in folder.results["rows"] or row["agreement"] is None:
        return None
    return agreement(codes, folder.codes(other))


def listen_to_row(folder: Folder, slug: str, ear: Ear, done: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of a row; `done` holds the baseline's, if that was listened to."""
    row, codes = folder.results["rows"][slug], folder.codes(slug)
    heard = {name: ear(pieces) for name, pieces in codes.items()}
    counts = counted(folder.results["texts"], heard)
    baseline = done.get(Row(BASELINE, row["kind"]).slug)
    figures = figures_of(counts, baseline and baseline["counts"])
    own = own_batches(folder, slug, codes)
    return {**row, "figures": figures, "own": own, "counts": counts, "heard": heard}


def write(folder: Folder, rows: Mapping[str, Any]) -> str:
    """`table.md`, `table.json` without what was heard, and `heard.json` with it."""
    shown = table(folder.results, rows)
    (folder.path / "table.md").write_text(shown, encoding="utf-8")
    about = {key: value for key, value in folder.results.items() if key not in ("texts", "rows")}
    short = {
        slug: {key: value for key, value in row.items() if key not in ("counts", "heard")} for slug, row in rows.items()
    }
    for row in short.values():
        row["figures"] = {
            key: value._asdict() if isinstance(value, Mean) else value for key, value in row["figures"].items()
        }
    _write_json(folder.path / "table.json", about | {"rows": short})
    texts = {name: text["spoken"] for name, text in folder.results["texts"].items()}
    counts = {slug: {"heard": row["heard"], "errors": row["counts"]["errors"]} for slug, row in rows.items()}
    _write_json(folder.path / "heard.json", {"texts": texts, "rows": counts})
    return shown


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def chosen_slugs(slugs: Sequence[str], patterns: str) -> list[str]:
    wanted = patterns.split(",") if patterns else ["*"]
    return [slug for slug in slugs if any(fnmatch(slug, pattern) for pattern in wanted)]


def listen(arguments: argparse.Namespace) -> None:
    """The command of that name; the files are written after every row."""
    folder = Folder.at(arguments.folder)
    ear, rows, shown = Ear(arguments.checkpoint, folder.path / "heard.jsonl"), {}, ""
    for slug in chosen_slugs(list(folder.results["rows"]), arguments.rows):
        rows[slug] = listen_to_row(folder, slug, ear, rows)
        print(f"{rows[slug]['name']}: {rows[slug]['figures']['mean'].shown()} wrong", flush=True)
        shown = write(folder, rows)
    print(f"\n{shown}")
