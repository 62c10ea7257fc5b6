"""Hosts that do not reach each other are named before they would wait, and of two networks the fast one is taken."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from allranks import Cluster, doctor
from allranks.errors import CannotStart
from allranks.head.world import choose_network
from allranks.head.world.choose_network import fastest
from tests.hosts.lab import Hosts
from tests.needs import need_tool
from tests.waiting import WITHIN, eventually

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
SUM = "mx.distributed.all_sum(mx.ones(2)).tolist()"


@pytest.fixture(autouse=True)
def known(hosts3: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", hosts3.path)


@contextmanager
def cable(hosts: Hosts, network: str) -> Iterator[None]:
    """A second network, between the first two hosts."""
    peer = ("peer", "name", "fast0", "netns", hosts.space(hosts.names[1]))
    made = hosts.inside(hosts.names[0], "ip", "link", "add", "fast0", "type", "veth", *peer)
    assert made.returncode == 0, made.stderr
    try:
        for number, name in enumerate(hosts.names[:2], 1):
            for command in (("addr", "add", f"{network}.{number}/24", "dev", "fast0"), ("link", "set", "fast0", "up")):
                assert hosts.inside(name, "ip", *command).returncode == 0
        # Linux tells programs of a carrier up to a second after it is there.
        assert eventually(lambda: all(_carries(hosts, name) for name in hosts.names[:2]))
        yield
    finally:
        hosts.inside(hosts.names[0], "ip", "link", "del", "fast0")


@contextmanager
def slow_cable(hosts: Hosts, network: str) -> Iterator[None]:
    """A cable that is slower than the hosts' other network."""
    with cable(hosts, network):
        for name in hosts.names[:2]:
            shape = ("tc", "qdisc", "replace", "dev", "fast0", "root", "tbf", "rate", "20mbit", "burst", "128kb")
            assert hosts.inside(name, *shape, "latency", "50ms").returncode == 0
        yield


def free(hosts: Hosts) -> None:
    """End what `Hosts.slow` began for the first two hosts."""
    for name in hosts.names[:2]:
        hosts.inside(name, "tc", "qdisc", "del", "dev", "eth0", "root")


def _carries(hosts: Hosts, name: str) -> bool:
    return "state UP" in hosts.inside(name, "ip", "link", "show", "fast0").stdout


def test_the_faster_of_two_networks_is_taken_and_said(hosts3: Hosts) -> None:
    names = hosts3.names[:2]
    for name in names:
        hosts3.slow(name, 20)
    try:
        with cable(hosts3, "10.78.9"), Cluster(hosts=names, backend="ring") as cluster:
            assert cluster._live.ranks is not None
            assert [host.addresses for host in cluster._live.ranks.hosts] == [("10.78.9.1",), ("10.78.9.2",)]
            assert cluster.chosen_network.startswith("that of 10.78.9.1 (")
            assert "by which ssh comes, is slower (0.0" in cluster.chosen_network
            assert [rank.value for rank in cluster.run(SUM).check().values()] == [[2.0, 2.0]] * 2
            cluster.run("import os; os._exit(1)", ranks=[1])
            cluster.heal()
            assert [host.addresses for host in cluster._live.ranks.hosts] == [("10.78.9.1",), ("10.78.9.2",)]
    finally:
        free(hosts3)


def test_one_that_is_no_faster_is_not_worth_a_word(hosts3: Hosts) -> None:
    names = hosts3.names[:2]
    with slow_cable(hosts3, "10.78.10"), Cluster(hosts=names, backend="ring") as cluster:
        assert cluster._live.ranks is not None and cluster.chosen_network == ""
        assert [host.addresses for host in cluster._live.ranks.hosts] == [(hosts3.address(name),) for name in names]


