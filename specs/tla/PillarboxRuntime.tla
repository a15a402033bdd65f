-------------------------- MODULE PillarboxRuntime --------------------------
(***************************************************************************)
(* Workers: processes that fetch, keep leases alive, run handlers, settle, *)
(* dead-letter, drain and crash. The queue is as small as the contract     *)
(* allows: a message is ready, or leased to one receipt, or gone.          *)
(*                                                                         *)
(* A process is crates/pillarbox-runtime/src/dispatcher with its driver.   *)
(* It holds a delivery from the receive until the delivery is settled,     *)
(* lost or dropped. A delivery is in one place: waiting (prefetched),      *)
(* starting, running, burying (a dead letter is being stored), settling.   *)
(* It is starting until the queue has recorded the start of its handler.   *)
(* Calls of the queue fail in either way: without effect, or after it.     *)
(*                                                                         *)
(* `Without` names rules to break on purpose:                              *)
(*   "told"     a handler is notified when its lease expires               *)
(*   "derived"  the id of a dead letter comes from its message             *)
(*   "before"   the dead letter is stored before the message is settled    *)
(*   "room"     no more is fetched than there are free slots               *)
(*   "taken"    a stop returns deliveries that were not started            *)
(*   "begin"    nothing starts after a stop                                *)
(*   "start"    the queue has recorded the start of a handler, if an       *)
(*              earlier delivery has expired or was released               *)
(*   "moves"    a delivery that moves leaves the place before              *)
(*   "empty"    a stop completes when nothing is held                      *)
(*   "deadline" draining has a deadline                                    *)
(*   "giveup"   a settle whose reply was lost is dropped at the deadline   *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    Messages,
    Processes,
    Lease,          \* duration of leases, in ticks
    Latency,        \* largest number of ticks until the reply of a fetch arrives
    Workers,        \* handlers that a process runs at the same time
    Prefetch,          \* number of prefetched deliveries
    Drain,          \* number of ticks that a stop waits for handlers
    MaxDeliveries,  \* number of deliveries of a message
    Crashes,        \* whether processes crash
    Wraps,          \* whether receipts begin again, for liveness
    Without

VARIABLES
    lease,    \* of each message: [r, left, started]; r = 0: not in flight
    doubted,  \* messages of which a delivery has expired or was released (unsettled or uncounted > 0)
    outcome,  \* of each message: "here", "done" or "buried"
    letters,  \* of each message: the number of its dead letters
    issued,   \* of each message: the last receipt
    settled,  \* receipts by which something was settled: [m, r]
    mode,     \* of each process: "running", "draining", "cancelling", "last", "over", "dead"
    timer,    \* of each process: ticks until the next mode
    held,     \* of each process: what it holds
    wrong

vars == <<lease, doubted, outcome, letters, issued, settled, mode, timer, held, wrong>>

Has(rule) == rule \notin Without

NoLease == [r |-> 0, left |-> 0, started |-> FALSE]

Init ==
    /\ lease = [m \in Messages |-> NoLease]
    /\ doubted = {}
    /\ outcome = [m \in Messages |-> "here"]
    /\ letters = [m \in Messages |-> 0]
    /\ issued = [m \in Messages |-> 0]
    /\ settled = {}
    /\ mode = [p \in Processes |-> "running"]
    /\ timer = [p \in Processes |-> 0]
    /\ held = [p \in Processes |-> {}]
    /\ wrong = {}

IsEnding(p) == mode[p] \in {"draining", "cancelling", "last"}
Lives(p) == mode[p] \notin {"over", "dead"}
\* Where a worker has taken a delivery up.
Begun == {"starting", "running"}
At(p, places) == {h \in held[p] : h.place \in places}
Runs(h) == lease[h.m].r = h.r

Becomes(p, h, new) ==
    held' = [held EXCEPT ![p] = (IF Has("moves") THEN @ \ {h} ELSE @) \cup {new}]
Leaves(p, h) == held' = [held EXCEPT ![p] = @ \ {h}]
Settling(h, intent) == [h EXCEPT !.place = "settling", !.intent = intent]

-----------------------------------------------------------------------------
(* Fetching and running                                                     *)

\* The answer comes so late, and the end of the lease is reckoned from then (Dispatcher::hold).
Fetch(p, m, late) ==
    LET r == IF Wraps THEN (issued[m] % MaxDeliveries) + 1 ELSE issued[m] + 1
        new == [m |-> m, r |-> r, place |-> "waiting", intent |-> "none", left |-> Lease + late,
                lost |-> FALSE, unsure |-> FALSE, records |-> m \in doubted]
    IN  /\ mode[p] = "running"
        /\ Has("room") => Cardinality(At(p, {"waiting"} \cup Begun)) < Workers + Prefetch
        /\ outcome[m] = "here" /\ lease[m].r = 0
        /\ Wraps \/ issued[m] < MaxDeliveries
        /\ \A h \in held[p] : h.m = m => h.r /= r
        /\ issued' = [issued EXCEPT ![m] = r]
        /\ lease' = [lease EXCEPT ![m] = [r |-> r, left |-> Lease, started |-> FALSE]]
        /\ held' = [held EXCEPT ![p] = @ \cup {new}]
        /\ settled' = settled \ {[m |-> m, r |-> r]}
        /\ UNCHANGED <<doubted, outcome, letters, mode, timer, wrong>>

\* A worker takes it up; or finds that it is too late.
Begin(p, h) ==
    LET place == IF h.records /\ Has("start") THEN "starting" ELSE "running"
    IN  /\ h \in At(p, {"waiting"})
        /\ Cardinality(At(p, Begun)) < Workers
        /\ IF h.lost THEN Leaves(p, h)
           ELSE /\ mode[p] = "running" \/ ~Has("begin")
                /\ Becomes(p, h, [h EXCEPT !.place = place])
        /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, mode, timer, wrong>>

\* It would wait too long for a worker, so it goes back before a worker takes it up (Dispatcher::return_surplus).
GiveBack(p, h) ==
    /\ h \in At(p, {"waiting"})
    /\ mode[p] = "running" /\ ~h.lost
    /\ Becomes(p, h, Settling(h, "release"))
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, mode, timer, wrong>>

\* A worker that waits to start finds that it is too late, or that it is cancelled.
Decline(p, h) ==
    /\ h \in At(p, {"starting"})
    /\ h.lost \/ mode[p] \in {"cancelling", "last"}
    /\ IF h.lost THEN Leaves(p, h) ELSE Becomes(p, h, Settling(h, "release"))
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, mode, timer, wrong>>

\* The handler succeeds, fails and is to be tried again, or fails for good.
Finish(p, h, verdict) ==
    /\ h \in At(p, {"running"})
    /\ CASE verdict = "done" -> Becomes(p, h, Settling(h, "ack"))
         [] h.lost -> Leaves(p, h)
         [] verdict = "retry" -> Becomes(p, h, Settling(h, "nack"))
         [] OTHER -> IF Has("before") THEN Becomes(p, h, [h EXCEPT !.place = "burying"])
                     ELSE Becomes(p, h, Settling(h, "bury"))
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, mode, timer, wrong>>

-----------------------------------------------------------------------------
(* Dead letters: stored, then acknowledged                                  *)

MoreLetters(m) == [letters EXCEPT ![m] = IF Has("derived") THEN 1 ELSE @ + 1]

\* effect: the dead letter is stored; answered: the process gets the reply.
Bury(p, h, effect, answered) ==
    /\ h \in At(p, {"burying"})
    /\ answered => effect
    /\ effect => letters[h.m] < 2
    /\ letters' = IF effect /\ ~h.lost THEN MoreLetters(h.m) ELSE letters
    /\ CASE h.lost -> Leaves(p, h)
         [] answered -> Becomes(p, h, Settling(h, "bury"))
         [] IsEnding(p) -> Becomes(p, h, Settling(h, "release"))
         [] OTHER -> UNCHANGED held
    /\ UNCHANGED <<lease, doubted, outcome, issued, settled, mode, timer, wrong>>

\* Only if "before" is broken: the dead letter is stored after the message was acknowledged.
BuryAfter(p, h) ==
    /\ h \in At(p, {"late"})
    /\ letters' = MoreLetters(h.m)
    /\ Leaves(p, h)
    /\ UNCHANGED <<lease, doubted, outcome, issued, settled, mode, timer, wrong>>

-----------------------------------------------------------------------------
(* Calls of the queue                                                       *)

Free(m) == [lease EXCEPT ![m] = NoLease]

\* "stale" after a failure means done (Dispatcher::refused).
Settle(p, h, effect, answered) ==
    LET isGood == Runs(h)
        isAck == h.intent \notin {"nack", "release"}
        isDone == effect /\ isGood
        isDoubtful == answered /\ ~isGood /\ h.unsure
    IN  /\ h \in At(p, {"settling"})
        /\ answered => effect
        /\ ~(h.unsure /\ h.left = 0 /\ Has("giveup"))
        /\ lease' = IF isDone THEN Free(h.m) ELSE lease
        /\ doubted' = IF isDone /\ h.intent = "release" THEN doubted \cup {h.m} ELSE doubted
        /\ outcome' = IF isDone /\ isAck
                      THEN [outcome EXCEPT ![h.m] = IF h.intent = "bury" THEN "buried" ELSE "done"]
                      ELSE outcome
        /\ settled' = IF isDone THEN settled \cup {[m |-> h.m, r |-> h.r]} ELSE settled
        /\ IF ~answered THEN Becomes(p, h, [h EXCEPT !.unsure = TRUE])
           ELSE IF ~Has("before") /\ h.intent = "bury" /\ isGood
           THEN Becomes(p, h, [h EXCEPT !.place = "late"])
           ELSE Leaves(p, h)
        /\ wrong' = IF isDoubtful /\ [m |-> h.m, r |-> h.r] \notin settled
                    THEN wrong \cup {"claimed"} ELSE wrong
        /\ UNCHANGED <<letters, issued, mode, timer>>

\* Whether it was settled is not known, and will not be known.
GiveUp(p, h) ==
    /\ h \in At(p, {"settling"})
    /\ h.unsure /\ h.left = 0
    /\ Leaves(p, h)
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, mode, timer, wrong>>

\* Reckoned from when it was asked for; one that is refused is lost. Where a handler runs, or is to, it is
\* a start: it says so in passing, and who waits for it runs then.
Extend(p, h, effect, answered) ==
    LET isStart == h.place \in Begun
        runs == [h EXCEPT !.left = Lease, !.place = IF isStart THEN "running" ELSE @]
    IN  /\ h \in At(p, {"waiting", "burying"} \cup Begun)
        /\ ~h.lost
        /\ answered => effect
        /\ lease' = IF effect /\ Runs(h)
                    THEN [lease EXCEPT ![h.m].left = Lease, ![h.m].started = @ \/ isStart]
                    ELSE lease
        /\ IF answered THEN Becomes(p, h, IF Runs(h) THEN runs ELSE [h EXCEPT !.lost = TRUE])
           ELSE UNCHANGED held
        /\ UNCHANGED <<doubted, outcome, letters, issued, settled, mode, timer, wrong>>

-----------------------------------------------------------------------------
(* Stopping                                                                 *)

\* Nothing is fetched or begun any more; what was not begun goes back.
Stop(p) ==
    /\ mode[p] = "running"
    /\ mode' = [mode EXCEPT ![p] = "draining"]
    /\ timer' = [timer EXCEPT ![p] = Drain]
    /\ held' = [held EXCEPT ![p] =
                    IF ~Has("taken") THEN @
                    ELSE {h \in @ : h.place /= "waiting"}
                         \cup {Settling(h, "release") : h \in {x \in @ : x.place = "waiting" /\ ~x.lost}}]
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, wrong>>

