#!/usr/bin/env bash
# For rented machines where JupyterLab already runs (RunPod, Vast, Lambda and the like): makes the
# environment beside the system's torch, registers it as a kernel of that JupyterLab, says what to open.
#
#   bash environments/pod-start.sh [--into-server] [--extras LIST] [--dir DIR]
#
# Run again whenever the pod was restarted: what is there already takes a second.
set -euo pipefail
shopt -s inherit_errexit

say() { printf '%s\n' "$*"; }
die() {
  printf 'pod-start: %s\n' "$1" >&2
  printf 'Next: %s\n' "$2" >&2
  exit "${3:-1}"
}

into_server=()
extras=()
dir=
while (($#)); do
  case $1 in
    --into-server) into_server=(--into-server) ;;
    --extras | --dir)
      (($# > 1)) || die "$1 needs a value." "See environments/pods.md." 2
      if [[ $1 == --extras ]]; then extras=(--extras "$2"); else dir=$2; fi
      shift
      ;;
    -h | --help)
      sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "unknown option $1; allowed are --into-server, --extras LIST, --dir DIR." "Leave it out." 2 ;;
  esac
  shift
done

# The directory that outlives the pod's container, where the host has one.
workspace() {
  local candidate
  for candidate in "${WORKBENCH_WORKSPACE:-}" /workspace /lambda/nfs/* "$HOME"; do
    if [[ -n $candidate && -d $candidate && -w $candidate ]]; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no directory to work in: none of \$WORKBENCH_WORKSPACE, /workspace, \$HOME can be written." \
    "Set WORKBENCH_WORKSPACE to one that can."
}

# The checkout this file lies in; else one in the workspace; else a clone of WORKBENCH_REPO.
checkout() {
  local here
  here=$(cd "$(dirname "${BASH_SOURCE[0]:-.}")/.." && pwd)
  if [[ -n $dir ]]; then
    here=$dir
  elif [[ ! -f $here/environments/setup_venv.py ]]; then
    here=$(workspace)/training-workbench
  fi
  if [[ ! -f $here/environments/setup_venv.py ]]; then
    [[ -n ${WORKBENCH_REPO:-} ]] ||
      die "no checkout at $here." "Clone the repository there, or set WORKBENCH_REPO to its address."
    git clone -- "$WORKBENCH_REPO" "$here" >&2
  fi
  (cd "$here" && pwd)
}

# The first Python whose torch was built for a GPU (that build fits this host's driver); else the
# first that is new enough. A pod may have several, and plain "python3" is not always the one.
system_python() {
  local candidate found new_enough=
  for candidate in "${PYTHON:-}" python3 /opt/conda/bin/python3 /venv/main/bin/python3 \
    /usr/local/bin/python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    [[ -n $candidate ]] || continue
    found=$(command -v "$candidate") || continue
    "$found" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    new_enough=${new_enough:-$found}
    if "$found" -c 'import sys, torch; v = torch.version
sys.exit(not (v.cuda or getattr(v, "hip", None)))' 2>/dev/null; then
      printf '%s\n' "$found"
      return
    fi
  done
  [[ -n $new_enough ]] || die "no Python 3.10 or newer was found." \
    "Install one (apt-get install python3 python3-venv), or set PYTHON=/path/to/python3."
  printf '%s\n' "$new_enough"
}

main() {
  local project python
  project=$(checkout)
  python=$(system_python)
  say "Checkout: $project"
  say "System Python: $python"
  # The environment lies beside the checkout's files; --torch auto keeps the pod's own torch.
  "$python" "$project/environments/setup_venv.py" "${extras[@]}"
  "${WORKBENCH_VENV:-$project/.venv}/bin/python" "$project/environments/register_kernel.py" "${into_server[@]}"
  bash "$project/environments/keep-key.sh" "$(workspace)"
}

main
