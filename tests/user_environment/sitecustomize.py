"""Hides packages from this process: neither importable nor listed. See __init__.py beside this."""

import importlib.machinery
import json
import os
import pathlib
import re
import sys

HIDDEN = json.loads(pathlib.Path(os.environ["WORKBENCH_TEST_HIDDEN"]).read_text("utf-8"))
MODULES = frozenset(HIDDEN["modules"])
DISTRIBUTIONS = frozenset(HIDDEN["distributions"])


class UsersPathFinder(importlib.machinery.PathFinder):
    """The import system's own search, blind for what the user does not have."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.partition(".")[0] in MODULES:
            return None
        return super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        # Where importlib_metadata is imported already (a warm start) it has removed this.
        find = getattr(super(), "find_distributions", lambda *_args, **_kwargs: ())
        for found in find(*args, **kwargs):
            name = found.metadata["Name"] or ""
            if re.sub(r"[-_.]+", "-", name).lower() not in DISTRIBUTIONS:
                yield found


sys.meta_path[:] = [
    UsersPathFinder if finder is importlib.machinery.PathFinder else finder
    for finder in sys.meta_path
]