Over(p) ==
    /\ IsEnding(p)
    /\ Has("empty") => held[p] = {}
    /\ mode' = [mode EXCEPT ![p] = "over"]
    /\ timer' = [timer EXCEPT ![p] = 0]
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, held, wrong>>

Crash(p) ==
    /\ Lives(p)
    /\ mode' = [mode EXCEPT ![p] = "dead"]
    /\ timer' = [timer EXCEPT ![p] = 0]
    /\ held' = [held EXCEPT ![p] = {}]
    /\ UNCHANGED <<lease, doubted, outcome, letters, issued, settled, wrong>>

\* A deadline of the way to the end has come (Dispatcher::pass): handlers are cancelled; then what is
\* not being settled is given up; then all.
NextMode(p) ==
    IF ~IsEnding(p) \/ timer[p] > 1 \/ ~Has("deadline") THEN mode[p]
    ELSE CASE mode[p] = "draining" -> "cancelling" [] OTHER -> "last"

Kept(p, all) ==
    IF ~IsEnding(p) \/ timer[p] > 1 \/ ~Has("deadline") \/ mode[p] = "draining" THEN all
    ELSE IF mode[p] = "cancelling" THEN {h \in all : h.place = "settling"} ELSE {}

\* Time passes for all, and a handler whose lease expires is notified at once.
Aged(h) ==
    LET left == IF h.left > 0 THEN h.left - 1 ELSE 0
    IN  [h EXCEPT !.left = left,
                  !.lost = @ \/ (Has("told") /\ left = 0 /\ h.place /= "settling")]

