"""What goes wrong in a run and why: rules over what was recorded, each giving a `Finding`.

The kinds are stable words:

numbers
    ``nan-loss``, ``inf-loss``: the first loss that was no number, and whose it was.
    ``nan-gradient``: gradient norms that are no number while the loss is one.
    ``loss-spike``: the latest losses are far above those before.
    ``divergence``: the loss is well above where it began.
    ``plateau``: the loss has stopped falling, or never fell.
    ``rates-differ``: the ranks have learning rates of their own.
    ``ranks-diverge``: the ranks train models of their own.
    ``weights-drift``: copies of a parameter are not equal on all ranks.
    ``weights-unchanged``: no parameter that is looked at changes.
    ``no-gradient``: a rank has no gradient where another one has.
progress
    ``hang``: a rank does not reach the next backward pass, or all wait for one another.
    ``deadlock``: the ranks wait in different collectives.
    ``stopped-rank``: a rank's process is stopped (state T).
    ``gil-held``: C code of a rank holds the interpreter, so that none of its threads runs.
    ``exit-hang``: a rank does not end a minute after another ended, or after it left its group.
    ``long-step``: no step ends, but the ranks are at work, or one waits for its own program.
    ``slow-start``: no step for ten minutes, and hardly any work.
    ``slow-save``: a checkpoint has been in the making for ten minutes.
    ``steps-redone``: the script went back to an earlier step by itself.
speed
    ``straggler``: the other ranks wait for one rank, step after step.
    ``imbalanced-work``: the ranks wait for the one with the largest batch, or the longest stage.
    ``input-bound``: three tenths of the step are waiting for data.
    ``communication-bound``: the exchange of gradients or updated weights takes much of the step.
    ``slow-down``: steps take half as long again as at the start.
    ``low-utilisation``: the GPUs wait most of the time.
    ``scaling``: less than 70 % of what the ranks would do alone.
failure
    ``rank-failed``: a rank's own exception or exit code.
    ``rank-left``: a rank ended its script well while the others trained on.
    ``rank-killed``: a rank was ended by a signal.
    ``killed-for-memory``: a rank was ended by the kernel's memory killer.
    ``out-of-memory``: an allocation failed, on the GPU or the host.
    ``launcher-failed``, ``launcher-killed``: the launcher ended first.
    ``crash-at-exit``: a process died after its script had ended well.
    ``checkpoint-failed``: the checkpoint of a stop could not be saved.
    ``script-arguments``: the script refused its arguments.
    ``no-gpu``, ``device-string``, ``version-mismatch``, ``version-conflict``,
    ``circular-import``, ``own-module``, ``missing-module``,
    ``unknown-architecture``, ``unexpected-argument``, ``compile-failed``, ``no-launcher``,
    ``no-process-group``, ``disk-full``, ``open-files``, ``port-in-use``, ``network-interface``,
    ``gpu-lost``, ``cuda-error``, ``gpu-not-ready``, ``gpu-busy``, ``duplicate-gpu``,
    ``device-ordinal``, ``shared-memory``, ``gpu-initialization``, ``gpu-library``, ``gpu-error``,
    ``spawn-guard``, ``cuda-fork``, ``weights-only``,
    ``unpicklable``, ``loader-worker``, ``unused-parameters``, ``ready-twice``,
    ``state-dict-mismatch``, ``wrap-class``, ``checkpoint-device``, ``checkpoint-layout``,
    ``device-mismatch``, ``dtype-mismatch``, ``uneven-samples``, ``shape-mismatch``,
    ``index-out-of-range``, ``no-gradient``, ``graph-reused``, ``nan-raised``, ``access-denied``,
    ``tokenizer``, ``hub-unreachable``, ``download-failed``, ``not-on-hub``, ``damaged-file``,
    ``no-terminal``, ``permission``, ``unreadable-data``, ``missing-file``, ``file-or-folder``,
    ``missing-key``, ``recursion``, ``collective-timeout``, ``nccl-error``,
    ``collective-mismatch``, ``peer-lost``, ``timeout``: known errors, by text.
hardware
    ``thermal-throttling``, ``power-throttling``: a GPU is slowed down by heat or power.
    ``slow-clock``: a GPU works with clocks well below its peers' or its own best.
    ``ecc-errors``: uncorrectable memory errors since the start.
    ``xid-N``: the driver reported Xid N.
    ``gpu-lost``: a GPU does not answer any more.
host
    ``host-memory``, ``shared-memory``, ``disk``: nearly full, or soon to be.
    ``cpu-limit``: a container's CPU limit refuses much of the time that the run asks for.
    ``memory-growth``, ``gpu-memory-growth``: a rank needs more memory with every step.
    ``swap``: a part of a rank is swapped out.
    ``host-contention``: ranks are late because they wait for a core, or for their cgroup's quota.
    ``unsupervised``: the run's supervisor and watcher are gone; seen by who reads, never kept.
script
    ``world-size``: the process group has another size than was asked for.
    ``spawned-groups``: each launched process starts ranks of its own, and none trains.
    ``no-steps``: the script ended without an optimizer step.
    ``caught-error``: it ended well by its exit code, by an exception that it only printed.
    ``skipped-errors``: forward or backward passes or the loader raised; the loop continued.
    ``wrapped-twice``: DDP inside of DDP.
    ``not-sharded``: DDP of the script's own where FSDP or ZeRO was asked for.
    ``no-distributed-sampler``: every rank reads the whole data set.
    ``same-data``: all ranks train on the same batches.
    ``missing-set-epoch``: every epoch has the same order.
    ``unused-parameters``, ``needless-find-unused``: parameters without a gradient under DDP.
economy
    ``no-checkpoint``: an hour of work that nothing could be resumed from.
    ``mirror-behind``: the copy on an object store cannot be kept in step.
    ``checkpoint-interval``: checkpoints too far apart for the rate of interruptions.
    ``idle-gpus``, ``idle-machine``: nothing is computed any more.
    ``unused-gpu``: a GPU does nothing while its peers train.
"""
