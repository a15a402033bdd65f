--------------------------- MODULE PillarboxRedis ---------------------------
(***************************************************************************)
(* A queue on Redis and its clients. Each action is one run of a script,   *)
(* which is atomic on Redis. The ledger (`ledger`) runs next to the keys   *)
(* (`keys`) and gives the right result of each call.                       *)
(*                                                                         *)
(* Clients hold the receipts that they have received without a limit:      *)
(* also after the lease has ended, and after they have settled, because    *)
(* the reply may have been lost. They crash at any moment.                 *)
(*                                                                         *)
(* PillarboxCalls covers lost replies and repeated calls between a client  *)
(* and the server.                                                         *)
(***************************************************************************)
EXTENDS PillarboxScripts

CONSTANTS
    Clients,
    Leases,         \* durations of leases, in ticks
    SendDelays,     \* delays of sends; 0: none
    BackDelays,     \* delays of nacks and releases
    Extensions,     \* durations of extensions
    Actions,        \* kinds of settles: some of "ack", "nack", "release", "extend", "start"
    Capacity,       \* max_size
    MaxSends,       \* number of times that a message is stored
    MaxDeliveries,  \* number of deliveries of a message, over all of its lives
    MaxHeld,        \* number of deliveries that a client holds, including settled and expired ones
    SendBatch, ReceiveBatch, SettleBatch,
    Releases,       \* whether a client undoes deliveries that it has not received
    Purges,         \* whether purges happen
    Wraps           \* whether receipts begin again after MaxDeliveries, for liveness

VARIABLES
    keys,    \* what the server holds
    ledger,  \* what it should amount to
    issued,  \* of each message, the last receipt that was given
    stored,  \* of each message, the number of times that it was stored
    acked,   \* of each message, the number of acknowledgements that succeeded
    holds,   \* of each client, the deliveries that it has received: [m, r]
    wrong    \* wrong results so far

vars == <<keys, ledger, issued, stored, acked, holds, wrong>>

Init ==
    /\ keys = EmptyKeys
    /\ ledger = EmptyLedger
    /\ issued = [m \in Messages |-> 0]
    /\ stored = [m \in Messages |-> 0]
    /\ acked = [m \in Messages |-> 0]
    /\ holds = [c \in Clients |-> {}]
    /\ wrong = {}

Accuse(charges) == wrong' = wrong \cup {charge[2] : charge \in {x \in charges : x[1]}}

-----------------------------------------------------------------------------
(* Actions                                                                  *)

\* A batch: [m, delay], each id once. Sending what is here is the retry of a send.
SendAct(batch) ==
    \E done \in {Send(keys, batch, Capacity)}, right \in {LedgerSend(ledger, batch, Capacity)} :
    LET new == Ids(Answered(batch, done.answers, "1"))
    IN  /\ \A m \in new \ keys.data : stored[m] < MaxSends
        /\ keys' = done.q
        /\ ledger' = right.l
        /\ stored' = [m \in Messages |-> IF m \in new \ keys.data THEN stored[m] + 1 ELSE stored[m]]
        /\ Accuse({<<done.answers /= right.answers, "sent">>})
        /\ UNCHANGED <<issued, acked, holds>>

NextReceipts ==
    [m \in Messages |->
        IF Has("fresh")
        THEN IF Wraps THEN (issued[m] % MaxDeliveries) + 1 ELSE issued[m] + 1
        ELSE 1]

