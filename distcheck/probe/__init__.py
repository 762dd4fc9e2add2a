"""The code that runs on every node: it collects facts and never judges them.

It imports neither typer nor torch.
"""
