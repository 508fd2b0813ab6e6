"""The run store: a folder of run directories, and the files in each.

`schema` documents every file; `layout` names the paths; `files` reads and writes them safely;
`processes` identifies and signals processes; `names` makes run ids; `runs` finds and lists runs.
"""
