"""Explains the dumps of torch's Flight Recorder: which collective each rank was in, and who held up the others.

`loading` reads dumps (pickle or JSON) as untrusted data, without torch. `groups` lines up the calls of all ranks, one
process group at a time. `judging` tells who called another collective, who is behind and who has no dump. `rendering`
makes of it what the user reads.
"""
