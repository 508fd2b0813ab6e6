"""Dollars and kWh that a job may take, counted by its start script: no engine counts them.

Every machine counts for itself: dollars are the hours of its training at the price of all machines,
kWh those of its own GPU boards, of which it has an equal share. What it has taken stands in a file
beside the checkpoints, so that further starts go on counting. The training is ended as a time limit
ends it, and the machine that is first tells the others.
"""

from __future__ import annotations

import math
import shlex

from workbench.engines.job import EngineJob, checkpoint_folder
from workbench.recover.limits import sentence

_EVERY_SECONDS = 10
_GRACE_SECONDS = 120  # from SIGTERM to the kill
_HOUR_SECONDS, _KWH_JOULES = 3600, 3.6e6
_WATTS = (
    "nvidia-smi --query-gpu=power.draw --format=csv,noheader,nounits 2> /dev/null "
    "| awk '{ sum += $1 } END { printf \"%.0f\", sum }'"
)
_TEXT = """\
# No engine counts dollars or kWh, so this machine does; further starts go on from its file.
spent=@FOLDER@/spent; mkdir -p "$spent"
mine="$spent/node-"@NODE@; over="$spent/over-@LIMITS@"
watts() { @WATTS@ || true; }
check() { @CHECKS@; [ -e "$over" ]; }
seconds=0; joules=0
if [ -s "$mine" ]; then read -r seconds joules < "$mine"; fi
if check; then cat "$over"; exit 0; fi
@NEEDS@count() {
  local at=$SECONDS now
  while sleep @EVERY@; do
    now=$SECONDS; seconds=$((seconds + now - at))
    joules=$((joules + (now - at) * $(watts))); at=$now
    echo "$seconds $joules" > "$mine.new" && mv "$mine.new" "$mine"
    if check; then kill -TERM "$1"; sleep @GRACE@; kill -KILL "$1"; fi
  done
}
@COMMAND@ &
training=$!
trap 'kill -TERM $training' TERM
count $training > /dev/null 2>&1 &
counter=$!
code=0
wait $training || code=$?
while kill -0 $training 2> /dev/null; do code=0; wait $training || code=$?; done
# Another machine may have been the first: its word comes within moments.
for _ in $(seq @EVERY@); do [ $code = 0 ] || [ -e "$over" ] || sleep 1; done
kill $counter 2> /dev/null || true
if [ -e "$over" ]; then cat "$over"; exit 0; fi
exit $code"""
_NEEDS = """\
if ! [ "$(watts)" -gt 0 ]; then
  echo '--max-kwh needs GPUs whose power nvidia-smi tells.' >&2; exit 1
fi
"""


def counted(job: EngineJob, command: str, node_rank: int | str) -> str:
    """`command` as the end of a machine's script, under the job's dollars and kWh if it has any.

    Args:
        job: With `max_usd` and `max_kwh`.
        command: What trains.
        node_rank: Which machine it is, or a shell expression with its quotes.
    """
    limits = _limits(job)
    if not limits:
        return command
    checks = (
        f'if [ "${name}" -ge {most} ]; then echo {shlex.quote(text)} > "$over"; fi'
        for name, most, text in limits
    )
    values = {
        "@FOLDER@": shlex.quote(checkpoint_folder(job) or "."),
        "@NODE@": str(node_rank),
        "@LIMITS@": "-".join(str(most) for _, most, _ in limits),  # higher ones begin without it
        "@WATTS@": "echo 0" if job.max_kwh is None else _WATTS,
        "@CHECKS@": "; ".join(checks),
        "@NEEDS@": "" if job.max_kwh is None else _NEEDS,
        "@EVERY@": str(_EVERY_SECONDS),
        "@GRACE@": str(_GRACE_SECONDS),
        "@COMMAND@": command,
    }
    text = _TEXT
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _limits(job: EngineJob) -> list[tuple[str, int, str]]:
    """Shell variable, the most that it may be on one machine, what is said then."""
    limits: list[tuple[str, int, str]] = []
    if job.max_usd is not None:
        assert job.price is not None  # else refused
        most = max(1, math.floor(_HOUR_SECONDS * job.max_usd / job.price))
        limits.append(("seconds", most, sentence("max_usd", job.max_usd)))
    if job.max_kwh is not None:
        most = max(1, math.floor(_KWH_JOULES * job.max_kwh / job.nodes))
        limits.append(("joules", most, sentence("max_kwh", job.max_kwh)))
    return limits
