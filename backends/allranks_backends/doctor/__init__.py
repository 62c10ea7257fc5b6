"""Diagnose hosts before ranks are started on them: facts in, findings out. The caller collects the facts."""

from .checks import CHECKS, examine
from .facts import COMMANDS, Asked, HostFacts, facts_of
from .finding import Check, Finding, Severity

__all__ = ["CHECKS", "COMMANDS", "Asked", "Check", "Finding", "HostFacts", "Severity", "examine", "facts_of"]
