"""When a user is warned that a host's memory will be used up."""

from __future__ import annotations

from dataclasses import replace

from allranks.head.cell.absent_ranks import missing
from allranks.head.cell.low_memory import LowMemory
from allranks_backends.views import GpuView, Snapshot
from tests.widgets.streams import hanging, snapshot

GB = 10**9


def using(used: list[float], *, hosts: int = 1) -> Snapshot:
    """A world of four ranks whose hosts have 100 GB each; `used` has the GB in use on each host."""
    world = snapshot(4, hosts, 0.0)
    views = [
        replace(host, memory=100 * GB, memory_used=round(each * GB))
        for host, each in zip(world.hosts, used, strict=True)
    ]
    return replace(world, hosts=tuple(views))


def said(looks: list[float], *, every: float = 1.0) -> list[tuple[int, str]]:
    """At which look what was said, as memory is used."""
    watch = LowMemory(range(4))
    return [
        (number, finding.text)
        for number, used in enumerate(looks)
        for finding in watch.look(using([used]), number * every)
    ]


def test_a_host_is_warned_of_once_before_its_memory_is_used_up() -> None:
    (first, text), *more = said([50, 60, 70, 80, 90, 99])
    assert first == 3 and not more
    assert text.startswith("localhost has 20.0 GB of 100.0 GB memory left. 10.0 GB more are used each second. If")


def test_much_that_is_used_steadily_is_no_warning_and_little_that_is_left_is_one() -> None:
    assert not said([90] * 20)
    ((_, text),) = said([96] * 20)
    assert "left. If it is used up, the system ends a process" in text


def test_a_host_that_has_recovered_is_warned_of_again() -> None:
    assert [number for number, _ in said([96, 96, 50, 50, 50, 50, 96, 96])] == [0, 6]


def test_a_jump_that_is_over_is_no_growth() -> None:
    assert not said([10, 79, 79, 79, 79, 79])[1:]


def test_only_hosts_of_the_cell_are_watched_and_the_unknown_is_no_warning() -> None:
    watch = LowMemory([0, 1])
    (finding,) = watch.look(using([99, 99], hosts=2), 0.0)
    assert finding.ranks == (0, 1) and finding.text.startswith("studio-1 ")
    unknown = using([99])
    hosts = tuple(replace(host, memory_used=None) for host in unknown.hosts)
    assert not watch.look(replace(unknown, hosts=hosts), 1.0)


def on_gpus(used: list[float], kept: float = 0.0) -> Snapshot:
    """Four ranks, two on each of two GPUs of 80 GB; each rank keeps `kept` GB for reuse."""
    world = using([50.0])
    gpus = [GpuView(f"GPU-{number}", "NVIDIA H100", 0.9, 80 * GB, round(each * GB)) for number, each in enumerate(used)]
    ranks = [replace(view, gpu=gpus[view.rank // 2], mlx_cache=round(kept * GB)) for view in world.ranks]
    return replace(world, ranks=tuple(ranks))


def test_a_gpu_is_warned_of_before_its_memory_is_used_up_but_not_because_it_is_full() -> None:
    watch = LowMemory([0, 2, 3])
    looks = [watch.look(on_gpus([79, used]), float(now)) for now, used in enumerate([40, 50, 60, 70])]
    assert not looks[0] and not looks[1], "much is left"
    (finding,) = looks[2] + looks[3]
    assert finding.ranks == (2, 3) and finding.text.startswith(
        "The GPU of ranks 2-3 (NVIDIA H100 on localhost) has 20.0 GB of 80.0 GB memory left. 10.0 GB more are used "
        "each second. If it is used up, MLX raises an error on ranks 2-3."
    )


def test_what_mlx_keeps_for_reuse_is_not_used() -> None:
    watch = LowMemory(range(4))
    assert not any(watch.look(on_gpus([used, 10], kept=15), float(now)) for now, used in enumerate([50, 60, 70, 79]))


def test_a_gpu_that_is_too_hot_is_named_where_its_rank_is_late() -> None:
    world = hanging(4, 1, late=2)
    here = {rank.rank for rank in world.ranks if rank.state == "waiting"}
    ranks = [replace(view, gpu=GpuView(throttled=view.rank == 2)) for view in world.ranks]
    text = missing(here, replace(world, ranks=tuple(ranks)), {}, range(4))
    assert text.endswith("; the GPU of rank 2 on localhost is too hot and runs slower")


def test_swapping_and_heat_are_named_where_a_rank_is_late() -> None:
    world = hanging(4, 2, late=2)
    here = {rank.rank for rank in world.ranks if rank.state == "waiting"}
    assert "swaps" not in missing(here, world, {}, range(4))
    late = world.ranks[2].host
    hosts = [replace(each, swap_rate=3e8, throttled=True) if each.name == late else each for each in world.hosts]
    text = missing(here, replace(world, hosts=tuple(hosts)), {}, range(4))
    assert text.endswith(f"{late} is short of memory and swaps 300.0 MB/s; {late} is too hot and runs slower")
