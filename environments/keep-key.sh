#!/usr/bin/env bash
# keep-key.sh DIR: keep the user's record key in DIR, which outlives this container's home.
#
# The key proves which runs this user's own workbench wrote. Without it `workbench resume` on the
# next pod takes them for downloads and asks for `workbench adopt` first.
set -euo pipefail

state=${XDG_STATE_HOME:-$HOME/.local/state}/training-workbench
kept=$1/.training-workbench
# A key that is there already stays, and so does a home that itself lies on the lasting disk.
if [[ -e $state || -L $state || $HOME/ == "$1"/* || $1/ == "$HOME"/* ]]; then
  exit 0
fi
mkdir -p "$(dirname "$state")"
mkdir -p "$kept"
chmod 700 "$kept"
ln -s "$kept" "$state"