Tick ==
    /\ \/ \E m \in Messages : lease[m].r /= 0
       \/ \E p \in Processes : IsEnding(p) \/ \E h \in held[p] : h.left > 0
    /\ lease' = [m \in Messages |->
                    IF lease[m].left > 1 THEN [lease[m] EXCEPT !.left = @ - 1]
                    ELSE NoLease]
    /\ doubted' = doubted \cup {m \in Messages : lease[m].r /= 0 /\ lease[m].left <= 1}
    /\ held' = [p \in Processes |-> Kept(p, {Aged(h) : h \in held[p]})]
    /\ mode' = [p \in Processes |-> NextMode(p)]
    /\ timer' = [p \in Processes |->
                    IF ~IsEnding(p) THEN 0
                    ELSE IF timer[p] > 1 THEN timer[p] - 1 ELSE 1]
    /\ UNCHANGED <<outcome, letters, issued, settled, wrong>>

-----------------------------------------------------------------------------

OfProcess(p) ==
    \/ \E m \in Messages, late \in 0..Latency : Fetch(p, m, late)
    \/ \E h \in held[p] :
        \/ Begin(p, h)
        \/ Decline(p, h)
        \/ GiveBack(p, h)
        \/ \E verdict \in {"done", "retry", "bury"} : Finish(p, h, verdict)
        \/ \E effect, answered \in BOOLEAN :
                \/ Bury(p, h, effect, answered)
                \/ Settle(p, h, effect, answered)
                \/ Extend(p, h, effect, answered)
        \/ BuryAfter(p, h)
        \/ GiveUp(p, h)
    \/ Stop(p)
    \/ Over(p)
    \/ Crashes /\ Crash(p)

