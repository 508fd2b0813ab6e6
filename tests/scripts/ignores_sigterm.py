"""Makes no step and ignores SIGTERM, with a grandchild in a session of its own."""

import signal
import subprocess
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready")
time.sleep(600)
