#!/usr/bin/env bash
# The container's command: JupyterLab behind a token, files readable by their owner only.
set -euo pipefail
umask 077

# Jupyter takes JUPYTER_TOKEN from the environment: the command line can be read by every process.
# Unset or empty, it makes a random token itself and prints the address once, to the container's log.
for word in "$@"; do
  case $word in
    *token=* | *.token | *password=* | *.*password | *allow_origin* | *disable_check_xsrf* | *allow_unauthenticated*)
      printf 'docker-start: %s is refused: this server listens to the network.\n' "${word%%=*}" >&2
      printf 'Next: set a token with -e JUPYTER_TOKEN=…, or leave it out for a random one.\n' >&2
      exit 2
      ;;
  esac
done

workspace=${WORKBENCH_WORKSPACE:-/workspace}
notebooks=$(dirname "${BASH_SOURCE[0]}")/../notebooks
# The server's root is the mounted directory, so the notebooks go there once; the user's copy stays.
if [[ -d $notebooks && ! -e $workspace/notebooks ]]; then
  cp -R "$notebooks" "$workspace/notebooks"
fi

bash "$(dirname "${BASH_SOURCE[0]}")/keep-key.sh" "$workspace" ||
  printf 'docker-start: %s cannot be written: runs of this container need workbench adopt in the next.\n' "$workspace" >&2

port=${WORKBENCH_PORT:-8888}
exec "${WORKBENCH_PYTHON:-/opt/workbench/.venv/bin/python}" -m jupyterlab --no-browser --ip=0.0.0.0 \
  --port="$port" --ServerApp.port_retries=0 --ServerApp.root_dir="$workspace" \
  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb "$@"
