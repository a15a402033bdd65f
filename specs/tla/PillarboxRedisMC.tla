-------------------------- MODULE PillarboxRedisMC --------------------------
(* What the model checker needs beside the constants in cfg/.               *)
EXTENDS PillarboxRedis, TLC

\* Messages are alike, and so are clients. Only for safety: with SYMMETRY liveness is not checked right.
Alike == Permutations(Messages) \cup Permutations(Clients)
=============================================================================
