------------------------- MODULE PillarboxRuntimeMC -------------------------
(* What the model checker needs beside the constants in cfg/.               *)
EXTENDS PillarboxRuntime, TLC

\* Only for safety: with SYMMETRY liveness is not checked right.
Alike == Permutations(Messages) \cup Permutations(Processes)
=============================================================================
