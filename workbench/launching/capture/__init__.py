"""The hook that records what an unmodified training script does, per rank.

It reaches the script's processes through ``PYTHONPATH=<this folder>/site`` (part of the printed
command; opt out with ``capture=False`` or ``--no-capture``, which leaves only the log redirection).
Nothing here imports `workbench`, torch or anything outside the standard library: `patches` waits
until the script itself has imported torch or accelerate.

- ``site/sitecustomize.py`` is found by Python, loads `hook`, chains to the user's own.
- ``hook.py`` decides whether this process is a rank, redirects its output, records its end.
- ``recorder.py`` keeps the step's account and appends the metric lines.
- ``patches.py`` observes backward, optimizer steps, gradient norms and the process group.
- ``pipelines.py`` does so for pipelines, where no rank calls backward itself.
- ``steering.py`` does what is asked at a step boundary, on all ranks or on none; ``overrides.py``
  has changed learning rates, ``tensor_looks.py`` statistics of a module's tensors.
- ``reader.py`` reads values off a GPU without waiting for it.
"""

from pathlib import Path

SITE_FOLDER = Path(__file__).parent / "site"
"""What goes onto PYTHONPATH."""
