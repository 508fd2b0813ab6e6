"""The steps of setup_venv.py.

choice   which torch, and why            probe    what this machine has
state    what was done so far            plan     what is left to do
repair   what a kill or a move broke     install  the stages
console  what is shown and logged        main     the command
"""
