"""Check whether the notebook can log in to the hosts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from allranks_backends.runtimes.placement_checks import known_as, login_and_port

from .finding import Finding, sentence_and_fix
from .host_facts import Asked, HostFacts


def logs_in(hosts: Sequence[HostFacts], _asked: Asked) -> Iterator[Finding]:
    for host in hosts:
        if not host.trouble:
            continue
        what, fix = sentence_and_fix(host.trouble)
        evidence = host.said[-1] if host.said else ""
        at = ""
        if any("IDENTIFICATION HAS CHANGED" in line for line in host.said):
            fix, at = f"ssh-keygen -f {shlex.quote(host.known_hosts)} -R {shlex.quote(known_as(host.name))}", "here"
            evidence = next((line for line in host.said if line.startswith("SHA256:")), evidence)
        elif "refused the ssh key" in what:
            login, port = login_and_port(host.name)
            fix, at = shlex.join(["ssh-copy-id", *(["-p", str(port)] if port else []), login]), "here"
            if not host.has_agent:
                what = f"{what.removesuffix('.')}; no ssh agent runs here, which keys with a passphrase need."
                fix = f'eval "$(ssh-agent)" && ssh-add && {fix}'
        yield Finding("error", host.name, what, evidence, fix, at)
