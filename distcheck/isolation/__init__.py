"""Find the bad node, link, rail or slow rank by testing groups of nodes.

The package does no input or output: `next_round(state)` returns the groups to test, a driver tests them, and
`take(state, round, results)` records the results, until `next_round` returns a verdict.

| stage | tested at the same time | result |
|---|---|---|
| alone | every node with all its local ranks; failing ones again | a node that fails alone is bad |
| pairs, first round | neighbours by name | both nodes of a passing pair are good |
| pairs, second round | every suspect with a node that passed; good nodes with distant ones | the bad one of a pair |
| pairs, at most two more | suspects with further good nodes; the pair that failed again | node, link or flaky |
| pairs, further ones | only if suspects outnumber good nodes | as above |
| groups | 8, 32, 128, ... of the remaining nodes, then all | faults that need larger groups |
| halves, across | only failing groups, then pieces of both halves together | the boundary between two sides |

A node is not blamed for being in a failing group, for reporting the failure, or for the time of a collective. It is
convicted by failing with several nodes that work with others.
"""
