"""The facts of a job: what was observed of nodes, processes and ranks, without judgement.

A fact that could not be obtained is `Missing(reason)`, never a default. `None` means not checked, or not applicable.
All facts are serialized: between the processes of a job (MessagePack) and in the file of ``--save`` (JSON); msgspec
validates them on the way back. Quantities carry their unit in the field's name.
"""
