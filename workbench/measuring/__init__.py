"""``workbench measure``: what a script without a description trains, from two short runs of it.

A measured run is a run as any other (`launch`): its record, its logs and its outcome are in the
store, a script that fails shows its own traceback, Ctrl-C stops it. In it the hook's probe
(`launching/capture/probe`) traces one optimizer step storage by storage, times the next, and leaves
the script. A second run at another batch size (half, or 2 for 1) tells what of it grows with the
batch (`batches` says how the batch is changed; `fit` makes lines of the two). `described` makes a
`Workload` of it, whose model holds the measured step (`describe/measured`), so that every estimate,
plan and price takes it as it takes a model of the catalog: `estimate/measured` puts the states,
gradients and buffers of a layout beside the measured rest. `store/measurements` keeps it by the
script's content and arguments, where the next launch of the script finds it.
"""
