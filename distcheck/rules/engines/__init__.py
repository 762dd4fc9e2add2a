"""Rules about vLLM and SGLang: what these inference engines need beside their ranks, and what their nodes must share.

Judged where the gate stands in front of them and could read their options.
"""
