"""The README's picture: the top of a run's report in headless Chromium (Debian's package `chromium`).

python tools/screenshot.py runs/<name>/report.html docs/images/quickstart.png
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    report, picture = (Path(word).resolve() for word in sys.argv[1:3])
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no chromium here; on Debian: apt install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as profile:
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *quiet]
            + [f"--user-data-dir={profile}", "--window-size=1280,1360", "--virtual-time-budget=5000"]
            + [f"--screenshot={picture}", report.as_uri()],
            check=True,
            capture_output=True,
        )
    print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
