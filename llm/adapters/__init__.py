"""This project's rules inside other people's trainers.

`weights.Weights` is the part that knows no engine; `hazards` lists the settings of an engine that would undo a
rule. The file that is named after an engine imports it, and needs its own extra and environment.
"""