\* tells: the client that gets the reply. None, if the reply was lost or the client has crashed.
ReceiveAct(tells, max, lease) ==
    \E receipts \in {NextReceipts} :
    \E done \in {Receive(keys, <<[max |-> max, lease |-> lease]>>, receipts)} :
    LET number == Len(done.deliveries)
        ids == Line(done.deliveries)
        told == {[m |-> d.m, r |-> d.r] : d \in Elements(done.deliveries)}
        right == LedgerReceive(ledger, number, lease, receipts)
        expected == Front(ledger.ready, number)
    IN  /\ number > 0 \/ keys /= done.q \/ ledger.ready /= <<>>
        /\ ~Wraps => \A m \in Elements(ids) : issued[m] < MaxDeliveries
        /\ \A c \in tells : Cardinality(holds[c] \cup told) <= MaxHeld
        /\ keys' = done.q
        /\ ledger' = right
        /\ issued' = [m \in Messages |-> IF m \in Elements(ids) THEN receipts[m] ELSE issued[m]]
        /\ holds' = [c \in Clients |-> IF c \in tells THEN holds[c] \cup told ELSE holds[c]]
        /\ Accuse({<<number = 0 /\ ledger.ready /= <<>>, "starved">>,
                   <<~(Elements(ids) \subseteq Elements(ledger.ready)), "early">>,
                   <<ids /= expected, "order">>,
                   <<\E d \in Elements(done.deliveries) :
                        \/ d.count /= Min(ledger.count[d.m] + 1, MaxCount)
                        \/ d.unsettled /= ledger.unsettled[d.m]
                        \/ d.uncounted /= ledger.uncounted[d.m], "count">>})
        /\ UNCHANGED <<stored, acked>>

\* The script fails half-way, because a key is of another type. No client gets a reply.
ReceiveFailsAct(max) ==
    /\ keys' = ReceiveFails(keys, max)
    /\ keys' /= keys
    /\ UNCHANGED <<ledger, issued, stored, acked, holds, wrong>>

\* A batch: [m, r, kind, time]. keeps: the client holds on to the receipts; it was not answered,
\* or has extended.
SettleAct(c, batch, keeps) ==
    \E done \in {Settle(keys, batch)}, right \in {LedgerSettle(ledger, batch)} :
    LET accepted == Answered(batch, done.answers, "1")
        acks == Ids(SelectSeq(accepted, LAMBDA e : e.kind = "ack"))
        \* As if nothing else were in the batch.
        isStale(e) == ledger.lease[e.m] /= e.r
    IN  /\ keys' = done.q
        /\ ledger' = right.l
        /\ acked' = [m \in Messages |-> IF m \in acks THEN acked[m] + 1 ELSE acked[m]]
        /\ holds' = [holds EXCEPT
                        ![c] = IF keeps THEN @
                               ELSE @ \ {[m |-> e.m, r |-> e.r] : e \in Elements(batch)}]
        /\ Accuse({<<\E e \in Elements(accepted) : isStale(e) /\ keys.meta[e.m].held /= e.r, "stale">>,
                   <<\E e \in Elements(accepted) : isStale(e) /\ keys.meta[e.m].held = e.r, "late">>,
                   <<done.answers /= right.answers, "settled">>})
        /\ UNCHANGED <<issued, stored>>

\* A receive whose caller is gone before it saw the answer: what it claimed goes back.
ReleaseAct(c, batch) ==
    /\ keys' = Release(keys, batch)
    /\ ledger' = LedgerRelease(ledger, batch)
    /\ holds' = [holds EXCEPT ![c] = @ \ Elements(batch)]
    /\ UNCHANGED <<issued, stored, acked, wrong>>

PurgeAct ==
    LET done == Purge(keys)
    IN  /\ keys.data /= {}
        /\ keys' = done.q
        /\ ledger' = EmptyLedger
        /\ Accuse({<<done.purged /= Cardinality(Members(ledger)), "purged">>})
        /\ UNCHANGED <<issued, stored, acked, holds>>

\* Look, and what a sweep does.
SweepAct ==
    /\ keys' = Look(keys)
    /\ keys' /= keys
    /\ UNCHANGED <<ledger, issued, stored, acked, holds, wrong>>

TickAct ==
    /\ keys' = ScriptPass(keys, 1)
    /\ ledger' = LedgerPass(ledger, 1)
    /\ keys' /= keys
    /\ UNCHANGED <<issued, stored, acked, holds, wrong>>

