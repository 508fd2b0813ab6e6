"""Examples to fine-tune on: which form they have, what is wrong with them, how the model sees them.

`examine` reads a file once and says what is in it; `token_report` counts it with a tokenizer;
`read_examples` and `Encoder` are what the recipe finetune.py trains on. No torch is loaded here.
"""

from workbench.training_data.encode import EncodedExample, Encoder
from workbench.training_data.examine import examine, form_of_source, read_examples
from workbench.training_data.forms import check_objective
from workbench.training_data.locate import locate
from workbench.training_data.measure import TokenOptions, TokenReport, token_report
from workbench.training_data.tokenizer import load_tokenizer
from workbench.training_data.unused import unused_note
from workbench.training_data.values import DataReport, Example, RowError, RowResult

__all__ = [
    "DataReport",
    "EncodedExample",
    "Encoder",
    "Example",
    "RowError",
    "RowResult",
    "TokenOptions",
    "TokenReport",
    "check_objective",
    "examine",
    "form_of_source",
    "load_tokenizer",
    "locate",
    "read_examples",
    "token_report",
    "unused_note",
]
