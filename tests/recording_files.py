"""Small recordings for the tests of reading and of replay."""

import json

from fade_sim.recordings import load


def write(tmp_path, text, name="r.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def counts(*pairs, **more):
    """One {prompt_id, successes, attempts} line per pair."""
    return lines(*({"prompt_id": i, "successes": c, "attempts": n, **more} for i, (c, n) in enumerate(pairs)))


def record(tmp_path, *pairs, **more):
    return load(write(tmp_path, counts(*pairs, **more)))
