"""Looks at a running job from outside, by /proc, py-spy and NVML; only `native` stops a process, on request.

`processes` reads the table of processes, with `variables` as a process has them now; `ranks` and `engines` find the
ranks in it, `sample` and `calls` take one sample of a rank from /proc, `stacks` its Python stacks, `native` its other
functions, `gpus` its GPUs, and `look` does all of this for a node.
"""
