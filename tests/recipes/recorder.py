"""Runs gpt.py's own main() and writes, per rank, each step's losses to the last digit.

Started as a script by the tests: recorder.py FOLDER <arguments of gpt.py>.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workbench" / "recipes"))

import gpt
from recipe_options import find_checkpoint


def main() -> None:
    folder, losses = Path(sys.argv[1]), []
    result = folder / f"rank-{os.environ.get('RANK', '0')}.json"
    train_step = gpt.Trainer.step

    def step(self, number):
        of_step = train_step(self, number)
        losses.append([number, *(loss.item() for loss in of_step)])
        result.write_text(json.dumps(losses))  # now: a rank that aborts ends the other ones
        return of_step

    gpt.Trainer.step = step
    options = gpt.parse_options(sys.argv[2:])
    options.checkpoint = find_checkpoint(options)
    gpt.main(options)


if __name__ == "__main__":
    main()
