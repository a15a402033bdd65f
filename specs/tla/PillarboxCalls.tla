--------------------------- MODULE PillarboxCalls ---------------------------
(***************************************************************************)
(* Calls between client and server: lost replies, repeated calls, and late *)
(* copies that were stuck in a socket.                                     *)
(*                                                                         *)
(* Calls of one kind of one client have numbers (batcher.rs). A script     *)
(* stores number and reply of a call in the same step as its effect, under *)
(* the name of the caller (remember.lua). A run that finds its own number  *)
(* or a later one changes nothing. A reply that changes nothing is stored  *)
(* only if `again` is set: an earlier copy may still run (KEYS[6],         *)
(* renew.lua). A settle that is refused stores nothing.                    *)
(*                                                                         *)
(* Each call has one entry here; PillarboxRedis has batches.               *)
(***************************************************************************)
EXTENDS PillarboxScripts

CONSTANTS
    Clients,  \* numbers, from which receipts are derived
    Nobody,   \* no message
    Lease,    \* duration of leases
    Kinds,    \* kinds of settles: some of "ack", "nack", "release", "extend", "start"
    Most      \* of each client and kind: the number of calls

VARIABLES
    keys, ledger,  \* as in PillarboxRedis
    record,        \* of each client and kind of call: [n, answer, m], as the server has it
    number,        \* of each client and kind: the number of the last call
    unsure,        \* of each client and kind: whether an earlier call failed and may still run
    call,          \* of each client: the call that it waits for
    net,           \* copies of calls that may still run
    known,         \* receipts that a client has received: [m, r]
    acted,         \* calls that had an effect
    answered,      \* calls whose client got the reply
    wrong

vars == <<keys, ledger, record, number, unsure, call, net, known, acted, answered, wrong>>

Lanes == {"send", "receive", "settle"}

NoCall == [c |-> 0, lane |-> "none", n |-> 0, m |-> Nobody, r |-> NoReceipt, kind |-> "none",
           again |-> FALSE]
NoReply == [n |-> 0, answer |-> "none", m |-> Nobody]
NameOf(copy) == <<copy.c, copy.lane, copy.n>>

Init ==
    /\ keys = EmptyKeys
    /\ ledger = EmptyLedger
    /\ record = [c \in Clients |-> [lane \in Lanes |-> NoReply]]
    /\ number = [c \in Clients |-> [lane \in Lanes |-> 0]]
    /\ unsure = [c \in Clients |-> [lane \in Lanes |-> FALSE]]
    /\ call = [c \in Clients |-> NoCall]
    /\ net = {}
    /\ known = {}
    /\ acted = {}
    /\ answered = {}
    /\ wrong = {}

Accuse(charges) == wrong' = wrong \cup {charge[2] : charge \in {x \in charges : x[1]}}

-----------------------------------------------------------------------------
(* Clients                                                                  *)

\* Receipts are made by who asks, so a call that runs twice brings the same one.
Ask(c, lane, m, r, kind) ==
    LET n == number[c][lane] + 1
        new == [c |-> c, lane |-> lane, n |-> n, m |-> m,
                r |-> IF lane = "receive" THEN 10 * c + n ELSE r, kind |-> kind,
                again |-> unsure[c][lane]]
    IN  /\ call[c] = NoCall
        /\ n <= Most[c][lane]
        /\ number' = [number EXCEPT ![c][lane] = n]
        /\ call' = [call EXCEPT ![c] = new]
        /\ net' = net \cup {new}
        /\ UNCHANGED <<keys, ledger, record, unsure, known, acted, answered, wrong>>

\* No answer has come: on a new connection, once more. What the old one still says is not heard.
Repeat(c) ==
    /\ call[c] /= NoCall
    /\ call' = [call EXCEPT ![c].again = TRUE]
    /\ net' = net \cup {call'[c]}
    /\ UNCHANGED <<keys, ledger, record, number, unsure, known, acted, answered, wrong>>

\* It has tried long enough, and says that it failed. Or it is dead, and never asks again.
GiveUp(c) ==
    /\ call[c] /= NoCall
    /\ call' = [call EXCEPT ![c] = NoCall]
    /\ unsure' = [unsure EXCEPT ![c][call[c].lane] = TRUE]
    /\ UNCHANGED <<keys, ledger, record, number, net, known, acted, answered, wrong>>

-----------------------------------------------------------------------------
(* The server                                                               *)

\* What a run of a script comes to: the keys, the ledger, the answer, whether anything was changed
\* that a client can notice, whether the answer is stored, and what was answered wrongly.
Outcome(q, l, answer, m, effect, stores, charges) ==
    [q |-> q, l |-> l, answer |-> answer, m |-> m, effect |-> effect, stores |-> stores,
     charges |-> charges]

RunSend(copy) ==
    LET batch == <<[m |-> copy.m, delay |-> 0]>>
        of(done, right) ==
            Outcome(done.q, right.l, done.answers[1], Nobody, done.answers[1] = "1",
                    done.answers[1] = "1" \/ copy.again,
                    {<<done.answers /= right.answers, "sent">>})
    IN  of(Send(keys, batch, 9), LedgerSend(ledger, batch, 9))

