"""``workbench verify``: whether N ranks train what one does, from a few steps of the script itself.

The script runs unmodified for a few steps on N ranks, and on one rank that is given batches N times
as large. The hook (`launching/capture/verify`) writes one trace per rank; `trace` reads them. What
must hold whatever the batch is asked of the N ranks alone (`data_rules`, `model_rules`,
`rank_rules`). Where both runs read the same samples in a step, which is measured and not assumed,
`comparing` sets losses, gradients and weights beside each other. `verify` puts it together.
"""