Next == Tick \/ \E p \in Processes : OfProcess(p)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants                                                               *)

\* No handler runs without a current lease, unless it was notified.
LeaseOrTold ==
    \A p \in Processes : \A h \in At(p, {"running"}) : h.lost \/ Runs(h)

\* So no two handlers run for the same message that both think it is theirs.
OneHandler ==
    \A p, o \in Processes : \A h \in At(p, {"running"}), i \in At(o, {"running"}) :
        (h.m = i.m /\ ~h.lost /\ ~i.lost) => (p = o /\ h = i)

\* Where an earlier delivery has expired or was released, no handler runs that the queue does not know of:
\* if the process dies of it, that delivery is counted as unsettled, and not as no attempt.
StartKnown ==
    \A p \in Processes : \A h \in At(p, {"running"}) :
        (h.records /\ Runs(h)) => lease[h.m].started

\* A delivery is in one place.
OnePlace ==
    \A p \in Processes : \A h, i \in held[p] : (h.m = i.m /\ h.r = i.r) => h = i

\* No more is held for workers than they have places.
RoomKept == \A p \in Processes : Cardinality(At(p, {"waiting"} \cup Begun)) <= Workers + Prefetch

\* Nothing is begun after a stop, and nothing fetched.
NothingBegunAfterStop ==
    [][\A p \in Processes :
        mode'[p] /= "running" =>
            /\ {<<h.m, h.r>> : h \in {x \in held'[p] : x.place \in Begun}}
                \subseteq {<<h.m, h.r>> : h \in At(p, Begun)}
            /\ {<<h.m, h.r>> : h \in held'[p]} \subseteq {<<h.m, h.r>> : h \in held[p]}]_vars

\* And nothing waits for a worker then.
NothingWaitsAfterStop == \A p \in Processes : IsEnding(p) => \A h \in At(p, {"waiting"}) : h.lost

\* There is never more than one dead letter of a message ...
OneLetter == \A m \in Messages : letters[m] <= 1
\* ... and a message that was settled as dead has one.
BuriedHasLetter == \A m \in Messages : outcome[m] = "buried" => letters[m] = 1

\* What is taken for settled because an earlier call had failed, was settled by that call.
StaleMeansDone == "claimed" \notin wrong

\* Whatever is over holds nothing.
OverHoldsNothing == \A p \in Processes : ~Lives(p) => held[p] = {}

-----------------------------------------------------------------------------
(* Liveness: a stop comes to its end, though handlers hang and the queue    *)
(* does not answer: only time passes, and who holds nothing is over.        *)

FairSpec == Spec /\ WF_vars(Tick) /\ \A p \in Processes : WF_vars(Over(p))

DrainEnds == \A p \in Processes : IsEnding(p) ~> ~Lives(p)
=============================================================================
