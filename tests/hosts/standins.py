"""Stand-ins for commands that only other machines have: each says what was recorded there.

A folder of them goes at the head of a host's PATH. `says` is all that most need::

    StandIns(folder).says("rdma_ctl status", "enabled\\n")
    StandIns(folder).says("ibv_devices", "", code=127, err="ibv_devices: command not found\\n")

A command without a recording for its arguments fails with exit code 64 and says so.
"""

from __future__ import annotations

from pathlib import Path

_SAYS = """\
#!/bin/sh
said='{recorded}'
name="${{0##*/}}"
file="$said/$name${{1:+ $*}}"
[ -f "$file" ] || {{ echo "$name: nothing is recorded for: $*" >&2; exit 64; }}
cat "$file"
[ ! -f "$file.err" ] || cat "$file.err" >&2
[ ! -f "$file.code" ] || exit "$(cat "$file.code")"
"""


class StandIns:
    """The stand-ins of one host, in `folder`; `bin` is what its PATH needs."""

    def __init__(self, folder: Path) -> None:
        self.bin, self._recorded = folder / "bin", folder / "recorded"
        self.bin.mkdir(parents=True, exist_ok=True)
        self._recorded.mkdir(exist_ok=True)

    def says(self, command: str, out: str, *, code: int = 0, err: str = "") -> None:
        """From now on `command`, a name and its arguments apart by one space, says this."""
        name = command.split()[0]
        if not (self.bin / name).exists():
            self.runs(name, _SAYS.format(recorded=self._recorded))
        for ending, text in (("", out), (".err", err), (".code", str(code) if code else "")):
            path = self._recorded / f"{command}{ending}"
            if text or not ending:
                path.write_text(text)
            else:
                path.unlink(missing_ok=True)

    def runs(self, name: str, script: str) -> None:
        """A stand-in that must do more than to repeat what was said."""
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def forget(self) -> None:
        """Take all of them away."""
        for folder in (self.bin, self._recorded):
            for path in folder.iterdir():
                path.unlink()
