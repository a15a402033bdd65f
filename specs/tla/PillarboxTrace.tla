--------------------------- MODULE PillarboxTrace ---------------------------
(***************************************************************************)
(* Checks recorded traces against PillarboxScripts. Each event of a trace  *)
(* is one run of a script, with its arguments, the time of the server and  *)
(* the reply. The functions of the models are applied one after the other, *)
(* with the time of the event instead of a tick, and must return the same  *)
(* replies.                                                                *)
(*                                                                         *)
(* TraceData is written by scripts/tlaplus_trace.py from JSON. It defines  *)
(* Traces, a sequence of [name, isGood, events]: those that must be        *)
(* accepted, and those that must be rejected.                              *)
(*                                                                         *)
(* Times are microseconds from the first event on. Messages, receipts and  *)
(* callers are numbers.                                                    *)
(***************************************************************************)
EXTENDS PillarboxScripts, TraceData

CONSTANTS
    Callers,
    WithLedger  \* whether to compare with the ledger: only if nothing happens in the few quarters of a
                \* microsecond by which scripts separate scores

VARIABLES
    trace,   \* which trace
    place,   \* which of its events is next
    keys,    \* what the server holds
    ledger,  \* what it should amount to
    now,     \* the time of the last event
    record,  \* of each caller: number and reply of the last call that was stored
    verdict  \* "", or what is wrong with the event before `place`

vars == <<trace, place, keys, ledger, now, record, verdict>>

Event == Traces[trace].events[place]

\* Messages are numbered in the order of their ids.
Identity == [m \in Messages |-> m]

Init ==
    /\ trace \in DOMAIN Traces
    /\ place = 1
    /\ keys = EmptyKeys
    /\ ledger = EmptyLedger
    /\ now = 0
    /\ record = [c \in Callers |-> [n |-> 0, reply |-> <<>>]]
    /\ verdict = ""

\* What a script answers and leaves, and what the contract says to it.
Outcome(q, reply, l, agrees, stores) ==
    [q |-> q, reply |-> reply, l |-> l, agrees |-> agrees, stores |-> stores]

IsAny(answers, answer) == \E i \in DOMAIN answers : answers[i] = answer

OfSend(q, l, e) ==
    LET of(done, right) ==
            Outcome(done.q, done.answers, right.l, done.answers = right.answers,
                    e.again \/ IsAny(done.answers, "1"))
    IN  of(Send(q, e.batch, e.capacity), LedgerSend(l, e.batch, e.capacity))

\* The n-th message has the n-th receipt that the caller made up.
OfReceive(q, l, e) ==
    LET ids == Popped(q, Wanted(e.receivers)).ids
        receipts == [m \in Messages |->
                        IF m \in Elements(ids)
                        THEN e.receipts[CHOOSE i \in DOMAIN ids : ids[i] = m] ELSE NoReceipt]
        reply(done) == [i \in DOMAIN done.deliveries |->
                            <<done.deliveries[i].m, done.deliveries[i].count,
                              done.deliveries[i].unsettled, done.deliveries[i].uncounted>>]
        \* Leases of one call may differ; the ledger gets each one separately.
        leases(done) == [i \in DOMAIN done.deliveries |-> LeaseAt(ids, e.receivers, i)]
        of(done) ==
            Outcome(done.q, reply(done),
                    LedgerReceives(l, Line(done.deliveries), leases(done), receipts),
                    Line(done.deliveries) = Front(l.ready, Len(done.deliveries)),
                    e.again \/ done.deliveries /= <<>>)
    IN  The({of(done) : done \in {Receive(q, e.receivers, receipts)}})

OfSettle(q, l, e) ==
    LET of(done, right) ==
            Outcome(done.q, done.answers, right.l, done.answers = right.answers,
                    IsAny(done.answers, "1"))
    IN  of(Settle(q, e.batch), LedgerSettle(l, e.batch))

