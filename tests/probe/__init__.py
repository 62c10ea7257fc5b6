"""The report that a machine's owner can give: against pretended drivers, and on real ranks."""
