"""A changed line with a language model loaded: a cell, against mlx.launch of the changed script.

A Llama of mlx-lm's with random weights is saved for both. Both shard it over two ring ranks and write as many
tokens. A cell is timed from sending it to its last output, a script from the start of mlx.launch to its end. The ranks
of allranks idle while mlx.launch runs, which keeps a core busy itself.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import allranks

from ._table import Bar, Row, Table

RANKS = 2
WITHIN = 120.0
SETTINGS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
}
LOAD = """
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model
from pathlib import Path

world = mx.distributed.init()
model, _ = load_model(Path({folder!r}), lazy=True)
model.shard(world)
mx.eval(model.parameters())
"""
WRITE = "tokens = [token for token, _ in generate_step(mx.array([{first}, 7, 9]), model, max_tokens=40)]\n"


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of a script and a cell in turn, each with another prompt."""
    rounds = repeat or (2 if quick else 7)
    table = Table("editrun", f"a changed line on {RANKS} ring ranks with a language model; lower is better")
    if importlib.util.find_spec("mlx_lm") is None:
        table.notes.append("editrun was not measured: it needs mlx-lm (pip install mlx-lm).")
        return table
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        _save(folder)
        with allranks.Cluster(RANKS, backend="ring") as cluster:
            cluster.run(LOAD.format(folder=folder)).check()
            for number in range(rounds + 1):  # the first one warms both up
                write = WRITE.format(first=number + 1)
                script, said = _launched(folder, write)
                before = time.perf_counter()
                result = cluster.run(write + "tokens").check()
                cell = time.perf_counter() - before
                if result[0].value != said:
                    raise RuntimeError(f"the cell wrote {result[0].value}, the script {said}")
                if number:
                    ours.append(cell)
                    theirs.append(script)
    table.rows.append(Row("40 tokens", "s", ours, theirs, "mlx.launch of the script", Bar("at most", 0.1)))
    table.notes.append(
        "Most of the script's time is importing mlx-lm, with one core taken by mlx.launch itself; a larger model adds "
        "the time it takes to load."
    )
    return table


def _save(folder: str) -> None:
    """In a process of its own: this one makes no arrays."""
    code = (
        "import json, sys\nimport mlx.core as mx\nfrom mlx_lm.models import llama\n"
        "from mlx_lm.utils import save_config, save_model\n"
        "settings, folder = json.loads(sys.argv[1]), sys.argv[2]\nmx.random.seed(0)\n"
        "save_model(folder, llama.Model(llama.ModelArgs.from_dict(settings)))\n"
        "save_config(settings, folder + '/config.json')\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(SETTINGS), folder], check=True, timeout=WITHIN)


def _launched(folder: str, write: str) -> tuple[float, list[int]]:
    """Seconds of one mlx.launch, and the tokens its rank 0 printed."""
    script = Path(folder, "script.py")
    script.write_text(LOAD.format(folder=folder) + write + "if world.rank() == 0:\n    print(tokens)\n")
    command = [str(Path(sys.executable).with_name("mlx.launch")), "-n", str(RANKS), sys.executable, str(script)]
    before = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
    seconds = time.perf_counter() - before
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not said:
        raise RuntimeError(f"mlx.launch printed no tokens: {done.stderr.strip()[-300:]}")
    return seconds, list(json.loads(said[0]))