OfRelease(q, l, e) ==
    LET of(after) == Outcome(after, <<Len(q.invisible) - Len(after.invisible)>>,
                             LedgerRelease(l, e.batch), TRUE, FALSE)
    IN  of(Release(q, e.batch))

OfPurge(q, l) == Outcome(Purge(q).q, <<Purge(q).purged>>, EmptyLedger,
                         Purge(q).purged = Cardinality(Members(l)), TRUE)

OfForget(q, l) == Outcome(Forget(q).q, <<Forget(q).answer>>, l, TRUE, FALSE)

OfLook(q, l) == Outcome(Look(q), <<Len(Look(q).pending)>>, l, TRUE, FALSE)

\* A call that has run before, or is older than one that has: the stored reply, and no change.
\* A receive reads again what it delivered then, as far as its receipts are still good.
Seen(q, l, e, its) ==
    LET good == SelectSeq(its.reply, LAMBDA d :
                    \E i \in DOMAIN e.receipts : q.meta[d[1]].held = e.receipts[i])
        again == [i \in DOMAIN good |->
                    <<good[i][1], q.meta[good[i][1]].count, q.meta[good[i][1]].unsettled,
                      q.meta[good[i][1]].uncounted>>]
    IN  Outcome(q, IF e.op = "receive" THEN again ELSE its.reply, l, TRUE, FALSE)

\* Time comes to that of the event first.
Happens(e) ==
    LET q == ScriptPass(keys, 4 * (e.at - now))
        l == IF WithLedger THEN LedgerPass(ledger, 4 * (e.at - now)) ELSE ledger
        isSeen == e.caller > 0 /\ record[e.caller].n >= e.number
    IN  IF isSeen THEN Seen(q, l, e, record[e.caller])
        ELSE CASE e.op = "send" -> OfSend(q, l, e)
               [] e.op = "receive" -> OfReceive(q, l, e)
               [] e.op = "settle" -> OfSettle(q, l, e)
               [] e.op = "release" -> OfRelease(q, l, e)
               [] e.op = "purge" -> OfPurge(q, l)
               [] e.op = "forget" -> OfForget(q, l)
               [] OTHER -> OfLook(q, l)

Accepts(e, so) ==
    /\ keys' = so.q
    /\ ledger' = IF WithLedger THEN so.l ELSE ledger
    /\ record' = IF so.stores /\ e.caller > 0
                 THEN [record EXCEPT ![e.caller] = [n |-> e.number, reply |-> so.reply]]
                 ELSE record
    /\ verdict' = IF so.reply /= e.reply THEN "the reply is another"
                  ELSE IF WithLedger /\ ~so.agrees THEN "the contract says otherwise" ELSE ""

Next ==
    /\ place <= Len(Traces[trace].events)
    /\ verdict = ""
    /\ place' = place + 1
    /\ now' = Event.at
    /\ trace' = trace
    /\ IF Event.at < now
       THEN verdict' = "time runs backwards" /\ UNCHANGED <<keys, ledger, record>>
       ELSE \E so \in {Happens(Event)} : Accepts(Event, so)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

IsOver == place > Len(Traces[trace].events)

\* What must be accepted is, to its end; what must not be is not.
GoodAccepted == Traces[trace].isGood => verdict = ""
DoctoredRejected == (~Traces[trace].isGood /\ IsOver) => verdict /= ""

\* As it goes, a message is in one place, and has a body.
OnePlace ==
    /\ Len(keys.pending) + Len(keys.invisible) = Cardinality(keys.data)
    /\ Elements(keys.pending) \cup Ids(keys.invisible) = keys.data

\* And the keys are what the contract says.
Keeps ==
    (WithLedger /\ verdict = "") =>
        /\ keys.pending \o Line(Front(keys.invisible, DueCount(keys.invisible))) = ledger.ready
        /\ keys.data = Members(ledger)
        /\ \A m \in Messages : ScriptCounts(keys, m) = LedgerCounts(ledger, m)
=============================================================================
