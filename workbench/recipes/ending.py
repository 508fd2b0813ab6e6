"""How a process of a training ends without hanging."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
import gc

from accelerate import Accelerator


def end(accelerator: Accelerator) -> None:
    """Let the model go, then the process group. The caller has deleted its own references.

    The order matters with gloo: a DDP model that outlives `destroy_process_group` is the group's
    last owner, and its destructor can wait without end for the group's thread, which waits for this
    one to let go of Python. Accelerate keeps the model too, so its lists are emptied first.
    """
    accelerator.free_memory()
    gc.collect()
    accelerator.wait_for_everyone()  # no one leaves while another still cleans up an exchange
    accelerator.end_training()
