------------------------- MODULE PillarboxFailover --------------------------
(***************************************************************************)
(* A primary replies first and updates its replicas afterwards. When it    *)
(* fails, a replica takes over, and what that replica lacks is undone.     *)
(*                                                                         *)
(* Which guarantees survive that, if a call completes at once, and if it   *)
(* completes when `Wait` replicas have confirmed it (confirmations.rs,     *)
(* confirm.lua): sends and settles wait, receives do not.                  *)
(*                                                                         *)
(* The queue is as small as possible. A log holds its state after each     *)
(* script; a replica has a prefix of the log. A script and the record of   *)
(* its call are one step of the log, so a replica has both or neither:     *)
(* a call has taken effect exactly if its record exists.                   *)
(*                                                                         *)
(* `Without` names rules to break on purpose:                              *)
(*   "confirm"  a wait for replicas first checks that the server has the   *)
(*              record of the call                                         *)
(*   "fresh"    receipts are random                                        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Messages,
    Replicas,
    Wait,     \* number of replicas that confirm a send or a settle
    Most,     \* number of scripts that run
    Without

VARIABLES
    log,       \* the states of the primary: [sent, acked, held, count]
    has,       \* of each replica: the length of its prefix of the log
    waiting,   \* calls that have run and have not completed: [op, m, r]
    sent, acked,   \* messages whose send, whose acknowledgement has completed
    counted,   \* of each message: the highest count that a client has received
    receipts,  \* of each message: the number of its receipts
    taken,     \* of each message: the receipts by which it was settled, with the delivery they were made for
    runs

vars == <<log, has, waiting, sent, acked, counted, receipts, taken, runs>>

Has(rule) == rule \notin Without
Primary == log[Len(log)]

Init ==
    /\ log = <<[sent |-> {}, acked |-> {}, held |-> [m \in Messages |-> 0],
                count |-> [m \in Messages |-> 0], delivery |-> [m \in Messages |-> 0]]>>
    /\ has = [r \in Replicas |-> 1]
    /\ waiting = {}
    /\ sent = {}
    /\ acked = {}
    /\ counted = [m \in Messages |-> 0]
    /\ receipts = [m \in Messages |-> 0]
    /\ taken = {}
    /\ runs = 0

-----------------------------------------------------------------------------

Does(state) == log' = Append(log, state) /\ runs' = runs + 1 /\ runs < Most

Call(op, m, r) == [op |-> op, m |-> m, r |-> r]

Send(m) ==
    /\ m \notin Primary.sent
    /\ m \notin sent
    /\ Does([Primary EXCEPT !.sent = @ \cup {m}])
    /\ waiting' = waiting \cup {Call("send", m, 0)}
    /\ UNCHANGED <<has, sent, acked, counted, receipts, taken>>

\* A receive completes at once. It takes a ready message, or one whose lease has expired.
Receive(m) ==
    LET made == receipts[m] + 1
        r == IF Has("fresh") THEN made ELSE Primary.count[m] + 1
    IN  /\ m \in Primary.sent \ Primary.acked
        /\ Does([Primary EXCEPT !.held[m] = r, !.count[m] = @ + 1, !.delivery[m] = made])
        /\ receipts' = [receipts EXCEPT ![m] = made]
        /\ counted' = [counted EXCEPT ![m] = IF @ > Primary.count[m] THEN @ ELSE Primary.count[m] + 1]
        /\ UNCHANGED <<has, waiting, sent, acked, taken>>

\* Any receipt that was ever given; `made`: for which delivery.
Acknowledge(m, r, made) ==
    /\ m \in Primary.sent \ Primary.acked
    /\ r > 0 /\ Primary.held[m] = r
    /\ Has("fresh") => r = made
    /\ Does([Primary EXCEPT !.acked = @ \cup {m}, !.held[m] = 0])
    /\ waiting' = waiting \cup {Call("ack", m, r)}
    /\ taken' = taken \cup {<<m, made, Primary.delivery[m]>>}
    /\ UNCHANGED <<has, sent, acked, counted, receipts>>

Nack(m) ==
    /\ Primary.held[m] > 0
    /\ Does([Primary EXCEPT !.held[m] = 0])
    /\ UNCHANGED <<has, waiting, sent, acked, counted, receipts, taken>>

-----------------------------------------------------------------------------

IsIn(call, state) ==
    IF call.op = "send" THEN call.m \in state.sent ELSE call.m \in state.acked

\* So many replicas have all that the primary had when it was asked.
Confirmed(call) ==
    IF Has("confirm")
    THEN /\ IsIn(call, Primary)
         /\ Cardinality({r \in Replicas : IsIn(call, log[has[r]])}) >= Wait
    ELSE Cardinality({r \in Replicas : has[r] = Len(log)}) >= Wait

Answer(call) ==
    /\ call \in waiting
    /\ IF Wait = 0 THEN TRUE ELSE Confirmed(call)
    /\ waiting' = waiting \ {call}
    /\ sent' = IF call.op = "send" THEN sent \cup {call.m} ELSE sent
    /\ acked' = IF call.op = "ack" THEN acked \cup {call.m} ELSE acked
    /\ UNCHANGED <<log, has, counted, receipts, taken, runs>>

\* The server does not know the call: another has taken over. It is made again, if it can be.
Again(call) ==
    /\ call \in waiting
    /\ ~IsIn(call, Primary)
    /\ IF call.op = "send" THEN Does([Primary EXCEPT !.sent = @ \cup {call.m}])
       ELSE /\ call.m \in Primary.sent /\ Primary.held[call.m] = call.r
            /\ Does([Primary EXCEPT !.acked = @ \cup {call.m}, !.held[call.m] = 0])
    /\ UNCHANGED <<has, waiting, sent, acked, counted, receipts, taken>>

\* Too few have confirmed for too long: it fails, and says so.
GiveUp(call) ==
    /\ call \in waiting
    /\ waiting' = waiting \ {call}
    /\ UNCHANGED <<log, has, sent, acked, counted, receipts, taken, runs>>

Replicate(r) ==
    /\ has[r] < Len(log)
    /\ has' = [has EXCEPT ![r] = @ + 1]
    /\ UNCHANGED <<log, waiting, sent, acked, counted, receipts, taken, runs>>

\* The primary is gone, and this replica goes on. The others follow it.
Failover(r) ==
    /\ has[r] < Len(log) \/ \E o \in Replicas : has[o] < has[r]
    /\ log' = SubSeq(log, 1, has[r])
    /\ has' = [o \in Replicas |-> IF has[o] > has[r] THEN has[r] ELSE has[o]]
    /\ UNCHANGED <<waiting, sent, acked, counted, receipts, taken, runs>>

Next ==
    \/ \E m \in Messages : Send(m) \/ Receive(m) \/ Nack(m)
    \/ \E m \in Messages : \E made \in 1..receipts[m], r \in 1..Most : Acknowledge(m, r, made)
    \/ \E call \in waiting : Answer(call) \/ Again(call) \/ GiveUp(call)
    \/ \E r \in Replicas : Replicate(r) \/ Failover(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

\* An answered send is not lost ...
SentKept == sent \subseteq Primary.sent
\* ... and what was answered as acknowledged does not come back.
AcknowledgedKept == acked \subseteq Primary.acked
\* No delivery count repeats. (A receive does not wait, so this does not survive a failover.)
CountsKept == \A m \in Messages : counted[m] <= Primary.count[m]
\* A receipt settles the delivery that it was made for, also after a failover.
StaleRefused == \A t \in taken : t[2] = t[3]
=============================================================================
