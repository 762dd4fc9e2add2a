"""The meeting at which all ranks hand their facts to rank 0; that it succeeds is itself the reachability test.

=========  ==========================================  ================================================
who        says                                        and means
=========  ==========================================  ================================================
guest      Hello                                       who I am, and a nonce that proves you understood
host       Challenge                                   with a DISTCHECK_TOKEN: prove that you know it
guest      Proof                                       I do; from here on every frame is sealed (seal.py)
host       Welcome | NotYet | Refused                  come in | another master address | another job
a guest    Elsewhere                                   the host is at this address
guest      Report                                      the facts of my node, process and ranks
host       Roster                                      the nodes' peer doors; try them
guest      PeerReport                                  which doors opened and what they carry
host, guest  Roster, PeerReport                        once more, quietly, where data went far more slowly than usual
guest      Ready                                       torch is imported
host       Start                                       run these collectives
guest      Trouble                                     a rank of mine cannot finish
host       Abort                                       end the collectives and report
guest      RunReport                                   what my ranks measured and how they ended
host       Trial                                       once more, in a part of the world
guest      StoreAt                                     the part's store is open
host       Halt                                        end the trial and report
host       LastCall                                    who is still there?
guest      Here                                        I am
host       Bye                                         the report is written: leave with this exit code
=========  ==========================================  ================================================
"""
