"""Find the bad node, link, rail or slow rank by testing groups of nodes.

Without any input or output: `next_round(state)` says which groups to test, a driver tests them, and
`take(state, round, results)` remembers the outcome, until `next_round` has a verdict.

| stage | tested at the same time | what it tells |
|---|---|---|
| alone | every node with all its local ranks; who fails, again | a node that fails without any other is bad |
| pairs, first round | neighbours by name | two of a passing pair are good |
| pairs, second round | every suspect with a node that passed; the good ones with far ones | which one of a pair |
| pairs, at most two more | suspects with further good nodes; the pair that failed once more | node, link or flaky |
| pairs, further ones | only where suspects outnumber good nodes | as above |
| groups | 8, 32, 128, ... of the nodes that are left, then all | what only shows in larger groups |
| halves, across | only failing groups, then pieces of both halves together | the boundary between two sides |

Nobody is blamed for being in a failing group, nor for having reported it, nor for the time of a collective: a node is
convicted by failing with several nodes that work with others.
"""
