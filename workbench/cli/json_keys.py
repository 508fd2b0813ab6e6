"""What each command prints with ``--json``: the keys of the object, or of each one of an array.

``workbench COMMAND --help`` shows them, and a test holds them and the commands together. A key may
be added; none is renamed or taken away. Units are in the names, unknown is null. An error is
``{"error": MESSAGE}`` in place of all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill
from typing import Final

_RUN = "run name state outcome"
_SPEED = "tokens_per_second samples_per_second"
_SHOW = (
    f"{_RUN} message rehearsal exit_code failed_rank strategy processes world_size device script "
    "steps steps_redone loss_first loss_last nonfinite_step step_seconds_median "
    f"{_SPEED} throughput_upper_bound peak_memory_bytes predicted comparison usd_so_far energy "
    "restarts attempts attempts_before elapsed_seconds created_at started_at ended_at dir command "
    "findings read_only"
)
_STARTED = "run dir command config_files"
_MEMORY = (
    "parts total_bytes allocated_bytes reserved_bytes on_card_bytes card_bytes headroom_bytes fits "
    "verdict range "
    "host_bytes peak peaks per_stage assumptions sources gpu gpu_unverified model parameters "
    "strategy world_size notes trainer"
)
_TUNING = "study kind best why trials"
_LABELS = "run tags note archived"
_SWEEP = (
    "sweep state message parameters metric metric_text direction stop first_look sampler planned "
    "predicted so_far best trials notes dir"
)
_ANSWER = "run action arguments at done why ranks"
_TARGET = "name address findings"
_SERVER = "pid python modules threads started running cpu_seconds idle_seconds memory_bytes"


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The form of one command's answer."""

    words: str
    """The keys, separated by spaces."""
    array: bool = False
    """Whether it is an array of such objects."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names, each once."""
        return tuple(dict.fromkeys(self.words.split()))


