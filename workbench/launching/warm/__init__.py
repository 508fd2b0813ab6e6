"""Warm starts: launcher and ranks as forks of a process that has torch imported already.

Nearly all of a short run's time is the import of torch, accelerate and torch._dynamo, once for the
launcher and once for every rank. A warm server has imported them and done nothing else; what it
forks becomes ``accelerate launch`` with the very arguments of the cold command, and the launcher's
ranks are forks in turn. Nobody re-implements the launcher: only the exec is left out.

    server ── reaper ── launcher ── template          one reaper and one template per start
                            ├────── rank 0            (children of the launcher, as always)
                            └────── rank 1

- ``server.py``    imports, listens on a Unix socket, forks a reaper per start.
- ``reaper.py``    the launcher's parent: tells its exit code over the socket, outlives the server.
- ``template.py``  forks the launcher's ranks from one thread; the launcher has several.
- ``child.py``     what exec and the interpreter's start would have done in a fork.
- ``sameness.py``  whether a fork would be the same as a cold start; every refusal is a sentence.
- ``room.py``      lets /proc show a fork's own environment and command.
- ``messages.py``  the wire between them.
- ``client.py``    what the workbench itself calls; the only file here that imports `workbench`.

Everything but ``client.py`` is the standard library and lives in the forks under a private name.
"""
