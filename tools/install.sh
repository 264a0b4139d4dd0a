#!/bin/sh
# Makes the virtual environment in $1 and installs codriver into it. Called by the Makefile; see there for the settings.
set -eu
venv=$1

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "codriver needs Python 3.11 or newer, and $PYTHON is $("$PYTHON" --version 2>&1)." >&2
    echo "Give another one: make PYTHON=/path/to/python3.11" >&2
    exit 1
}
if [ ! -x "$venv/bin/python" ]; then
    "$PYTHON" -m venv "$venv" || {
        rm -rf "$venv"
        echo "Python's venv module is not complete here. On Debian and Ubuntu: apt install python3-venv" >&2
        exit 1
    }
fi

# The CPU wheels of torch lie on an index of their own. Where it cannot be reached, pip's own index has to do.
index=""
if [ -n "$TORCH_INDEX" ]; then
    url="https://download.pytorch.org/whl/$TORCH_INDEX"
    if "$venv/bin/python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$url/" 2>/dev/null; then
        index="--index-url $url"
    fi
fi
if [ -z "$("$venv/bin/python" -m pip list --format=freeze 2>/dev/null | grep -i "^$(echo "$TORCH" | sed 's/==.*//')==")" ]; then
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $index "$TORCH"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
