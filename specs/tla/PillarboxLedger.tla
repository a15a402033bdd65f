-------------------------- MODULE PillarboxLedger --------------------------
(***************************************************************************)
(* The contract of a queue, as pure functions: the right result of each    *)
(* command. It is the same state machine as `core::ledger`: every message  *)
(* moves to `ready` at the moment it becomes ready.                        *)
(*                                                                         *)
(* A ledger is a record:                                                   *)
(*   ready      messages that a receive delivers, the next one first       *)
(*   timed      messages that become ready by time: [m, left], by left,    *)
(*              those of the same moment by when their time was set        *)
(*   lease      of each message the receipt of its running delivery, or    *)
(*              NoReceipt                                                  *)
(*   count      of each message the number of deliveries in this life      *)
(*   started    messages in flight whose handler is known to have started  *)
(*   unsettled  of each message the number of these deliveries that were   *)
(*              started and expired                                        *)
(*   uncounted  of each message the number that were no attempt: released, *)
(*              or expired before they were started                        *)
(*                                                                         *)
(* Time is relative: a tick lowers every `left` that is not 0.             *)
(* So time is unbounded, and the states are still finite.                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Messages,   \* ids of messages
    NoReceipt,  \* no receipt
    MaxCount    \* where counts stop rising, so that a model can be finite

Min(a, b) == IF a < b THEN a ELSE b

\* The only element of a set. `The({f(x) : x \in {e}})` is f(e), with e evaluated once: TLC would
\* evaluate it wherever f mentions x, which is several times slower.
The(set) == CHOOSE x \in set : TRUE

Ids(timed) == {timed[i].m : i \in DOMAIN timed}
Elements(line) == {line[i] : i \in DOMAIN line}
Drop(timed, ids) == SelectSeq(timed, LAMBDA e : e.m \notin ids)
Front(s, n) == SubSeq(s, 1, Min(n, Len(s)))
Rest(s, n) == SubSeq(s, Min(n, Len(s)) + 1, Len(s))
DueCount(timed) == Cardinality({i \in DOMAIN timed : timed[i].left <= 0})
Line(timed) == [i \in DOMAIN timed |-> timed[i].m]

\* Behind all that become ready no later.
Insert(timed, m, left) ==
    LET n == Cardinality({i \in DOMAIN timed : timed[i].left <= left})
    IN  SubSeq(timed, 1, n) \o <<[m |-> m, left |-> left]>> \o SubSeq(timed, n + 1, Len(timed))

RECURSIVE InsertAll(_, _)
InsertAll(timed, more) ==
    IF more = <<>> THEN timed
    ELSE InsertAll(Insert(timed, Head(more).m, Head(more).left), Tail(more))

Pass(timed, time) ==
    [i \in DOMAIN timed |->
        [timed[i] EXCEPT !.left = IF @ > time THEN @ - time ELSE Min(@, 0)]]

-----------------------------------------------------------------------------

EmptyLedger ==
    [ready |-> <<>>, timed |-> <<>>, lease |-> [m \in Messages |-> NoReceipt],
     count |-> [m \in Messages |-> 0], started |-> {},
     unsettled |-> [m \in Messages |-> 0], uncounted |-> [m \in Messages |-> 0]]

Members(l) == Elements(l.ready) \cup Ids(l.timed)

\* One more for each of these messages.
Raised(numbers, ids) ==
    [m \in Messages |-> IF m \in ids THEN Min(numbers[m] + 1, MaxCount) ELSE numbers[m]]

\* What has no time left joins the line. A delivery that ends so was unsettled if it was started, and
\* no attempt if not.
CameDue(l, due, ended) ==
    [l EXCEPT
        !.ready = @ \o Line(due),
        !.timed = Rest(@, Len(due)),
        !.lease = [m \in Messages |-> IF m \in ended THEN NoReceipt ELSE @[m]],
        !.started = @ \ ended,
        !.unsettled = Raised(@, ended \cap l.started),
        !.uncounted = Raised(@, ended \ l.started)]

Comes(l) ==
    LET due == Front(l.timed, DueCount(l.timed))
    IN  IF l.timed = <<>> \/ l.timed[1].left > 0 THEN l
        ELSE CameDue(l, due, {m \in Ids(due) : l.lease[m] /= NoReceipt})

LedgerPass(l, time) == Comes([l EXCEPT !.timed = Pass(@, time)])

\* Answers: "1" stored, "0" was here already, "F" the queue is full.
LedgerSendOne(l, entry, capacity) ==
    IF entry.m \in Members(l) THEN [l |-> l, answer |-> "0"]
    ELSE IF Cardinality(Members(l)) >= capacity THEN [l |-> l, answer |-> "F"]
    ELSE [l |-> IF entry.delay = 0
                THEN [l EXCEPT !.ready = Append(@, entry.m)]
                ELSE [l EXCEPT !.timed = Insert(@, entry.m, entry.delay)],
          answer |-> "1"]

\* Delivers the first so many messages.
Delivered(l, ids, lease, receipts) ==
    LET leases == [i \in DOMAIN ids |-> [m |-> ids[i], left |-> lease]]
        is(m) == \E i \in DOMAIN ids : ids[i] = m
    IN  [l EXCEPT
            !.ready = Rest(@, Len(ids)),
            !.timed = InsertAll(@, leases),
            !.lease = [m \in Messages |-> IF is(m) THEN receipts[m] ELSE @[m]],
            !.count = Raised(@, Elements(ids))]

LedgerReceive(l, number, lease, receipts) ==
    The({Comes(after) : after \in {Delivered(l, Front(l.ready, number), lease, receipts)}})

\* The same, with a lease of its own for each.
RECURSIVE LedgerReceives(_, _, _, _)
LedgerReceives(l, ids, leases, receipts) ==
    IF ids = <<>> THEN Comes(l)
    ELSE LedgerReceives(Delivered(l, <<Head(ids)>>, Head(leases), receipts),
                        Tail(ids), Tail(leases), receipts)

Forgotten(l, ids) ==
    [l EXCEPT
        !.lease = [m \in Messages |-> IF m \in ids THEN NoReceipt ELSE @[m]],
        !.count = [m \in Messages |-> IF m \in ids THEN 0 ELSE @[m]],
        !.started = @ \ ids,
        !.unsettled = [m \in Messages |-> IF m \in ids THEN 0 ELSE @[m]],
        !.uncounted = [m \in Messages |-> IF m \in ids THEN 0 ELSE @[m]]]

\* An entry is [m, r, kind, time]: kind is "ack", "nack", "release", "extend" or "start".
IsCurrent(l, entry) == entry.r /= NoReceipt /\ l.lease[entry.m] = entry.r

LedgerSettleOne(l, entry) ==
    LET m == entry.m
        rest == Drop(l.timed, {m})
        givenBack == [l EXCEPT !.timed = IF entry.time = 0 THEN rest ELSE Insert(rest, m, entry.time),
                               !.ready = IF entry.time = 0 THEN Append(@, m) ELSE @,
                               !.lease[m] = NoReceipt, !.started = @ \ {m}]
    IN  IF ~IsCurrent(l, entry) THEN [l |-> l, answer |-> "0"]
        ELSE [answer |-> "1",
              l |-> CASE entry.kind = "ack" -> Forgotten([l EXCEPT !.timed = rest], {m})
                      [] entry.kind = "nack" -> givenBack
                      [] entry.kind = "release" ->
                            [givenBack EXCEPT !.uncounted = Raised(@, {m})]
                      [] OTHER ->
                            Comes([l EXCEPT !.timed = Insert(rest, m, entry.time),
                                            !.started = IF entry.kind = "start" THEN @ \cup {m}
                                                        ELSE @])]

\* Each entry of a batch stands alone.
RECURSIVE LedgerSend(_, _, _)
LedgerSend(l, batch, capacity) ==
    IF batch = <<>> THEN [l |-> l, answers |-> <<>>]
    ELSE The({[l |-> others.l, answers |-> <<first.answer>> \o others.answers] :
                <<first, others>> \in UNION {{<<f, LedgerSend(f.l, Tail(batch), capacity)>>} :
                    f \in {LedgerSendOne(l, Head(batch), capacity)}}})

RECURSIVE LedgerSettle(_, _)
LedgerSettle(l, batch) ==
    IF batch = <<>> THEN [l |-> l, answers |-> <<>>]
    ELSE The({[l |-> others.l, answers |-> <<first.answer>> \o others.answers] :
                <<first, others>> \in UNION {{<<f, LedgerSettle(f.l, Tail(batch))>>} :
                    f \in {LedgerSettleOne(l, Head(batch))}}})

\* Undoes deliveries that no client has received: entries [m, r], in the order of delivery.
LedgerRelease(l, batch) ==
    LET back == SelectSeq(batch, LAMBDA e : IsCurrent(l, e))
        ids == Ids(back)
    IN  [l EXCEPT
            !.ready = Line(back) \o @,
            !.timed = Drop(@, ids),
            !.lease = [m \in Messages |-> IF m \in ids THEN NoReceipt ELSE @[m]],
            !.count = [m \in Messages |-> IF m \in ids THEN @[m] - 1 ELSE @[m]],
            !.started = @ \ ids]

\* What is counted of a message.
LedgerCounts(l, m) ==
    [count |-> l.count[m], unsettled |-> l.unsettled[m], uncounted |-> l.uncounted[m],
     started |-> m \in l.started]
=============================================================================
