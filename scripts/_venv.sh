# Sourced by the other scripts: makes a virtual environment when it is not there, and sets $PYTHON.
# VENV (a folder), VENV_PYTHON (an interpreter or a version) and CONSTRAINTS (a file) may be set before.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD
VENV=.venv
VENV_PYTHON=${PYTHON_FOR_VENV:-}
CONSTRAINTS=constraints.txt

is_usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# find_python [WANTED]: prints an interpreter. WANTED is a command, a path, or a version such as 3.12 or 3.12.1.
find_python() {
    local wanted=${1:-} candidate pyenv=${PYENV_ROOT:-${HOME:-}/.pyenv}
    local candidates=(python3.11 python3.12 python3.13 python3 python)
    if [ -n "$wanted" ]; then
        candidates=("$wanted" "python$wanted")
        while IFS= read -r candidate; do
            candidates+=("$candidate")
        done < <(ls -d "$pyenv/versions/$wanted"{,.*}/bin/python 2>/dev/null | sort -rV)
    fi
    for candidate in "${candidates[@]}"; do
        if is_usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    if [ -n "$wanted" ]; then
        echo "no Python 3.11 or newer answers to '$wanted': give a command, a path, or a version that is installed" >&2
    else
        echo "async_loader needs Python 3.11 or newer, and none was found; set PYTHON_FOR_VENV to one" >&2
    fi
    return 1
}

# ensure_venv EXTRA...: $VENV with the package (editable) and these extras; does nothing when they are there already, or one
# that has all that they have: see setup.cfg.
ensure_venv() {
    local extras stamp wanted base found larger=()
    extras=$(IFS=,; echo "$*")
    stamp=$ROOT/$VENV/.installed-$(echo "$extras" | tr ',' '-')
    wanted=$(cat "$ROOT/setup.cfg" "$ROOT/$CONSTRAINTS" | cksum)
    PYTHON=$ROOT/$VENV/bin/python
    case $extras in
        demo | bench) larger=(test dev) ;;
        test) larger=(dev) ;;
    esac
    for found in "$extras" "${larger[@]}"; do
        if [ -x "$PYTHON" ] && [ "$(cat "$ROOT/$VENV/.installed-${found//,/-}" 2>/dev/null)" = "$wanted" ]; then
            return
        fi
    done
    if [ ! -x "$PYTHON" ]; then
        base=$(find_python "$VENV_PYTHON") || exit 1
        echo "== making a virtual environment in $VENV ($("$base" --version))"
        "$base" -m venv "$ROOT/$VENV" || exit 1
    fi
    echo "== installing async_loader[$extras] and what it needs into $VENV (once; torch is the large part)"
    # the variable holds for the build as well, so that its numba is the one that loads the kernels
    PIP_CONSTRAINT=$ROOT/$CONSTRAINTS "$PYTHON" -m pip install --quiet --disable-pip-version-check --timeout 60 --retries 10 \
        -c "$ROOT/$CONSTRAINTS" -e "$ROOT[$extras]" || exit 1
    echo "$wanted" >"$stamp"
}

# choose_venv PYTHON LOWEST: the environment of an interpreter ('' for the usual one), of the lowest versions if LOWEST is 1.
choose_venv() {
    if [ -n "$1" ]; then
        VENV_PYTHON=$(find_python "$1") || exit 1
        VENV=.venv-$("$VENV_PYTHON" -c 'import platform; print(platform.python_version())')
    fi
    if [ "$2" = 1 ]; then
        VENV=$VENV-lowest
        CONSTRAINTS=constraints-lowest.txt
    fi
}
