-------------------------- MODULE PillarboxScripts --------------------------
(***************************************************************************)
(* The Lua scripts of crates/pillarbox-redis/scripts as pure functions:    *)
(* the keys before, the keys after, the reply. A function here has the     *)
(* name of a script there and takes the same steps in the same order.      *)
(*                                                                         *)
(* The keys of a queue are a record:                                       *)
(*   pending    LIST  ready messages; here the next one is first           *)
(*   invisible  ZSET  [m, left] by score; left is score minus now          *)
(*   data       HASH  the ids that have a body                             *)
(*   meta       HASH  id -> [held, count, unsettled, uncounted, started];  *)
(*              all empty: no field                                        *)
(*   delayed    the field #delayed of meta                                 *)
(*                                                                         *)
(* `Without` names rules to break on purpose, to check that TLC refutes a  *)
(* model without them:                                                     *)
(*   "secret"   settle compares the receipt with the one in meta           *)
(*   "expiry"   settle expires leases first                                *)
(*   "undo"     a receive that fails puts back what it has popped          *)
(*   "once"     a send checks whether the id exists                        *)
(*   "room"     a send checks the capacity                                 *)
(*   "due"      a receive that finds too few messages takes due ones       *)
(*   "promote"  due messages are promoted before another becomes ready     *)
(*   "behind"   a new arrival stays behind due messages not promoted yet   *)
(*   "nack"     a nack removes the receipt from meta                       *)
(*   "new"      a send of an existing id reports that it was not stored    *)
(*   "counts"   promoting keeps the number of deliveries                   *)
(*   "started"  an expired delivery that was started is unsettled          *)
(*   "idle"     an expired delivery that was not started is no attempt     *)
(*   "release"  a release counts its delivery as no attempt                *)
(*   "attempt"  a nack counts its delivery as an attempt                   *)
(*   "start"    a start is recorded                                        *)
(*   "further"  and visible to later entries of the same call              *)
(*   "ends"     a recorded start ends with its delivery                    *)
(*   "orphans"  an acknowledgement also deletes the field of meta          *)
(*   "delayed"  promoting decrements #delayed                              *)
(*   "first"    a release puts messages back at the head of the queue      *)
(* and in the modules that use these functions:                            *)
(*   "fresh"    each delivery has a new receipt                            *)
(*   "record"   a script that runs again returns its first reply           *)
(*   "unsure"   a reply that changes nothing is stored while an earlier    *)
(*              copy may still run                                         *)
(***************************************************************************)
EXTENDS PillarboxLedger

CONSTANTS
    AtOnce,   \* the most messages that one script promotes: 200 in header.lua
    Spread,   \* how far apart scores of one batch are set: 0, or 1 where a unit of time is a quarter
              \* of a microsecond
    Order,    \* of each message: its place among ids sorted by their bytes; matters where Spread does
    Without   \* the rules that are broken

Has(rule) == rule \notin Without

NoField == [held |-> NoReceipt, count |-> 0, unsettled |-> 0, uncounted |-> 0, started |-> FALSE]

EmptyKeys ==
    [pending |-> <<>>, invisible |-> <<>>, data |-> {},
     meta |-> [m \in Messages |-> NoField], delayed |-> 0]

IsHeld(q, m) == q.meta[m].held /= NoReceipt

\* expired.lua: what a field becomes when the lease expires, with the rules that are broken.
Expired(field) ==
    LET isUnsettled == IF field.started THEN Has("started") ELSE ~Has("idle")
    IN  [field EXCEPT
            !.held = NoReceipt,
            !.started = @ /\ ~Has("ends"),
            !.unsettled = IF isUnsettled THEN Min(@ + 1, MaxCount) ELSE @,
            !.uncounted = IF isUnsettled THEN @ ELSE Min(@ + 1, MaxCount)]

\* What is counted of a message, to be compared with LedgerCounts: a lease that is over and not yet
\* promoted counts as if it were.
ScriptCounts(q, m) ==
    LET field == q.meta[m]
        isOver == IsHeld(q, m) /\ \E i \in DOMAIN q.invisible :
                                    q.invisible[i].m = m /\ q.invisible[i].left <= 0
        more(is) == IF isOver /\ is THEN 1 ELSE 0
    IN  [count |-> field.count,
         unsettled |-> Min(field.unsettled + more(field.started), MaxCount),
         uncounted |-> Min(field.uncounted + more(~field.started), MaxCount),
         started |-> field.started /\ ~isOver]

ScriptPass(q, time) == [q EXCEPT !.invisible = Pass(@, time)]

\* due.lua and promote.lua. isCapped: not all that is due may have been moved.
Promoted(q, due, ended) ==
    LET after(m) ==
            [Expired(q.meta[m]) EXCEPT !.count = IF Has("counts") THEN @ ELSE 0]
    IN  [isCapped |-> Len(due) = AtOnce,
         q |-> [q EXCEPT
                    !.invisible = Rest(@, Len(due)),
                    !.pending = @ \o Line(due),
                    !.meta = [m \in Messages |-> IF m \in ended THEN after(m) ELSE @[m]],
                    !.delayed =
                        IF Has("delayed") THEN @ - (Len(due) - Cardinality(ended)) ELSE @]]

NothingPromoted(q) == [isCapped |-> FALSE, q |-> q]

Promote(q) ==
    IF q.invisible = <<>> \/ q.invisible[1].left > 0 THEN NothingPromoted(q)
    ELSE The({Promoted(q, due, {m \in Ids(due) : IsHeld(q, m)}) :
                due \in {Front(q.invisible, Min(DueCount(q.invisible), AtOnce))}})

\* look.lua: what a sweep does, and all who only look.
Look(q) == Promote(q).q

-----------------------------------------------------------------------------
(* send.lua. A batch is a sequence of [m, delay], each id once.             *)

RECURSIVE SendAnswers(_, _, _)
SendAnswers(q, batch, room) ==
    IF batch = <<>> THEN <<>>
    ELSE LET answer == IF Has("once") /\ Head(batch).m \in q.data THEN "0"
                       ELSE IF Has("room") /\ room <= 0 THEN "F" ELSE "1"
         IN  <<answer>>
             \o SendAnswers(q, Tail(batch), IF answer = "1" THEN room - 1 ELSE room)

\* Those of a batch that are answered so.
RECURSIVE Answered(_, _, _)
Answered(batch, answers, wanted) ==
    IF batch = <<>> THEN <<>>
    ELSE (IF Head(answers) = wanted THEN <<Head(batch)>> ELSE <<>>)
         \o Answered(Tail(batch), Tail(answers), wanted)

\* Scores of one batch are a little apart, from the present plus `start` on.
Apart(line, start) ==
    [i \in DOMAIN line |-> [m |-> line[i].m, left |-> (start + i - 1) * Spread]]

Stored(before, new) ==
    LET line == SelectSeq(new, LAMBDA e : e.delay = 0)
        late == SelectSeq(new, LAMBDA e : e.delay > 0)
        timed == [i \in DOMAIN late |->
                    [m |-> late[i].m, left |-> late[i].delay + (i - 1) * Spread]]
        isBehind == before.isCapped /\ Has("behind")
        all == IF isBehind THEN timed \o Apart(line, 1) ELSE timed
    IN  [before.q EXCEPT
            !.data = @ \cup Ids(new),
            !.pending = IF isBehind THEN @ ELSE @ \o Line(line),
            !.invisible = InsertAll(@, all),
            !.delayed = @ + Len(all)]

Send(q, batch, capacity) ==
    The({[answers |-> IF Has("new") THEN answers
                      ELSE [i \in DOMAIN answers |-> IF answers[i] = "0" THEN "1" ELSE answers[i]],
          q |-> IF \A i \in DOMAIN answers : answers[i] /= "1" THEN q
                ELSE The({Stored(before, Answered(batch, answers, "1")) :
                            before \in {IF Has("promote") THEN Promote(q) ELSE NothingPromoted(q)}})] :
            answers \in {SendAnswers(q, batch, capacity - Cardinality(q.data))}})

-----------------------------------------------------------------------------
(* receive.lua. `receivers` is a sequence of [max, lease]: those who asked  *)
(* at the same time; `receipts` has the new receipt of each message. The    *)
(* answer is a sequence of [m, r, count, unsettled, uncounted].             *)

RECURSIVE Wanted(_)
Wanted(receivers) == IF receivers = <<>> THEN 0 ELSE Head(receivers).max + Wanted(Tail(receivers))

\* Who gets the message at a place, and how many others do before.
RECURSIVE Receiver(_, _, _)
Receiver(receivers, place, before) ==
    IF place <= before + Head(receivers).max THEN [lease |-> Head(receivers).lease, before |-> before]
    ELSE Receiver(Tail(receivers), place, before + Head(receivers).max)

\* Of leases that end at the same moment, the one with the lower id is the first. Where that is not
\* the order of delivery, they end a little apart. So do those of two receivers.
RECURSIVE Later(_, _, _)
Later(ids, place, before) ==
    IF place = before + 1 THEN (IF before = 0 THEN 0 ELSE place)
    ELSE IF Order[ids[place]] < Order[ids[place - 1]] THEN place
    ELSE Later(ids, place - 1, before)

LeaseAt(ids, receivers, place) ==
    LET its == Receiver(receivers, place, 0)
    IN  its.lease + (IF Spread = 0 THEN 0 ELSE Spread * Later(ids, place, its.before))

\* What is popped, and the keys then.
Popped(q, max) ==
    LET first == Front(q.pending, max)
        q1 == [q EXCEPT !.pending = Rest(@, max)]
        more(q2) == [ids |-> first \o Front(q2.pending, max - Len(first)),
                     q |-> [q2 EXCEPT !.pending = Rest(@, max - Len(first))]]
    IN  IF Len(first) < max /\ Has("due") THEN The({more(q2) : q2 \in {Promote(q1).q}})
        ELSE [ids |-> first, q |-> q1]

Leased(before, ids, lost, receivers, receipts) ==
    LET leases == [i \in DOMAIN ids |-> [m |-> ids[i], left |-> LeaseAt(ids, receivers, i)]]
        is(m) == \E i \in DOMAIN ids : ids[i] = m
        after(m) ==
            [before.meta[m] EXCEPT
                !.held = receipts[m], !.count = Min(@ + 1, MaxCount),
                !.started = @ /\ ~Has("ends")]
    IN  [before EXCEPT
            !.invisible = InsertAll(@, leases),
            !.meta = [m \in Messages |->
                        IF is(m) THEN after(m) ELSE IF m \in lost THEN NoField ELSE @[m]]]

Receive(q, receivers, receipts) ==
    LET delivery(ids, after) ==
            [q |-> after,
             deliveries |->
                [i \in DOMAIN ids |->
                    [m |-> ids[i], r |-> receipts[ids[i]], count |-> after.meta[ids[i]].count,
                     unsettled |-> after.meta[ids[i]].unsettled,
                     uncounted |-> after.meta[ids[i]].uncounted]]]
        from(popped, ids, lost) ==
            The({delivery(ids, after) : after \in {Leased(popped.q, ids, lost, receivers, receipts)}})
    IN  The({from(popped, SelectSeq(popped.ids, LAMBDA m : m \in q.data),
                  Elements(popped.ids) \ q.data) :
                popped \in {Popped(q, Wanted(receivers))}})

\* It fails after it has popped: a key is of another type (give_back.lua).
ReceiveFails(q, max) ==
    LET popped == Popped(q, max)
    IN  IF Has("undo") THEN [popped.q EXCEPT !.pending = popped.ids \o @] ELSE popped.q

-----------------------------------------------------------------------------
(* settle.lua. A batch is a sequence of [m, r, kind, time].                 *)

\* Reads everything before it writes: what becomes of each entry, one after the other.
RECURSIVE Judged(_, _, _, _)
Judged(q, isCapped, batch, so) ==
    IF batch = <<>> THEN so
    ELSE LET e == Head(batch)
             m == e.m
             isTimed == \E i \in DOMAIN q.invisible :
                            q.invisible[i].m = m /\ q.invisible[i].left > 0
             runs == /\ m \notin so.settled
                     /\ IsHeld(q, m)
                     /\ Has("secret") => q.meta[m].held = e.r
                     /\ isCapped => isTimed
             isBack == e.kind \in {"nack", "release"}
             inLine == e.kind /= "ack" /\ e.time = 0
             inTime == e.kind /= "ack" /\ e.time > 0
             isStart == e.kind = "start" /\ Has("start")
             isKnown == m \in so.started /\ Has("further")
             field == [q.meta[m] EXCEPT !.started = @ \/ isStart \/ isKnown]
             back == [field EXCEPT !.held = IF Has("nack") THEN NoReceipt ELSE @,
                                   !.started = @ /\ ~Has("ends")]
             isNoAttempt == IF e.kind = "release" THEN Has("release") ELSE ~Has("attempt")
             after == IF ~isBack THEN Expired(field)
                      ELSE IF isNoAttempt THEN [back EXCEPT !.uncounted = Min(@ + 1, MaxCount)]
                      ELSE back
             judged ==
                IF ~runs THEN [so EXCEPT !.answers = Append(@, "0")]
                ELSE [so EXCEPT
                        !.answers = Append(@, "1"),
                        !.gone = IF e.kind = "ack" THEN @ \cup {m} ELSE @,
                        !.started = IF isStart THEN @ \cup {m} ELSE @,
                        !.after = IF inLine \/ isBack THEN [@ EXCEPT ![m] = after] ELSE @,
                        !.settled = IF inLine \/ isBack \/ e.kind = "ack" THEN @ \cup {m} ELSE @,
                        !.line = IF inLine THEN Append(@, [m |-> m]) ELSE @,
                        !.delayed = IF isBack /\ ~inLine THEN @ + 1 ELSE @,
                        !.timed = IF inTime
                                  THEN Append(@, [m |-> m, left |-> e.time + Len(@) * Spread])
                                  ELSE @]
         IN  Judged(q, isCapped, Tail(batch), judged)

\* ZADD: of entries with the same id, the last one counts.
RECURSIVE Zadd(_, _)
Zadd(invisible, entries) ==
    IF entries = <<>> THEN invisible
    ELSE Zadd(Insert(Drop(invisible, {Head(entries).m}), Head(entries).m, Head(entries).left),
              Tail(entries))

Settled(before, so) ==
    LET isBehind == before.isCapped /\ Has("behind")
        behind == IF isBehind THEN Apart(so.line, 1) ELSE <<>>
        left == Drop(Zadd(Drop(before.q.invisible, Ids(so.timed)), so.timed),
                     so.gone \cup Ids(so.line))
        after(m) ==
            IF m \in so.gone THEN IF Has("orphans") THEN NoField ELSE before.q.meta[m]
            ELSE IF m \in so.settled THEN so.after[m]
            ELSE [before.q.meta[m] EXCEPT !.started = @ \/ m \in so.started]
    IN  [answers |-> so.answers,
         q |-> [before.q EXCEPT
                    !.data = @ \ so.gone,
                    !.pending = IF isBehind THEN @ ELSE @ \o Line(so.line),
                    !.invisible = Zadd(left, behind),
                    !.meta = [m \in Messages |-> after(m)],
                    !.delayed = @ + so.delayed + Len(behind)]]

NothingJudged ==
    [answers |-> <<>>, settled |-> {}, gone |-> {}, started |-> {},
     after |-> [m \in Messages |-> NoField], line |-> <<>>, timed |-> <<>>, delayed |-> 0]

Settle(q, batch) ==
    LET from(before) ==
            The({Settled(before, so) :
                    so \in {Judged(before.q, before.isCapped, batch, NothingJudged)}})
    IN  The({from(before) :
                before \in {IF Has("expiry") THEN Promote(q) ELSE NothingPromoted(q)}})

-----------------------------------------------------------------------------
(* release.lua. A batch is a sequence of [m, r].                            *)

Release(q, batch) ==
    LET runs(e) == /\ \E i \in DOMAIN q.invisible :
                        q.invisible[i].m = e.m /\ q.invisible[i].left > 0
                   /\ IsHeld(q, e.m)
                   /\ q.meta[e.m].held = e.r
        back == SelectSeq(batch, runs)
        after(m) == [q.meta[m] EXCEPT !.held = NoReceipt, !.count = @ - 1, !.started = FALSE]
    IN  [q EXCEPT
            !.invisible = Drop(@, Ids(back)),
            !.pending = IF Has("first") THEN Line(back) \o @ ELSE @ \o Line(back),
            !.meta = [m \in Messages |-> IF m \in Ids(back) THEN after(m) ELSE @[m]]]

\* purge.lua
Purge(q) == [q |-> EmptyKeys, purged |-> Len(q.pending) + Len(q.invisible)]

\* forget.lua: of a queue that holds nothing, nothing is left.
Forget(q) ==
    LET isEmpty == q.data = {} /\ q.pending = <<>> /\ q.invisible = <<>>
    IN  [q |-> IF isEmpty THEN EmptyKeys ELSE q, answer |-> IF isEmpty THEN 1 ELSE 0]
=============================================================================
