"""What forked ranks said."""


def only(messages, kind):
    return [{k: v for k, v in m.items() if k != "said"} for m in messages if m["said"] == kind]
