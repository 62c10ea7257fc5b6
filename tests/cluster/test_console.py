"""A console on one rank: Jupyter's own client, beside the notebook."""

from __future__ import annotations

import shlex
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from allranks import Cluster
from allranks.errors import AllranksError
from tests.jupyter import OUTPUTS, CellOutputs


def test_a_console_works_in_the_ranks_namespace_and_cells_go_on(ring2: Cluster) -> None:
    ring2.run("mine = rank * 10")
    command = shlex.split(ring2.console(1).splitlines()[-1])  # before it, how to install a console that is not here
    assert command[:3] == ["jupyter", "console", "--existing"]
    file = Path(command[3])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    assert client.transport == "ipc"
    assert stat.S_IMODE(file.parents[1].stat().st_mode) == 0o700, "no other user reaches its sockets"
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        shown = CellOutputs("")

        def show(message: dict[str, Any]) -> None:
            if message["msg_type"] in OUTPUTS:
                shown.take(message["msg_type"], message["content"])

        client.execute_interactive("print('at', rank)\nmine += 5\nmine", timeout=60, output_hook=show)
        assert "at 1" in shown.stdout
        assert "15" in shown.all
        assert ring2.run("print('cell', mine)")[1].stdout == "cell 15\n"
        assert ring2.run("mx.distributed.all_sum(mx.array(1)).item()")[0].value == 2
        assert ring2.console(1).endswith(str(file)), "asked again it is the same"
    finally:
        client.stop_channels()
    assert ring2.run("mine")[1].value == 15


def test_a_folder_whose_path_is_too_long_for_sockets_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with Cluster(1, backend="ring") as cluster:
        with pytest.raises(AllranksError, match="too long for a console's sockets: start with a shorter TMPDIR"):
            cluster.console(0)
        assert cluster.run("rank")[0].value == 0