DieAct(c) ==
    /\ holds[c] /= {}
    /\ holds' = [holds EXCEPT ![c] = {}]
    /\ UNCHANGED <<keys, ledger, issued, stored, acked, wrong>>

-----------------------------------------------------------------------------
(* What clients may ask for                                                 *)

Lists(set, most) == UNION {[1..n -> set] : n \in 1..most}

SendBatches ==
    {b \in Lists([m : Messages, delay : SendDelays], SendBatch) :
        \A i, j \in DOMAIN b : i /= j => b[i].m /= b[j].m}

Kinds ==
    [kind : {"ack"} \cap Actions, time : {0}]
    \cup [kind : {"nack", "release"} \cap Actions, time : BackDelays]
    \cup [kind : {"extend", "start"} \cap Actions, time : Extensions]

Entry(held, what) == [m |-> held.m, r |-> held.r, kind |-> what.kind, time |-> what.time]

SettleBatches(c) == Lists({Entry(h, k) : h \in holds[c], k \in Kinds}, SettleBatch)

ReleaseBatches(c) ==
    {b \in Lists(holds[c], ReceiveBatch) : \A i, j \in DOMAIN b : i /= j => b[i] /= b[j]}

Next ==
    \/ \E batch \in SendBatches : SendAct(batch)
    \/ \E tells \in {{}} \cup {{c} : c \in Clients}, max \in 1..ReceiveBatch, lease \in Leases :
            ReceiveAct(tells, max, lease)
    \/ \E max \in 1..ReceiveBatch : ReceiveFailsAct(max)
    \/ \E c \in Clients : \E batch \in SettleBatches(c), keeps \in BOOLEAN :
            SettleAct(c, batch, keeps)
    \/ Releases /\ \E c \in Clients : \E batch \in ReleaseBatches(c) : ReleaseAct(c, batch)
    \/ Purges /\ PurgeAct
    \/ SweepAct
    \/ TickAct
    \/ \E c \in Clients : DieAct(c)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants                                                               *)

Occurrences(line, m) == Cardinality({i \in DOMAIN line : line[i] = m})

Places(m) == Occurrences(keys.pending, m) + Occurrences(Line(keys.invisible), m)

\* INV-1: a message is ready, or in flight, or delayed, or not here: in exactly one place.
OneState == \A m \in Messages : Places(m) = IF m \in keys.data THEN 1 ELSE 0

\* INV-2: no two deliveries have the same receipt.
FreshReceipts ==
    /\ \A c, d \in Clients : c /= d => holds[c] \cap holds[d] = {}
    /\ \A m \in Messages : \A c \in Clients : \A h \in holds[c] : h.m = m => h.r <= issued[m]

\* INV-3: nothing is settled by a receipt of another delivery.
StaleRefused == "stale" \notin wrong
\* And none is refused that is good.
AnswersRight == wrong \cap {"settled", "sent", "purged"} = {}

\* INV-4: how often a message was delivered, how often in vain and how often for no attempt, is what the
\* ledger says: it rises by one with each delivery, and survives nack and expiry. So is whether the
\* running delivery is started. And no more deliveries are counted as ended than have.
CountsKept ==
    \A m \in keys.data :
        /\ ScriptCounts(keys, m) = LedgerCounts(ledger, m)
        /\ keys.meta[m].unsettled + keys.meta[m].uncounted + (IF IsHeld(keys, m) THEN 1 ELSE 0)
            <= keys.meta[m].count
\* And deliveries report these counts.
CountsTold == "count" \notin wrong

\* The same without the ledger: within a life, the number of deliveries falls only by a release of what
\* nobody has seen; the others never fall, and one of them rises by one at a time.
CountsRise ==
    [][\A m \in keys.data \cap keys'.data :
        LET before == keys.meta[m]
            after == keys'.meta[m]
        IN  \/ stored'[m] > stored[m]
            \/ /\ Releases \/ after.count >= before.count
               /\ after.unsettled >= before.unsettled
               /\ after.uncounted >= before.uncounted
               /\ after.unsettled + after.uncounted <= before.unsettled + before.uncounted + 1]_vars

