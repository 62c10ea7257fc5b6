"""The ranks are ordinary ipyparallel engines too: a plain client reaches them, and its output goes its own way."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipyparallel
import psutil
import pytest
import zmq

from allranks import Cluster
from tests.jupyter import Notebook
from tests.waiting import comes_true, eventually


@pytest.fixture
def client(ring2: Cluster) -> Iterator[Any]:
    """A client that knows nothing of allranks but the connection file."""
    client = ipyparallel.Client(str(ring2.connection_file))
    client.wait_for_engines(2, timeout=60)
    # ZeroMQ passes on no output of the engines until the client's subscription has reached them.
    assert eventually(lambda: client[:].execute("", silent=True).wait_for_output(1))
    yield client
    client.close()


def test_a_plain_client_sees_one_engine_for_each_rank(client: Any) -> None:
    assert len(client.ids) == 2
    assert sorted(client[:].pull("rank", block=True)) == [0, 1]


def test_both_share_one_namespace(client: Any, ring2: Cluster) -> None:
    ring2.run("ours = 'ours', rank")
    assert sorted(client[:].pull("ours", block=True)) == [("ours", 0), ("ours", 1)]
    client[:].push({"theirs": 42}, block=True)
    assert ring2.pull("theirs") == [42, 42]


def test_a_collective_from_ipyparallel_joins_all_ranks(client: Any) -> None:
    client[:].execute("total = mx.distributed.all_sum(mx.ones(10)).tolist()", block=True)
    assert client[:].pull("total", block=True) == [[2.0] * 10] * 2


def test_output_and_errors_go_ipyparallels_way(client: Any, ring2: Cluster) -> None:
    done = client[:].execute("print('through ipyparallel', rank)\n'its value'", silent=False)
    done.wait(60)
    done.wait_for_output(60)
    assert sorted(done.stdout) == ["through ipyparallel 0\n", "through ipyparallel 1\n"]
    assert [output["data"]["text/plain"] for output in done.execute_result] == ["'its value'"] * 2
    with pytest.raises(ipyparallel.error.CompositeError, match="ZeroDivisionError"):
        client[:].execute("1/0", block=True)
    # None of it turns up in the next cell of ours, and ours do not turn up there.
    result = ring2.run("print('ours')\n'our value'")
    assert [(rank.stdout, rank.stderr, rank.value) for rank in result.values()] == [("ours\n", "", "our value")] * 2
    assert "".join(done.stdout).count("ours") == 0


def test_displays_of_ipyparallel_cells_reach_its_client(client: Any) -> None:
    done = client[0].execute("from IPython.display import HTML, display\ndisplay(HTML('<b>theirs</b>'))", silent=False)
    done.wait(60)
    done.wait_for_output(60)
    assert [output["data"]["text/html"] for output in done.outputs] == ["<b>theirs</b>"]


def test_a_load_balanced_view_works(client: Any) -> None:
    assert client.load_balanced_view().map_sync(lambda x: x * x, range(8)) == [x * x for x in range(8)]


def test_the_clusters_own_client_is_made_when_asked_for(ring2: Cluster) -> None:
    assert sorted(ring2.client[:].pull("rank", block=True)) == [0, 1]


def test_the_connection_file_is_private_and_plain_json(ring2: Cluster) -> None:
    assert ring2.connection_file.stat().st_mode & 0o777 == 0o600
    assert {"key", "interface", "registration", "mux"} <= json.loads(ring2.connection_file.read_text()).keys()


def test_no_other_user_of_the_machine_can_connect_to_the_controller(ring2: Cluster) -> None:
    assert stat.S_IMODE(ring2.connection_file.parent.stat().st_mode) == 0o700
    assert json.loads(ring2.connection_file.read_text())["interface"].startswith(
        f"ipc://{ring2.connection_file.parent}/"
    )
    assert ring2._live.ranks is not None and ring2._live.ranks.host._process is not None
    host = psutil.Process(ring2._live.ranks.host._process.pid)
    ranks = {
        view.pid for view in ring2.snapshot.ranks
    }  # each takes its controller's heartbeat at a port, and sends nothing
    # Not what belongs to the ranks: cells of other tests may have left processes.
    others = [host, *(each for each in host.children() if each.pid not in ranks)]
    assert len(others) == 2, "the host process and the controller"
    assert not [each for process in others for each in process.net_connections("inet") if each.status == "LISTEN"]


def test_where_the_path_is_too_long_for_sockets_strangers_cannot_read_plain_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with Cluster(2, backend="ring") as cluster, zmq.Context() as context:
        info = json.loads(cluster.connection_file.read_text())
        assert info["interface"] == "tcp://127.0.0.1"
        listeners = []
        for server_key in ((info["curve_serverkey"] or "").encode(), b"", zmq.curve_keypair()[0]):
            each = context.socket(zmq.SUB)
            each.linger = 0
            each.subscribe(b"")
            if server_key:
                each.curve_serverkey = server_key
                each.curve_publickey, each.curve_secretkey = zmq.curve_keypair()
            each.connect(f"{info['interface']}:{info['iopub']}")
            listeners.append(each)
        owner, *strangers = listeners
        for _ in range(2):  # strangers have had as long to connect as the owner has
            while not owner.poll(50):
                cluster.client[:].execute("print('to be kept', rank)", silent=False, block=True)
            while owner.poll(200):
                owner.recv_multipart()
        heard = [bool(each.poll(0)) for each in strangers]
        for each in listeners:
            each.close()
    assert heard == [False, False]


@pytest.mark.slow
def test_px_in_a_notebook_beside_our_magics(notebook: Notebook) -> None:
    notebook.ok(
        "import ipyparallel\n"
        "client = ipyparallel.Client(str(allranks.current().connection_file))\n"
        "client.wait_for_engines(4, timeout=60)\n"
        "view = client[:]\n"
        "while not view.execute('', silent=True).wait_for_output(1): pass\n"  # see the fixture
        "view.block = True\n"
        "view.activate()"
    )
    cell = notebook.ok("%px print('px', rank); total = mx.distributed.all_sum(mx.array(rank)).item()")
    notebook.until(lambda: cell.all.count("px ") == 4, 60, lambda: cell.all)
    assert sorted(re.findall(r"px \d", cell.all)) == [f"px {i}" for i in range(4)]
    assert "│" not in cell.all
    assert notebook.ok("%%distributed\ntotal").by_rank == dict.fromkeys(range(4), "6\n")
    both = notebook.ok("%%px\nprint('magic')\n1/1")
    notebook.until(lambda: both.all.count("magic") == 4, 60, lambda: both.all)
    assert "ZeroDivisionError" in notebook.run("%px 1/0").all
    assert notebook.ok("%%distributed\n'still ours'").by_rank == dict.fromkeys(range(4), "'still ours'\n")
    notebook.ok("client.close()")


@pytest.mark.mpi
def test_mpi_ranks_obey_a_plain_client_too(mpi2: Cluster) -> None:
    client = ipyparallel.Client(str(mpi2.connection_file))
    try:
        client.wait_for_engines(2, timeout=60)
        client[:].execute("total = mx.distributed.all_sum(mx.ones(1)).item()", block=True)
        assert client[:].pull("total", block=True) == [2.0, 2.0]
    finally:
        client.close()


@pytest.mark.slow
def test_a_plain_client_never_waits_for_an_engine_that_died() -> None:
    with Cluster(2, backend="ring") as cluster:
        client = ipyparallel.Client(str(cluster.connection_file))
        try:
            client.wait_for_engines(2, timeout=60)
            assert client.ids == [0, 1], "engines are numbered as ranks are"
            os.kill(cluster.snapshot.ranks[1].pid or 0, signal.SIGKILL)
            assert comes_true(cluster, lambda _: client.ids == [0], 60)
            assert client[:].pull("rank", block=True) == [0]
            cluster.heal()
            client.wait_for_engines(2, timeout=60)
            assert client[:].pull("rank", block=True) == [0, 1]
            cluster.resize(3)
            client.wait_for_engines(3, timeout=60)
            cluster.resize(2)
            assert comes_true(cluster, lambda _: client.ids == [0, 1], 60)
            assert client[[0, 1]].pull("rank", block=True) == [0, 1]
        finally:
            client.close()
