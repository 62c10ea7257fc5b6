"""Diagnose hosts before ranks are started on them: facts in, findings out. The caller collects the facts."""

from .all_checks import CHECKS, examine
from .finding import Check, Finding, Severity
from .host_facts import COMMANDS, Asked, HostFacts, facts_of

__all__ = ["CHECKS", "COMMANDS", "Asked", "Check", "Finding", "HostFacts", "Severity", "examine", "facts_of"]
