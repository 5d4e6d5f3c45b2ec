# Sourced by the other scripts: makes the project's virtual environment when there is none, and sets $PYTHON.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD

find_python() {
    local candidate
    for candidate in "${PYTHON_FOR_VENV:-}" python3.11 python3.12 python3.13 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "async_loader needs Python 3.11 or newer, and none was found; set PYTHON_FOR_VENV to one" >&2
    return 1
}

# ensure_venv EXTRA...: .venv with the package (editable) and these extras; does nothing when they are there already.
ensure_venv() {
    local extras stamp wanted base
    extras=$(IFS=,; echo "$*")
    stamp=$ROOT/.venv/.installed-$(echo "$extras" | tr ',' '-')
    wanted=$(cat "$ROOT/setup.cfg" "$ROOT/constraints.txt" | cksum)
    PYTHON=$ROOT/.venv/bin/python
    if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x "$PYTHON" ]; then
        base=$(find_python) || exit 1
        echo "== making a virtual environment in .venv ($("$base" --version))"
        "$base" -m venv "$ROOT/.venv" || exit 1
    fi
    echo "== installing async_loader[$extras] and what it needs into .venv (once; torch is the large part)"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -c "$ROOT/constraints.txt" -e "$ROOT[$extras]" || exit 1
    echo "$wanted" >"$stamp"
}
