"""Rows of tests/bench/results/*.jsonl."""

import datetime
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]


def commit():
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    answer = subprocess.run(command, capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"


def row(bench, shape, value, unit, ceiling=None, peer=None, peer_value=None):
    """One measurement; ceiling and peer_value have the value's unit and were measured in the same run."""
    value, ceiling, peer_value = (None if x is None else float(f"{x:.5g}") for x in (value, ceiling, peer_value))
    fraction = round(value / ceiling, 4) if ceiling else None
    return {"bench": bench, "shape": shape, "value": value, "unit": unit, "ceiling": ceiling, "fraction": fraction,
            "peer": peer, "peer_value": peer_value, "date": datetime.date.today().isoformat(), "commit": commit()}


def append(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for entry in rows:
            file.write(json.dumps(entry) + "\n")
