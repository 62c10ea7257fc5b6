"""``%distributed notify`` in a notebook."""

from __future__ import annotations

from pathlib import Path

from tests.jupyter import Notebook


def test_ways_are_set_shown_and_tried(kernel: Notebook, tmp_path: Path) -> None:
    assert kernel.ok("%distributed notify").stdout == "No notifications: %distributed notify -h lists the ways.\n"
    refused = kernel.run("%distributed notify --over 5").error
    assert refused == "UsageError: choose at least one of --browser, --bell, --command and --url."
    assert "begins with https://" in kernel.run("%distributed notify --url ntfy.sh/x").error
    assert "invalid number 'x'" in kernel.run("%distributed notify --bell --over x").error
    file = tmp_path / "told"
    tried = kernel.ok(f"%distributed notify --browser --command 'echo $ALLRANKS_TEXT > {file}' --over 0 --test")
    assert tried.stdout == "Notifications of cells that take 0 s or longer, and of hangs: browser, command.\n"
    assert not tried.mime("application/javascript"), "a saved notebook tells nothing again"
    kernel.run("%distributed down")
    kernel.ok("%distributed up -n 1")
    kernel.ok("%%distributed\npass")
    kernel.until(lambda: file.exists() and "succeeded" in file.read_text(), 60)
    kernel.ok("%%distributed --no-wait\nimport time; time.sleep(1)")
    file.unlink()
    assert "9 s or longer" in kernel.ok("%distributed notify --over 9").stdout
    kernel.ok("%distributed notify --over 0")
    kernel.until(lambda: file.exists() and "succeeded" in file.read_text(), 60)
    assert kernel.ok("%distributed notify --off").stdout.startswith("No notifications")
    kernel.ok("%distributed down")
