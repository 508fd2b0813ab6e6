"""The steps of setup_venv.py.

choice   which torch, and why            probe    what this machine has
state    what was done so far            plan     what is left to do
repair   what a kill or a move broke     packages which of them are damaged
install  the stages                      optional extras that may fail
console  what is shown and logged        hints    what to do about a failed pip
main     the command
"""
