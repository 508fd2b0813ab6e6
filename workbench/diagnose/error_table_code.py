"""Known errors of the script itself: tensors, checkpoints, files, arguments; see `error_table`."""

from __future__ import annotations

from workbench.diagnose.error_table import known_error

TRAINING = (
    known_error(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "Some parameters are not used in the loss: use find_unused_parameters=True (--find-unused) "
        "or freeze them.",
    ),
    known_error(
        "wrap-class",
        r"Could not find the transformer layer class (?P<name>\w+)",
        "The model does not contain a module of class {name}: omit --wrap (or "
        "fsdp_transformer_layer_cls_to_wrap), so that the repeated block is found automatically, or "
        "give the class of its blocks as print(model) shows it.",
        0.95,
    ),
    known_error(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        "A parameter is used twice in one backward pass: use use_reentrant=False for recomputing "
        "activations, or static_graph=True in DistributedDataParallel.",
    ),
    known_error(
        "state-dict-mismatch",
        r"[Ee]rror\(s\) in loading state_dict|Missing key\(s\) in state_dict|Unexpected key\(s\) in "
        r"state_dict|size mismatch for |loaded state dict (contains|has) a",
        "The checkpoint belongs to another model or wrapping: compare the names and shapes above "
        "with the model's (sizes, vocabulary, a prefix such as module. or _orig_mod.).",
    ),
    known_error(
        "checkpoint-device",
        r"Attempting to deserialize object on a? ?CUDA device",
        'The file was saved on a GPU that this host does not have: load it with map_location="cpu".',
        0.95,
    ),
    known_error(
        "checkpoint-layout",
        r"global metadata read failed|Can't find a valid checkpoint at|only supported when using "
        r"PyTorch FSDP|checkpoint being loaded used a DP world size|failed to resume from checkpoint",
        "There is no checkpoint in that folder that this layout loads: resume with the strategy "
        "and the number of ranks that saved it, or begin a new run from its weights.",
    ),
    known_error(
        "device-mismatch",
        r"Expected all tensors to be on the same device|found at least two devices|"
        r"Input type \(torch\.cuda\.\w+\) and weight type \(torch\.(?!cuda)|Input type "
        r"\(torch\.(?!cuda)\w+\) and weight type \(torch\.cuda|indices should be either on|"
        r"Cannot (copy out of|generate) .*(meta|device type)|[Tt]ensor on device .* is not on the "
        r"expected device|a leaf Variable on a different device",
        "Model and data are on different devices: move the batch (`x.to(device)`) in the line "
        "named, and build tensors there with device=x.device.",
    ),
    known_error(
        "dtype-mismatch",
        r"expected (m1 and m2|mat1 and mat2|scalar type|.{0,40}same dtype)|must have the same dtype|"
        r"[Ff]ound dtype \w+ but expected|[Ff]ound type|expected (target )?dtype|could not infer output dtype|one of the following scalar types|result type \w+ can't be cast|"
        r"Input type \(.*\) and (weight|bias) type \(.*\) should be the same|should have the same "
        r"dtype|not implemented for '(?P<name>\w+)'|unscale FP16 gradients|to be of (floating point|"
        r"type)|[Oo]nly [Tt]ensors of floating point",
        "Two tensors have different types: run the forward pass under autocast, or convert one in "
        "the line named (`x.to(weight.dtype)`; labels and indices are torch.long).",
    ),
    known_error(
        "uneven-samples",
        r"stack expects each tensor to be equal size|each element in list of batch should be of "
        r"equal size|Unable to create tensor, you should probably activate truncation",
        "The samples of one batch have different lengths: pad them in a collate_fn (tokenizer("
        "padding=True, truncation=True)), or cut them to one length.",
    ),
    known_error(
        "shape-mismatch",
        r"shapes cannot be multiplied|[Ss]ize mismatch|The size of tensor a|shape '.*' is invalid "
        r"for input of size|Sizes of tensors must match|to have \d+ channels|[Tt]arget size|to match "
        r"target batch_size|inconsistent tensor size|doesn't match the broadcast shape|Given "
        r"normalized_shape|must match (the )?(size|shape)|could not be broadcast together|"
        r"Expected (\d+D|input batch_size)|invalid for input of size|dimension specified as|"
        r"[Dd]imension out of range|must be broadcastable|mat1 dim|too many values to unpack|"
        r"Expected more than 1 value per channel",
        "Two shapes do not match: print the shapes in the line named; compare the batch's with "
        "what the layer was built for (hidden size, classes, sequence length, last smaller batch).",
    ),
    known_error(
        "index-out-of-range",
        r"index out of range in self|Target -?\d+ is out of bounds|index \d+ is out of bounds|"
        r"IndexError: list index out of range",
        "An index is out of range: a token id at or above the vocabulary, a label at or "
        "above the number of classes, or a position beyond the longest sequence.",
        0.8,
    ),
    known_error(
        "no-gradient",
        r"does not require grad and does not have a grad_fn|optimizer got an empty parameter list",
        "The loss does not depend on any trainable parameter: unfreeze parameters; with LoRA and "
        "recomputed activations call model.enable_input_require_grads().",
    ),
    known_error(
        "graph-reused",
        r"backward through the graph a second time|modified by an inplace operation",
        "A tensor of an earlier step is still part of the graph: detach() what is carried over, "
        "and write no tensor in place that the backward pass needs.",
    ),
    known_error(
        "nan-raised",
        r"returned nan values in its \d+th output|(?i:loss (is|was|became|=|:)? ?\W?(nan|inf)\b)|"
        r"(?i:\b(nan|non-?finite|not finite)\b.{0,30}\b(loss|gradient|grad_norm)|(loss|gradient)\w* "
        r"(is|are|was) (not finite|nan|non-?finite))|non-finite",
        "The script stopped at a loss or gradient that was not finite: see the step, and "
        "the nan-loss finding where there is one; check that batch, then lower the learning rate.",
        0.8,
    ),
)
FILES = (
    known_error(
        "no-terminal",
        r"EOFError: EOF when reading a line|\bBdbQuit\b",
        "The script asks for a line (input(), a debugger), and a run has no terminal to answer it: "
        "pass the answer as an argument of the script, and take breakpoint() out.",
        0.95,
    ),
    known_error(
        "damaged-file",
        r"invalid load key|PytorchStreamReader failed|SafetensorError|[Hh]eader ?[Tt]oo ?[Ll]arge|"
        r"[Ii]nvalid ?[Hh]eader|failed finding central directory|BadZipFile|not a ZIP archive|"
        r"WeightsUnpickler error: *\s*Unsupported operand|EOFError|unexpected EOF|Error while deserializing header|Compressed file ended before|"
        r"pickle data was truncated",
        "A file is damaged or only half written, or is a Git LFS pointer: download it again; for "
        "a checkpoint, `workbench checkpoints --verify` names the newest complete one.",
        0.85,
    ),
    known_error(
        "permission",
        r"PermissionError|Permission denied|Read-only file system|Operation not permitted",
        "Permission denied for this user: change the owner or mode, or use another folder.",
        0.85,
    ),
    known_error(
        "unreadable-data",
        r"JSONDecodeError|Expecting value: line|Error tokenizing data|csv\.Error|_csv\.Error|"
        r"ParserError|line contains NUL|expected after '\W'|larger than field limit|could not convert string to float|UnicodeDecodeError|ArrowInvalid|"
        r"TOMLDecodeError|yaml\.(scanner|parser)\.\w+|(Scanner|Parser)Error|DatasetGenerationError|"
        r"UnidentifiedImageError|codec can't decode",
        "A file of the data or configuration is not what the reader expects: look at the line and "
        "column it names (an empty file, another separator or encoding, a broken last line).",
        0.85,
    ),
    known_error(
        "file-or-folder",
        r"(?:(?:Not|Is)ADirectoryError[^\n]*?)?(?:Not|Is) a directory: '?(?P<path>[^'\n]+)|"
        r"NotADirectoryError|IsADirectoryError",
        "A file is taken for a folder in {path}, or a folder for a file: give the option the one "
        "that the script opens. A resume gives another path with `-- --OPTION PATH`.",
        0.85,
    ),
    known_error(
        "missing-file",
        r"No such file or directory: '?(?P<path>/[^'\n]+)",
        "{path} does not exist on this machine: compare it with what is there, and give the script "
        "the right path.",
        0.85,
    ),
    known_error(
        "missing-file",
        r"(?:FileNotFoundError[^\n]*?)?No such file or directory: '?(?P<path>[^'\n]+)|"
        r"FileNotFoundError|No such file or directory",
        "{path} does not exist: relative paths start at the working directory, which is the folder "
        "the run was launched from; give an absolute path.",
        0.85,
    ),
    known_error(
        "missing-key",
        r"KeyError: ['\"]?(?P<name>\([^\n]*\)|[^'\"\n]+)",
        "Key {name} does not exist: print the keys in the line named (a column of the data set "
        "that was renamed or dropped, an entry of the configuration or checkpoint).",
        0.75,
    ),
)
GENERAL = (
    known_error(
        "script-arguments",
        r"unrecognized arguments|the following arguments are required|error: argument \S+|invalid "
        r"choice: |expected one argument|No such option|Missing (option|argument)|are not used by "
        r"the HfArgumentParser",
        "Correct the script's own arguments, those after `--`: `python SCRIPT --help` lists them.",
    ),
    known_error(
        "recursion",
        r"RecursionError|maximum recursion depth",
        "Infinite recursion, often a __getattr__ or a property that reads itself: look at the "
        "line named, which repeats on the stack.",
        0.85,
    ),
    known_error(
        "collective-mismatch",
        r"collective mismatch in your code|op\.preamble\.length <= op\.nbytes",
        "The ranks called different collectives, or one with other sizes: make every rank call the "
        "same ones in the same order, with no collective inside `if rank == 0`, the same number of "
        "batches, and tensors of one shape.",
        0.95,
    ),
    known_error(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (send|recv)|"
        r"monitoredBarrier|DistBackendError: .*[Tt]imeout|wait timeout after \d+ms",
        "A rank did not reach a collective in time: find the rank that was behind, and "
        "check that every rank has the same number of batches.",
        0.7,
    ),
    known_error(
        "nccl-error",
        # A remote error is the echo of another rank's end.
        r"\A(?![\s\S]*(?:ncclRemoteError|remote process exited))[\s\S]*?(?:ncclUnhandledCudaError|"
        r"ncclSystemError|ncclInternalError|NCCL error|ncclInvalidUsage)",
        "NCCL failed: run once with NCCL_DEBUG=WARN, which names the call; in a container check "
        "/dev/shm and the links.",
        0.7,
    ),
    known_error(
        "peer-lost",
        r"ncclRemoteError|remote process exited|Connection (closed|reset) by peer|gloo/transport|Broken pipe|DistNetworkError|"
        r"RendezvousConnectionError|DistStoreError|failed to connect to",
        "Another process of the run exited first or never connected: look at the other ranks' "
        "logs, and on several machines at address and port.",
        0.6,
    ),
    known_error(
        "timeout",
        r"TimeoutError|ReadTimeout|ConnectTimeout|TimeoutExpired|[Tt]imed out",
        "A request timed out: look at what the line named waits for, a server, a "
        "file system or another process.",
        0.6,
    ),
)
