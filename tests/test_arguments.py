"""What a user asked for, before anything starts."""

from __future__ import annotations

from allranks.arguments import hosts_of


def test_a_variable_without_a_value_in_a_hostfile_is_empty_as_mlx_launch_has_it() -> None:
    _, _, env = hosts_of(None, None, '{"envs": ["A=b=c", "EMPTY"], "hosts": [{"ssh": "localhost"}]}', 1)
    assert env == {"A": "b=c", "EMPTY": ""}
