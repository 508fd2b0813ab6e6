"""Makes no step and ignores SIGTERM, with grandchildren in sessions of their own,
one of them without the run's marker."""

import signal
import subprocess
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
bare = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True, env={}
)
print("without the marker:", bare.pid, flush=True)
time.sleep(600)