RunReceive(copy) ==
    LET receipts == [m \in Messages |-> copy.r]
        of(done, size) ==
            Outcome(done.q, LedgerReceive(ledger, size, Lease, receipts),
                    IF size = 0 THEN "0" ELSE "1",
                    IF size = 0 THEN Nobody ELSE done.deliveries[1].m,
                    size > 0, size > 0 \/ copy.again,
                    {<<Line(done.deliveries) /= Front(ledger.ready, 1), "order">>})
    IN  The({of(got, Len(got.deliveries)) : got \in {Receive(keys, <<[max |-> 1, lease |-> Lease]>>, receipts)}})

RunSettle(copy) ==
    LET batch == <<[m |-> copy.m, r |-> copy.r, kind |-> copy.kind,
                    time |-> IF copy.kind \in {"extend", "start"} THEN Lease ELSE 0]>>
        of(done, right) ==
            Outcome(done.q, right.l, done.answers[1], Nobody, done.answers[1] = "1",
                    done.answers[1] = "1", {<<done.answers /= right.answers, "settled">>})
    IN  of(Settle(keys, batch), LedgerSettle(ledger, batch))

\* The record has this call, or a later one.
RunSeen(copy, its) ==
    LET isOurs == its.m /= Nobody /\ keys.meta[its.m].held = copy.r
        answer == IF copy.lane /= "receive" THEN its.answer ELSE IF isOurs THEN "1" ELSE "0"
    IN  Outcome(keys, ledger, answer, IF isOurs THEN its.m ELSE Nobody, FALSE, FALSE, {})

\* One copy runs. arrives: its client waits for this copy, and is answered. Otherwise the answer is
\* lost, or its receiver is gone.
Run(copy, arrives) ==
    LET c == copy.c
        name == NameOf(copy)
        its == record[c][copy.lane]
        isSeen == Has("record") /\ its.n >= copy.n
        isMeant == Has("unsure") \/ ~copy.again
        isReceive == copy.lane = "receive"
    IN  \E so \in {IF isSeen THEN RunSeen(copy, its)
                   ELSE CASE copy.lane = "send" -> RunSend(copy)
                          [] isReceive -> RunReceive(copy)
                          [] OTHER -> RunSettle(copy)} :
        /\ arrives => call[c] = copy
        /\ net' = net \ {copy}
        /\ keys' = so.q
        /\ ledger' = so.l
        /\ record' = IF so.effect \/ (so.stores /\ isMeant)
                     THEN [record EXCEPT
                            ![c][copy.lane] = [n |-> copy.n, answer |-> so.answer, m |-> so.m]]
                     ELSE record
        /\ acted' = IF so.effect THEN acted \cup {name} ELSE acted
        /\ IF arrives
           THEN /\ call' = [call EXCEPT ![c] = NoCall]
                /\ unsure' = [unsure EXCEPT ![c][copy.lane] = FALSE]
                /\ answered' = answered \cup {name}
                /\ known' = IF isReceive /\ so.answer = "1"
                            THEN known \cup {[m |-> so.m, r |-> copy.r]} ELSE known
           ELSE UNCHANGED <<call, unsure, answered, known>>
        /\ Accuse(so.charges \cup
                  {<<so.effect /\ name \in acted, "twice">>,
                   <<so.effect /\ name \in answered, "afterwards">>,
                   <<so.effect /\ copy.lane /= "settle"
                        /\ \E n \in copy.n + 1 .. Most[c][copy.lane] :
                                <<c, copy.lane, n>> \in answered, "overtaken">>,
                   <<arrives /\ ~isReceive /\ (so.answer = "1") /= (name \in acted'), "misled">>})
        /\ UNCHANGED number

Tick ==
    /\ keys' = ScriptPass(keys, 1)
    /\ ledger' = LedgerPass(ledger, 1)
    /\ keys' /= keys
    /\ UNCHANGED <<record, number, unsure, call, net, known, acted, answered, wrong>>

Next ==
    \/ \E c \in Clients :
        \/ \E m \in Messages : Ask(c, "send", m, NoReceipt, "none")
        \/ Ask(c, "receive", Nobody, NoReceipt, "none")
        \/ \E t \in known, kind \in Kinds : Ask(c, "settle", t.m, t.r, kind)
        \/ Repeat(c) \/ GiveUp(c)
    \/ \E copy \in net, arrives \in BOOLEAN : Run(copy, arrives)
    \/ Tick

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants                                                               *)

\* A call has its effect once, however often it runs: what was sent, received and acknowledged is
\* not there again because the send was repeated.
EffectOnce == "twice" \notin wrong

\* Nothing happens any more once the client was answered.
NothingAfterwards == "afterwards" \notin wrong

\* Nor once a later send or receive of the same caller was.
NothingOvertaken == "overtaken" \notin wrong

\* What was done is not reported as refused, and what was not is not reported as done.
NobodyMisled == "misled" \notin wrong

\* And each run does what the ledger says.
AnswersRight == wrong \cap {"sent", "settled", "order"} = {}
KeysRight ==
    /\ keys.pending \o Line(Front(keys.invisible, DueCount(keys.invisible))) = ledger.ready
    /\ Rest(keys.invisible, DueCount(keys.invisible)) = ledger.timed
    /\ keys.data = Members(ledger)
    /\ \A m \in Messages : ScriptCounts(keys, m) = LedgerCounts(ledger, m)
=============================================================================
