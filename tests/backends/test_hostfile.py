"""Every hostfile mlx and Open MPI take is read, and a mistake is told with its place."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from allranks_backends.hostfile import HostfileError, host_named, hosts_in, is_local, read_hostfile
from allranks_backends.plan import Host
from allranks_backends.registry import get_backend

LIST = [
    {"ssh": "mac1", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": [None, "rdma_en2"]},
    {"ssh": "mac2", "ips": ["10.0.0.2", "10.0.1.2"], "rdma": [["rdma_en2", "rdma_en3"], None]},
]
HOSTS = (
    Host("mac1", False, ("10.0.0.1", "10.0.1.1"), ((), ("rdma_en2",))),
    Host("mac2", False, ("10.0.0.2", "10.0.1.2"), (("rdma_en2", "rdma_en3"), ())),
)


def test_the_list_form():
    world = read_hostfile(json.dumps(LIST))
    assert (world.hosts, world.backend, world.envs) == (HOSTS, None, ())


def test_the_object_form(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"backend": "jaccl-ring", "envs": ["A=1", "B=x=y"], "hosts": LIST}))
    for given in (path, str(path)):
        world = read_hostfile(given)
        assert (world.hosts, world.backend, world.envs) == (HOSTS, "jaccl-ring", ("A=1", "B=x=y"))


def test_what_mlx_itself_writes_is_read(mlx):
    from mlx._distributed_utils.common import Host as TheirHost
    from mlx._distributed_utils.common import Hostfile

    theirs = Hostfile([TheirHost(0, "mac1", ["10.0.0.1"], [None, "en2"]), TheirHost(1, "mac2", [], ["en2", None])])
    ours = read_hostfile(json.dumps(theirs.to_json()))
    assert ours.backend is None
    assert ours.hosts == (
        Host("mac1", False, ("10.0.0.1",), ((), ("en2",))),
        Host("mac2", False, (), (("en2",), ())),
    )


def test_the_mpi_form():
    world = read_hostfile(
        "# our machines\n\nmac1 slots=2 max_slots=4\n10.0.0.9\nold slots=0  # at home\nmac2\tslots = 1\n"
    )
    assert [host.name for host in world.hosts] == ["mac1", "mac1", "10.0.0.9", "mac2"]
    assert [host.addresses for host in world.hosts] == [(), (), ("10.0.0.9",), ()]
    assert not any(host.local for host in world.hosts)


def test_the_notebooks_own_machine_is_known_by_its_names(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Studio.local")
    for name in ("127.0.0.1", "localhost", "127.0.0.5", "studio", "studio.local", "Studio"):
        assert is_local(name)
    assert not is_local("mac2")
    own = read_hostfile(json.dumps([{"ssh": "127.0.0.1"}, {"ssh": "studio", "ips": ["10.0.0.1"]}])).hosts
    assert own == (Host("localhost"), Host("studio", True, ("10.0.0.1",)))


def test_a_hostfile_of_mlx_becomes_a_plan(placements, seen):
    plan = get_backend("ring").plan(placements(read_hostfile(json.dumps(LIST)).hosts, 2))
    assert seen(get_backend("ring").wiring(plan, 1))["MLX_HOSTFILE"] == [
        ["10.0.0.1:32323", "10.0.1.1:32324"],
        ["10.0.0.2:32325", "10.0.1.2:32326"],
    ]


def entry(**changes):
    return json.dumps([{"ssh": "mac1"} | changes])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"ssh": "mac1"},]', r"line 1, column \d+ is not JSON"),
        ('{"backend": "ring"}', '"hosts" is null; expected a list'),
        ('["mac1"]', r'hosts\[0\] is "mac1"; expected {"ssh"'),
        ('[["10.0.0.1:5000"]]', r"hosts\[0\] .*MLX_HOSTFILE.*expected a hostfile entry"),
        ('[{"ips": ["10.0.0.1"]}]', r'hosts\[0\] has "ssh": null'),
        (entry(ips="10.0.0.1"), r'hosts\[0\] \(mac1\), "ips" is "10.0.0.1"; expected a list of IPv4'),
        (entry(rdma="rdma_en2"), r'hosts\[0\] \(mac1\), "rdma" is "rdma_en2"; expected a list'),
        (entry(rdma=[None, 5]), r'hosts\[0\] \(mac1\), "rdma"\[1\] is 5; expected a list of device names'),
        ('{"hosts": [{"ssh": "a"}], "backend": "rign"}', '"backend" is "rign".*Did you mean --backend ring'),
        ('{"hosts": [{"ssh": "a"}], "backend": 3}', '"backend" is 3; expected a name'),
        ('{"hosts": [{"ssh": "a"}], "envs": {"A": "1"}}', '"envs" is {"A": "1"}; expected a list of variables'),
        (
            '{"hosts": [{"ssh": "a"}], "envs": ["A B=1"]}',
            '"envs" has "A B=1"; expected "NAME=value" or, for an empty value, "NAME"',
        ),
        ("[]", "it lists no ranks"),
        ("mac1 slots=0\n", "it lists no ranks"),
        ("mac1 slots=two\n", r"line 1, 'mac1 slots=two': slots is two; expected a number"),
        ("# x\nmac1 8\n", r"line 2, 'mac1 8': '8' is not understood; expected <host> slots="),
        ("mac1 slots=99999999999\n", r"line 1, 'mac1 slots=99999999999': that makes more than 10,000 ranks; expected"),
        ("mac1 slots=" + "9" * 5000, r"line 1, 'mac1 slots=9*\.\.\.: that makes more than 10,000 ranks"),
        ("mac1 slots=6000\nmac2 slots=6000\n", r"line 2, 'mac2 slots=6000': that makes more than 10,000 ranks"),
        ("mac1 slots=\N{SUPERSCRIPT TWO}\n", "line 1, .*: slots is .; expected a number of ranks"),
        ("a\nm\0c\n", r"line 2, 'm\\x00c': \"m\\u0000c\" is no host; expected a name or address"),
        ("m" * 300, r"line 1, .*: the name \"m*\.\.\. has 300 characters; expected 253 or less"),
        ("-oProxyCommand=reboot\n", 'line 1, .*: "-oProxyCommand=reboot" is no host'),
        ("[" * 100_000, "it is nested too deeply; expected a list of entries like"),
        ('{"hosts": ' + '{"a":' * 50_000, "it is nested too deeply; expected a list of entries like"),
        (json.dumps([{"ssh": "a", "ips": ["x" * 100]}] * 10_001), "it lists 10,001 ranks; expected at most 10,000"),
        (entry(ssh="\udcff"), r'hosts\[0\], "ssh": "\\udcff" is no host; expected a name or address'),
        (entry(ssh="a b"), r'hosts\[0\], "ssh": "a b" is no host'),
        (entry(ips=["\udcff"]), r'hosts\[0\] \(mac1\), "ips" has "\\udcff"; expected text without NUL'),
        (entry(rdma=["\ud800"]), r'hosts\[0\] \(mac1\), "rdma"\[0\] has "\\ud800"; expected text without NUL'),
        ('{"hosts": [{"ssh": "a"}], "envs": ["A=\\u0000"]}', r'"envs" has "A=\\u0000"; expected text without NUL'),
        ('[{"ssh": ' + "9" * 5000 + "}]", "it has a number of thousands of digits; expected names and addresses"),
    ],
    ids=lambda value: value[:60],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(HostfileError, match=message) as caught:
        read_hostfile(path)
    assert str(caught.value).startswith(f"Hostfile {path}: ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HostfileError, match=r"Hostfile .*nowhere.json does not exist"):
        read_hostfile(tmp_path / "nowhere.json")
    with pytest.raises(HostfileError, match="cannot be read"):
        read_hostfile(tmp_path)
    for path in ("nul\0", "~nobody-of-this-name/hosts"):
        with pytest.raises(HostfileError, match=r"Hostfile .* is not a path"):
            read_hostfile(path)
    with pytest.raises(HostfileError, match=r"Hostfile x*\.\.\. cannot be read: File name too long"):
        read_hostfile("x" * 5000)


def test_what_is_no_text_is_told_with_its_line(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"mac1\nmac\xff2\n")
    with pytest.raises(HostfileError, match="hosts is not UTF-8 text: line 2 has the byte 0xff; save it as UTF-8"):
        read_hostfile(path)
    path.write_bytes(b"\xef\xbb\xbfmac1 slots=2\n")
    assert len(read_hostfile(path).hosts) == 2, "a byte order mark is no part of the first name"
    with pytest.raises(HostfileError, match="has more than 16,000,000 bytes"):
        read_hostfile("/dev/zero")


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
fields = st.sampled_from(["ssh", "ips", "rdma", "hosts", "backend", "envs"]) | st.text(max_size=4)
trees = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(fields, inner, max_size=4), max_leaves=12
)
words = st.sampled_from(["mac1", "slots", "=", "max_slots", "2", "-1", "#", " ", "\t", "\n", "\0", "\udcff", "[", "{"])
lines = st.lists(words | st.text(max_size=5), max_size=30).map("".join)


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@over(trees.map(json.dumps) | lines | st.binary(max_size=60) | trees.map(lambda hosts: json.dumps({"hosts": hosts})))
def test_whatever_it_holds_it_is_read_or_refused_in_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hosts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    for source in (path, content):
        if isinstance(source, bytes):
            continue
        refusal, hosts = refused_or_read(source)
        assert refusal.isprintable() and len(refusal) < 1000
        assert all(host.name.isprintable() and host.name for host in hosts)


def refused_or_read(source):
    try:
        return "", read_hostfile(source).hosts
    except HostfileError as error:
        return str(error), ()


def test_a_host_may_have_a_user_a_port_an_interpreter_and_a_folder():
    entry = {"ssh": "mac1", "user": "ada", "port": 2222, "python": "/opt/env/bin/python", "cwd": "~/runs"}
    (host,) = read_hostfile(json.dumps([entry])).hosts
    assert (host.name, host.python, host.cwd) == ("ada@mac1:2222", "/opt/env/bin/python", "~/runs")
    assert host.shown == "mac1"
    behind = read_hostfile(json.dumps([{"ssh": "gate", "port": port} for port in (2201, 2202, 2201)])).hosts
    assert [host.shown for host in behind] == ["gate:2201", "gate:2202", "gate:2201"], (
        "else they could not be told apart"
    )
    hosts = read_hostfile(
        "mac1 slots=2 python = /opt/env/bin/python cwd='/data/my runs'\nmac2 max_slots=4 slots=1"
    ).hosts
    assert [(host.name, host.python, host.cwd) for host in hosts] == [
        *[("mac1", "/opt/env/bin/python", "/data/my runs")] * 2,
        ("mac2", None, None),
    ]
    assert hosts_in("ada@mac1:2222 cwd=~/runs") == [Host("ada@mac1:2222", False, (), cwd="~/runs")]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("python", "python3", 'hosts\\[0\\] \\(ada@mac1\\), "python" is "python3"; expected a path there'),
        ("cwd", 7, '"cwd" is 7; expected a path there that begins with / or ~/'),
        ("user", "bob", '"user": "bob"; expected one user, here or in "ssh"'),
        ("port", "22", '"port": "22"; expected one number'),
        ("port", True, '"port": true; expected one number'),
        ("rdna", [], 'has "rdna"; did you mean "rdma"'),
    ],
)
def test_a_field_that_cannot_be_is_named(field, value, said):
    with pytest.raises(HostfileError, match=said):
        read_hostfile(json.dumps([{"ssh": "ada@mac1", field: value}]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mac1 python=python3", 'python is "python3"; expected a path there'),
        (
            "mac1 pythons=/opt/python",
            "'pythons=/opt/python' is not understood; expected <host> slots=<number of ranks> python=",
        ),
        ("mac1 cwd=/a cwd=/b", "'cwd=/b' is not understood"),
        ("mac1 cwd='/a", "No closing quotation"),
        ("-oProxyCommand=x", "is no host"),
    ],
)
def test_an_entry_that_cannot_be_is_named(words, said):
    with pytest.raises(HostfileError, match=said):
        hosts_in(words)


def test_an_ipv6_name_is_no_address_for_mlx():
    assert host_named("fd88::13").addresses == () and host_named("10.0.0.3").addresses == ("10.0.0.3",)
