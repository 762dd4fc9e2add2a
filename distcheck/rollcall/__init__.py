"""The roll call: all processes send their facts to the leader, rank 0's process.

That it succeeds is itself the reachability test.

The leader listens (`server`), the followers connect to it (`client`).

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