def test_one_that_was_busy_while_it_was_measured_is_kept(hosts3: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are given, since those of a busy machine are left to chance."""
    names = hosts3.names[:2]
    rates = iter([[0.5e6, 2.5e6], [0.6e6, 2.5e6], [100e6, 2.5e6]])
    monkeypatch.setattr(choose_network, "_rates", lambda *_: next(rates))
    with cable(hosts3, "10.78.11"), Cluster(hosts=names, backend="ring") as cluster:
        assert cluster.chosen_network == "" and not list(rates)


@pytest.mark.parametrize(
    ("backend", "action", "why"), [("ring", "DROP", "no answer within 3 s"), ("ring", "REJECT", "")]
)
def test_hosts_that_do_not_reach_each_other_are_named(hosts3: Hosts, backend: str, action: str, why: str) -> None:
    need_tool("iptables", "apt install iptables")
    one, two = hosts3.names[:2]
    rule = ("INPUT", "-s", hosts3.address(one), "-p", "tcp", "!", "--sport", "22", "-j", action)
    assert hosts3.inside(two, "iptables", "-w", "-A", *rule).returncode == 0
    try:
        with pytest.raises(CannotStart) as refused:
            Cluster(hosts=[one, two], backend="ring").up()
    finally:
        hosts3.inside(two, "iptables", "-w", "-D", *rule)
    said = str(refused.value)
    assert said.startswith(f"{one} cannot reach {two} at {hosts3.address(two)} ({why}"), said
    assert 'with "ips" in a hostfile' in said and said.count("\n") == 0


def test_after_ctrl_c_no_port_stays_open(hosts3: Hosts) -> None:
    need_tool("iptables", "apt install iptables")
    one, two = hosts3.names[:2]

    def ports() -> set[str]:
        return {line.split()[3] for line in hosts3.inside(two, "ss", "-tlnH").stdout.splitlines()}

    with Cluster(hosts=[one, two], backend="ring") as cluster:
        ranks = cluster._live.ranks
        assert ranks is not None and ranks.plan is not None
        network, before = {name: hosts3.address(name) for name in (one, two)}, ports()
        rule = ("INPUT", "-s", hosts3.address(one), "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
        assert hosts3.inside(two, "iptables", "-w", "-A", *rule).returncode == 0

        def interrupt() -> None:
            if eventually(lambda: len(ports() - before) >= 30):
                os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(KeyboardInterrupt):  # one try takes 3 s, and all of them more than a minute
                fastest(ranks.plan, [network] * 30, ranks.monitor, ranks.lifeline)
        finally:
            hosts3.inside(two, "iptables", "-w", "-D", *rule)
            interrupting.join(WITHIN)
        assert eventually(lambda: not ports() - before, 10.0), ports() - before


def test_the_doctor_and_up_agree_on_a_firewall(hosts3: Hosts) -> None:
    """In a ring of three, the second host does not connect to the first one, but to the third."""
    need_tool("iptables", "apt install iptables")
    for one, two, works in (("host2", "host1", True), ("host1", "host2", False)):
        rule = ("INPUT", "-s", hosts3.address(one), "-p", "tcp", "--syn", "!", "--dport", "22", "-j", "DROP")
        assert hosts3.inside(two, "iptables", "-w", "-A", *rule).returncode == 0
        try:
            assert doctor(hosts=hosts3.names, backend="ring").ok is works
            if works:
                with Cluster(hosts=hosts3.names, backend="ring") as cluster:
                    assert [rank.value for rank in cluster.run(SUM).check().values()] == [[3.0, 3.0]] * 3
            else:
                with pytest.raises(CannotStart, match="host1 cannot reach host2 at"):
                    Cluster(hosts=hosts3.names, backend="ring").up()
        finally:
            hosts3.inside(two, "iptables", "-w", "-D", *rule)


def test_over_mpi_they_are_named_too(hosts3: Hosts, need_mpi: None) -> None:
    need_tool("iptables", "apt install iptables")
    one, two, three = hosts3.names
    rule = ("INPUT", "-s", hosts3.address(three), "-p", "tcp", "!", "--sport", "22", "-j", "DROP")
    assert hosts3.inside(one, "iptables", "-w", "-A", *rule).returncode == 0
    try:
        with pytest.raises(CannotStart, match=f"{three} cannot reach {one} at"):
            Cluster(hosts=[one, two, three], backend="mpi").up()
    finally:
        hosts3.inside(one, "iptables", "-w", "-D", *rule)
