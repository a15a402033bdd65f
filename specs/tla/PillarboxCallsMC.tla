-------------------------- MODULE PillarboxCallsMC --------------------------
(* What the model checker needs beside the constants in cfg/.               *)
EXTENDS PillarboxCalls, TLC

Calls(sends, receives, settles) == [send |-> sends, receive |-> receives, settle |-> settles]

\* One client sends, perhaps the same message twice; the other receives and settles.
Sending == <<Calls(2, 0, 0), Calls(0, 1, 1)>>
\* One sends and receives; the other receives and settles, perhaps twice.
Settling == <<Calls(1, 1, 0), Calls(0, 1, 2)>>
\* One sends; the other receives and settles, perhaps twice.
Acknowledging == <<Calls(1, 0, 0), Calls(0, 1, 2)>>
\* One sends; the other receives, perhaps twice.
Receiving == <<Calls(1, 0, 0), Calls(0, 2, 1)>>
\* Both do everything.
Everything == <<Calls(2, 1, 1), Calls(1, 2, 2)>>
=============================================================================