FORMS: Final = {
    "launch": JsonForm(f"{_STARTED} warnings nodes"),
    "launch --wait": JsonForm(f"{_STARTED} warnings nodes {_SHOW}"),
    "resume --dry-run": JsonForm("run same_run step checkpoint command config_files notes"),
    "launch --dry-run": JsonForm(
        f"{_STARTED} environment shell predicted predicted_time predicted_usd "
        "predicted_hours usd_per_hour epoch largest_micro_batch shortest_epoch trainer warnings"
    ),
    "measure": JsonForm(
        "script arguments run batches batch_source precision optimizer parameters micro_batch "
        "accumulate seq_len device parts flops step_seconds notes workload"
    ),
    "verify": JsonForm("script runs steps correct comparison verdicts notes kept"),
    "launch SCRIPT -- --help": JsonForm("recipe help read complete note options"),
    "runs": JsonForm(
        f"{_RUN} strategy processes world_size steps loss_first loss_last nonfinite_step {_SPEED} "
        "created_at started_at ended_at message rehearsal resumed_from resumed_step rerun_of "
        "sweep trial tags note archived",
        array=True,
    ),
    "show": JsonForm(
        f"{_SHOW} resumed_from resumed_step rerun_of sweep trial provenance actions mirror"
    ),
    "metrics": JsonForm("step rank time loss lr grad_norm step_seconds", array=True),
    "metrics --list": JsonForm(
        "name figure group is_validation_loss better count last last_step min min_step max "
        "max_step nonfinite nonfinite_step best best_step",
        array=True,
    ),
    "metrics --samples": JsonForm("step prompt answer", array=True),
    "stop": JsonForm("run outcome processes_left"),
    "set": JsonForm(_ANSWER),
    "look": JsonForm(_ANSWER),
    "checkpoint": JsonForm(_ANSWER),
    "evaluate": JsonForm(_ANSWER),
    "demo": JsonForm(_SHOW),
    "doctor": JsonForm("ok checks"),
    "resume": JsonForm(f"{_STARTED} notes nodes"),
    "resume --wait": JsonForm(f"{_STARTED} notes nodes {_SHOW}"),
    "rerun": JsonForm(f"{_STARTED} notes nodes differs"),
    "rerun --wait": JsonForm(f"{_STARTED} notes nodes differs {_SHOW}"),
    "fork": JsonForm(f"{_STARTED} notes nodes differs"),
    "fork --wait": JsonForm(f"{_STARTED} notes nodes differs {_SHOW}"),
    "queue list": JsonForm("state devices jobs"),
    "queue move": JsonForm("state devices jobs"),
    "queue drop": JsonForm("run outcome"),
    "queue pause": JsonForm("state devices jobs"),
    "queue start": JsonForm("state devices jobs"),
    "queue slots": JsonForm("state devices jobs"),
    "sweep start": JsonForm(_SWEEP),
    "sweep start --dry-run": JsonForm("plan room predicted usd_per_hour first_command notes"),
    "sweep list": JsonForm(_SWEEP, array=True),
    "sweep show": JsonForm(_SWEEP),
    "sweep stop": JsonForm(_SWEEP),
    "sweep resume": JsonForm(_SWEEP),
    "sweep best": JsonForm(
        "sweep metric metric_text number state values value run why pruned_at steps hours usd "
        "command"
    ),
    "adopt": JsonForm("run adopted accepted state"),
    "checkpoints": JsonForm(
        "path name step kind bytes saved_at sealed problem loss world_size strategy abandoned "
        "by_script doubt",
        array=True,
    ),
    "push": JsonForm("run url files bytes sent_bytes checkpoints step seconds notes"),
    "pull": JsonForm("run directory url files bytes received_bytes checkpoints step notes"),
    "diagnose": JsonForm(
        "id kind evidence cause next next_command confidence severity rank node gpu step seen_at "
        "cleared_at replaced_by ended_run phase lost_share lost_usd_per_hour",
        array=True,
    ),
    "replay": JsonForm("run until steps looks elapsed_seconds said findings view"),
    "rehearse": JsonForm(f"{_SHOW} rehearsal_of notes"),
    "memory": JsonForm(
        f"{_MEMORY} host_memory_bytes host_fits cautions headroom fits_with_headroom explanation "
        "switches largest_micro_batch longest_sequence fits_on options"
    ),
    "memory --inference": JsonForm(f"{_MEMORY} cache_bytes_per_token"),
    "cost": JsonForm(
        "terms usd usd_known usd_low usd_high hours wall_hours wall_hours_low wall_hours_high "
        "lost_hours lost_hours_low lost_hours_high "
        "gpu_hours steps tokens usd_per_step usd_per_million_tokens usd_per_month hours_per_month "
        "idle_usd_per_hour tokens_per_second mfu checkpoint_interval_seconds interruptions step "
        "spot offer assumptions model strategy gpu fits notes trainer"
    ),
    "plan": JsonForm(
        "plans pareto rejected rejected_total rejected_by_reason combinations global_batch "
        "explanation sensitivity model workload run seconds misses notes trainer"
    ),
    "advise": JsonForm(
        "rule holds verdict reason next steps condition evidence numbers source corrects",
        array=True,
    ),
    "prices": JsonForm(
        "provider name gpu gpus usd_per_hour usd_per_gpu_hour spot_usd_per_hour region date source "
        "confidence marks available max_nodes network notes",
        array=True,
    ),
    "prices --refresh": JsonForm("offers providers"),
    "models": JsonForm(
        "id name parameters stated_parameters layers hidden heads kv_heads vocab experts kind "
        "aliases source date notes",
        array=True,
    ),
    "gpus": JsonForm(
        "id name vendor form_factor arch compute_capability memory_bytes memory_type "
        "memory_bytes_per_second bf16_flops fp16_flops fp8_flops tf32_flops fp32_flops link "
        "link_bytes_per_second pcie_generation pcie_bytes_per_second tdp_w year source date "
        "unverified notes aliases",
        array=True,
    ),
    "calibrate": JsonForm("calibration lines troubles stacks"),
    "calibrate --from": JsonForm(
        "name figures measured_at is_run stack gpu step_ratio memory_ratio version"
    ),
    "data": JsonForm(
        "path kind form columns rows examples first duplicates empty broken problems notes tokens"
    ),
    "data FOLDER": JsonForm("path captions pictures smallest_side largest_side problems first"),
    "scale": JsonForm("study target device cores curves failed notes rented"),
    "study batch-size": JsonForm(_TUNING),
    "study accumulate": JsonForm(_TUNING),
    "study workers": JsonForm(_TUNING),
    "study compression": JsonForm("study kind trials"),
    "profile": JsonForm("run folder steps ranks problems operations waits merged state nsys dcgm"),
    "compare": JsonForm("runs lineage configuration results logged aligned reach files"),
    "tag": JsonForm(_LABELS),
    "note": JsonForm(_LABELS),
    "archive": JsonForm(_LABELS, array=True),
    "delete": JsonForm("run bytes files checkpoints", array=True),
    "export": JsonForm("engine name nodes processes_per_node gpu spot files copies next notes out"),
    "export --trainer": JsonForm("trainer files command notes unproven out"),
    "export --why": JsonForm(
        "engine provider nodes spot bucket image idle source date", array=True
    ),
    "export-model": JsonForm(
        "run checkpoint step path family architecture parameters tensors bytes dtype fingerprint "
        "merged logits_difference loads notes push"
    ),
    "generate": JsonForm("run checkpoint prompt trained base"),
    "ui": JsonForm("url token store"),
    "submit": JsonForm(f"{_STARTED} engine"),
    "submit --wait": JsonForm(f"{_STARTED} engine {_SHOW}"),
    "submit --dry-run": JsonForm("run dir script"),
    "notify add": JsonForm(_TARGET),
    "notify list": JsonForm(_TARGET, array=True),
    "notify remove": JsonForm(_TARGET),
    "notify test": JsonForm(_TARGET),
    "lessons": JsonForm("folder copied kept first"),
    "warm start": JsonForm(_SERVER),
    "warm status": JsonForm(_SERVER, array=True),
    "warm stop": JsonForm(_SERVER, array=True),
}
"""By command, with the option that changes the form."""


def help_text(command: str) -> str | None:
    """What ``--help`` of a command says of its JSON; None where it prints none."""
    forms = {name: form for name, form in FORMS.items() if f"{name} ".startswith(f"{command} ")}
    if not forms:
        return None
    lines = [f"{name} --json: {_described(form)}" for name, form in forms.items()]
    return "\b\n" + "\n".join(fill(line, 78, subsequent_indent="  ") for line in lines)


def _described(form: JsonForm) -> str:
    return f"{'an array of objects' if form.array else 'one object'} with {', '.join(form.keys)}"