\* Only a delivery that is in flight is started.
StartedHeld == \A m \in Messages : keys.meta[m].started => IsHeld(keys, m)

\* INV-5: what was stored, and neither acknowledged nor purged, is here.
NothingLost ==
    /\ keys.data = Members(ledger)
    /\ \A m \in keys.data : Places(m) >= 1

\* INV-6: nobody gets a message before its time, or while another's lease runs; and what is ready
\* is delivered to whoever asks.
Visible == wrong \cap {"early", "starved"} = {}

\* INV-7: messages are delivered in the order in which they become ready.
Fifo ==
    /\ "order" \notin wrong
    /\ keys.pending \o Line(Front(keys.invisible, DueCount(keys.invisible))) = ledger.ready
    /\ Rest(keys.invisible, DueCount(keys.invisible)) = ledger.timed

\* INV-8: no message is queued twice.
NoDuplicates == \A m \in Messages : Occurrences(keys.pending, m) <= 1

\* INV-9: what is in line or in flight has a body, and so has what has a count or a receipt.
NoOrphans ==
    /\ Elements(keys.pending) \cup Ids(keys.invisible) \subseteq keys.data
    /\ \A m \in Messages : keys.meta[m] /= NoField => m \in keys.data
    /\ \A m \in Messages : IsHeld(keys, m) => m \in Ids(keys.invisible)

\* An acknowledgement succeeds at most once for each time that a message was stored.
AcknowledgedOnce == \A m \in Messages : acked[m] <= stored[m]

\* Nothing is settled from the deadline on, whether or not anybody has swept.
NothingLate == "late" \notin wrong

\* What counts.lua takes for granted.
DelayedCounted ==
    keys.delayed = Cardinality({m \in Ids(keys.invisible) : ~IsHeld(keys, m)})

WithinCapacity == Cardinality(keys.data) <= Capacity

-----------------------------------------------------------------------------
(* Liveness. Everybody may die or stay away for ever, except that time      *)
(* passes and, where it says so, one client keeps asking for one message.   *)

IsDue(m) ==
    \E i \in DOMAIN keys.invisible : keys.invisible[i].m = m /\ keys.invisible[i].left <= 0
IsReady(m) == m \in Elements(keys.pending)
IsDelayed(m) == m \in Ids(keys.invisible) /\ ~IsHeld(keys, m)
IsInFlight(m) == m \in Ids(keys.invisible) /\ IsHeld(keys, m)

Asks(c) == \E lease \in Leases : lease > 0 /\ ReceiveAct({c}, 1, lease)

TimePasses == WF_vars(TickAct)
SomebodyAsks == \E c \in Clients : WF_vars(Asks(c))
SomebodySweeps == WF_vars(SweepAct)

\* A message that is sent with a delay, or nacked with one, does not stay delayed.
DelaysEnd == \A m \in Messages : IsDelayed(m) ~> ~IsDelayed(m)

\* A due message becomes ready eventually: swept, or delivered by the receive that moved it.
ExpiredReturn == \A m \in Messages : IsDue(m) ~> ~IsDue(m)

\* What is ready is delivered.
ReadyDelivered == \A m \in Messages : IsReady(m) ~> ~IsReady(m)

\* What is sent is delivered, or purged.
SentDelivered == \A m \in Messages : (IsReady(m) \/ IsDelayed(m)) ~> (IsInFlight(m) \/ m \notin keys.data)

FairSpec == Spec /\ TimePasses /\ SomebodyAsks
SweptSpec == Spec /\ TimePasses /\ SomebodySweeps
TimedSpec == Spec /\ TimePasses
=============================================================================
