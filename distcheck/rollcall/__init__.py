"""The roll call: all processes send their facts to the leader, rank 0's process.

That it succeeds is itself the reachability test.

The leader listens (`server`), the followers connect to it (`client`): first to MASTER_ADDR:MASTER_PORT, then, turned
away or without an answer for 2 s, to the leader's side port. Side ports are derived from the job's name (the
scheduler's job id, torchrun's run id, by hand the user id) or the token, so that ranks that disagree about MASTER_PORT
still meet. A follower with another master joins only late and if it fills a gap: two jobs of one user do not mix.

Presence is counted, not enumerated. Every wait ends, and stderr names the ranks that are awaited. A nonce in every
Hello comes back in the answer, so that a stale or foreign server is recognised; the Hello ends in two line ends, so
that servers of line protocols answer at once and reveal what they are. A Hello, a half-open connection and all messages
together have limits, so that a stranger can end its own connection only. Sockets request small segments: a path that
loses large packets must not lose the facts. Unknown fields are ignored, so that two versions meet and
`probe-version-differs` names the nodes.

=========  ==========================================  ================================================
sender     message                                     meaning
=========  ==========================================  ================================================
follower   Hello                                       who I am, with a nonce that the answer must repeat
leader     Challenge                                   with a DISTCHECK_TOKEN: prove that you know it
follower   Proof                                       the proof; every later frame is sealed (seal.py)
leader     Welcome | NotYet | Refused                  admitted | another master address | another job, or full
follower   Elsewhere                                   the leader is at this address
follower   Report                                      the facts of my node, process and ranks
leader     AskNode                                     the facts of your node are missing here
follower   NodeReport                                  those that my report left out (brief.py)
leader     Roster                                      the nodes' peer endpoints; test them
follower   PeerReport                                  which endpoints answered, and how data went there
both       Roster, PeerReport                          the same again where data went far too slowly
follower   Deflated                                    a large message, compressed
follower   Ready                                       torch is imported
leader     Start                                       run these collectives
follower   Trouble                                     a rank of mine cannot finish
leader     Abort                                       end the collectives and report
follower   RunReport                                   what my ranks measured and how they ended
leader     StartTrial                                  run the collectives in a subset of the ranks
follower   StoreAt                                     the subset's store is open
leader     Halt                                        end the trial and report
leader     LastCall                                    are you still there?
follower   Here                                        yes
leader     Bye                                         the report is written: exit with this code
=========  ==========================================  ================================================
"""
