"""Replaces sys.excepthook, as rich.traceback.install() does, then fails."""

import sys

sys.excepthook = lambda kind, value, trace: print("pretty:", value, file=sys.stderr)
raise ValueError("under another hook")
