"""Take the pictures of a run's page that the documentation shows: `make pictures`, after `make demo`.

    python docs/pictures/make.py [RUN FOLDER]

The run is by default the latest one under runs/. Its page is written anew first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from chromium import Scheme, chromium, find_chromium

HERE = Path(__file__).resolve().parent


class Shot(NamedTuple):
    """A picture: the size in pixels of what it shows, and the scheme of its colours."""

    width: int
    height: int
    scheme: Scheme

    @property
    def path(self) -> Path:
        """Where it stands."""
        return HERE / f"report-{self.scheme}-{self.width}.png"


SHOTS = (Shot(1400, 880, "light"), Shot(1400, 880, "dark"), Shot(400, 1000, "dark"))
"""Few and small: a repository keeps every version of a picture."""


def main(words: list[str]) -> int:
    """Write the page of a run and take its pictures; return the exit code."""
    program = find_chromium()
    if program is None:
        print("no Chromium is installed (Debian: chromium)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", "qat_tft", "report", *words, "--out", str(page)], check=True)
        with chromium(program) as browser:
            for shot in SHOTS:
                tab = browser.open(page, shot.width, shot.height, scheme=shot.scheme)
                shot.path.write_bytes(tab.picture(shot.height))
                print(shot.path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
