/* A round of protocol 6 at three members, beneath a coordinator that does as it likes: docs/decisions/0109.
 *
 * What the coordinator knows, it may show to whom and when it likes, in any order, or not at all; what members sign, it cannot
 * make. So there is no process for it: a member's step is possible whenever somebody could show it what the step asks for.
 * Every write of a member is a step of its own, between "begun" and "done", and a member may crash before and after each, as
 * often as it likes; what was not written is gone then. Messages leave by what is written, so that one sent twice is the same.
 *
 * A context is (attempt, round, cohort). Everything else that a context is made of stands for itself in the cohort: who is shown
 * another one is in another context. The cohort is all three, or the first two. Sums are 1 (the true one) or 2.
 *
 * COARSE: what is computed from written things alone, an answer or a consent, is written and sent in the step that begins it. It
 * leaves out no behaviour that matters: a crash in between leaves what was there before, and what leaves later is known later.
 * SUMS: how many sums the coordinator may fix.
 * COLLUDER: the third member works with the coordinator: it signs anything for any context at any time, and a second answer as
 * soon as a sum has opened. FAULT plants a fault, which must be found:
 *   1 a payload leaves before it is written        2 a consent leaves before the charge is written
 *   3 a second attempt of a round is consented to  4 an answer leaves before it is written
 *   5 an attempt is given up after its consent     6 an attempt is taken up again under its number
 *   7 a one-time key serves the next attempt too   8 a charge before all others answered alike
 *   9 answers are signed each by itself, not as a list (with COLLUDER)
 */
#ifndef FAULT
#define FAULT 0
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef SUMS
#define SUMS 2
#endif
#ifdef COLLUDER
#define HONEST 2
#else
#define HONEST 3
#endif

#define ALL 1
#define FIRST_TWO 2
#define IN(j, c) ((c) == ALL || (j) < 2)

/* states of an attempt, in their order */
#define NONE 0
#define RESERVED 1
#define PAYLOAD 2
#define ANSWERED 3
#define CONSENTED 4
#define TOMBSTONE 5

/* what a member has begun and not written yet */
#define IDLE 0
#define DRAWN 1     /* a key and a payload */
#define ANSWERING 2 /* an answer */
#define PAYING 3    /* charge, signature and consent, one transaction */

typedef Row { /* durable */
    byte state;
    byte round;
    byte cohort;
    byte sum;   /* answered for */
    bit paid;
    bit second; /* the list that was signed holds the colluder's second answer */
};
typedef Attempts { Row at[ATTEMPTS] };
Attempts row[HONEST];

typedef Begun { byte what; byte attempt; byte sum; bit second };
Begun begun[HONEST];

/* what has left a member, and what it must not have done: nothing here is known to anybody */
typedef Left {
    bit payload[ATTEMPTS];
    byte answer[ATTEMPTS];  /* for which sum */
    bit consent[ATTEMPTS];
    byte key;               /* attempt + 1 in which the present one-time key left; 0 for a fresh one */
};
Left left[HONEST];

bit second_answer[ATTEMPTS]; /* of the colluder: made once a sum of the attempt has opened */

#define MINE row[me].at[a]

inline same(j) { /* whether j is in my context of attempt a */
    ok = (row[j].at[a].round == MINE.round && row[j].at[a].cohort == MINE.cohort)
}

inline all_sent() { /* every member of my cohort has signed a receipt for my context */
    good = 1;
    for (j : 0 .. HONEST - 1) {
        same(j);
        if
        :: IN(j, MINE.cohort) && (!ok || !left[j].payload[a]) -> good = 0
        :: else
        fi
    }
}

inline all_answered(d) { /* every member of my cohort has answered for this sum of my context */
    good = 1;
    for (j : 0 .. HONEST - 1) {
        same(j);
        if
        :: IN(j, MINE.cohort) && (!ok || left[j].answer[a] != d) -> good = 0
        :: else
        fi
    }
}

inline opens() { /* whether the sum of my context of attempt a can be opened */
    good = 1;
    for (j : 0 .. HONEST - 1) {
        same(j);
        if
        :: IN(j, MINE.cohort) && (!ok || !left[j].payload[a] || !left[j].consent[a]) -> good = 0
        :: else
        fi
    }
}

inline payload_leaves() {
    assert(!left[me].payload[a] || left[me].key == a + 1); /* one payload for each context, ever */
    assert(left[me].key == 0 || left[me].key == a + 1);    /* and no key in two contexts */
    left[me].payload[a] = 1;
    left[me].key = a + 1
}

inline answer_leaves(d) {
    assert(left[me].answer[a] == 0 || left[me].answer[a] == d); /* one challenge for each context, ever */
    left[me].answer[a] = d
}

inline consent_leaves() {
    left[me].consent[a] = 1;
    opens();
    if
    :: good -> what_opens_is_paid()
    :: else
    fi
}

inline what_opens_is_paid() {
    for (j : 0 .. HONEST - 1) {
        if
        :: IN(j, MINE.cohort) -> assert(row[j].at[a].paid && row[j].at[a].state == CONSENTED)
        :: else
        fi
    }
    for (b : 0 .. ATTEMPTS - 1) { /* never two sums of one round: another one would need me, and I consented once */
        assert(b == a || row[me].at[b].round != MINE.round || !left[me].consent[b])
    }
#ifdef COLLUDER
    if
    :: MINE.cohort == ALL -> second_answer[a] = 1
    :: else
    fi
#endif
}

inline write_answer() {
    MINE.state = ANSWERED; MINE.sum = begun[me].sum;
    begun[me].what = IDLE; begun[me].attempt = 0; begun[me].sum = 0
}

inline write_consent() {
    all_answered(MINE.sum);
    assert(good); /* nobody is charged before everybody answered for the same sum of one context */
    MINE.paid = 1; MINE.state = CONSENTED; MINE.second = begun[me].second;
    begun[me].what = IDLE; begun[me].attempt = 0; begun[me].second = 0
}

#ifdef COARSE
#define SENT(step) step
#else
#define SENT(step) skip
#endif

#ifdef COLLUDER
#define MAY_SHOW_SECOND (second_answer[a])
#else
#define MAY_SHOW_SECOND 0
#endif

active [HONEST] proctype member() {
    byte me = _pid;
    byte a, b, j, d;
    bit ok, good, paid_before;
    byte newest; /* attempts only rise */
end:
    do
    /* assign: any attempt above all before, any round, any cohort that I am in */
    :: atomic { begun[me].what == IDLE &&
                (newest < ATTEMPTS || (FAULT == 6 && row[me].at[newest - 1].state == TOMBSTONE)) ->
            if
            :: newest < ATTEMPTS -> a = newest
            :: newest + 1 < ATTEMPTS -> a = newest + 1
            :: FAULT == 6 && newest > 0 && row[me].at[newest - 1].state == TOMBSTONE -> a = newest - 1
            fi;
            for (b : 0 .. ATTEMPTS - 1) { /* what is older and still open is given up, in the same transaction */
                if
                :: row[me].at[b].state == RESERVED || row[me].at[b].state == PAYLOAD || row[me].at[b].state == ANSWERED ->
                    row[me].at[b].state = TOMBSTONE; row[me].at[b].sum = 0
                :: else
                fi
            }
            if
            :: FAULT == 6 && MINE.state == TOMBSTONE -> skip /* as it was assigned */
            :: MINE.state == NONE ->
                if :: MINE.round = 1 :: MINE.round = 2 fi;
                if :: MINE.cohort = ALL :: me < 2 -> MINE.cohort = FIRST_TWO fi
            :: MINE.state == NONE -> newest = a + 1; a = 0; goto end /* refused */
            fi;
            MINE.state = RESERVED;
            newest = a + 1; a = 0
        }
    /* a key is drawn, and the payload computed */
    :: atomic { begun[me].what == IDLE && newest > 0 && row[me].at[newest - 1].state == RESERVED ->
            begun[me].what = DRAWN; begun[me].attempt = newest - 1;
            if
            :: FAULT == 7 -> skip
            :: else -> left[me].key = 0 /* another key */
            fi
        }
    :: atomic { begun[me].what == DRAWN && FAULT == 1 ->
            a = begun[me].attempt; payload_leaves(); a = 0
        }
    :: atomic { begun[me].what == DRAWN ->
            a = begun[me].attempt; MINE.state = PAYLOAD;
            SENT(payload_leaves());
            begun[me].what = IDLE; begun[me].attempt = 0; a = 0
        }
    /* the written payload is sent, as often as asked */
    :: atomic { newest > 0 && row[me].at[newest - 1].state == PAYLOAD && (!left[me].payload[newest - 1] || FAULT) ->
            a = newest - 1; payload_leaves(); a = 0
        }
    /* all receipts and a sum are shown */
    :: atomic { begun[me].what == IDLE && newest > 0 &&
                (row[me].at[newest - 1].state == PAYLOAD || row[me].at[newest - 1].state == ANSWERED) ->
            a = newest - 1;
            if :: d = 1 :: SUMS == 2 -> d = 2 fi;
            all_sent();
            if
            :: good && (MINE.state == PAYLOAD || FAULT == 4) ->
                begun[me].what = ANSWERING; begun[me].attempt = a; begun[me].sum = d;
                SENT(write_answer()); SENT(answer_leaves(MINE.sum))
            :: else /* refused; or asked again, and the written answer is sent below */
            fi;
            a = 0; d = 0; j = 0; good = 0; ok = 0
        }
    :: atomic { begun[me].what == ANSWERING && FAULT == 4 ->
            a = begun[me].attempt; answer_leaves(begun[me].sum); a = 0
        }
    :: atomic { begun[me].what == ANSWERING ->
            a = begun[me].attempt; write_answer(); a = 0
        }
    :: atomic { newest > 0 && row[me].at[newest - 1].state == ANSWERED && left[me].answer[newest - 1] == 0 ->
            a = newest - 1; answer_leaves(MINE.sum); a = 0
        }
    /* all answers are shown: a list with the colluder's first answer, or with its second one */
    :: atomic { begun[me].what == IDLE && newest > 0 && row[me].at[newest - 1].state == ANSWERED ->
            a = newest - 1;
            all_answered(MINE.sum);
            paid_before = 0;
            for (b : 0 .. ATTEMPTS - 1) {
                if
                :: b != a && row[me].at[b].state == CONSENTED && row[me].at[b].round == MINE.round -> paid_before = 1
                :: else
                fi
            }
            if
            :: (good || FAULT == 8) && (!paid_before || FAULT == 3) ->
                begun[me].what = PAYING; begun[me].attempt = a;
                if :: begun[me].second = 0 :: MAY_SHOW_SECOND -> begun[me].second = 1 fi;
                SENT(write_consent()); SENT(consent_leaves())
            :: else
            fi;
            a = 0; b = 0; j = 0; good = 0; ok = 0; paid_before = 0
        }
    :: atomic { begun[me].what == PAYING && FAULT == 2 ->
            a = begun[me].attempt; consent_leaves(); a = 0; b = 0; j = 0; good = 0; ok = 0
        }
    :: atomic { begun[me].what == PAYING ->
            a = begun[me].attempt; write_consent();
            a = 0; b = 0; j = 0; good = 0; ok = 0
        }
    /* the written consent is sent, also when later attempts have begun */
    :: atomic {
            if
            :: row[me].at[0].state == CONSENTED && !left[me].consent[0] -> a = 0
            :: ATTEMPTS > 1 && row[me].at[1].state == CONSENTED && !left[me].consent[1] -> a = 1
            :: ATTEMPTS > 2 && row[me].at[ATTEMPTS - 1].state == CONSENTED && !left[me].consent[ATTEMPTS - 1] -> a = ATTEMPTS - 1
            fi;
            consent_leaves(); a = 0; b = 0; j = 0; good = 0; ok = 0
        }
    /* the site's own deadline, or an order to give the attempt up: an open row only */
    :: atomic { begun[me].what == IDLE && newest > 0 &&
                (row[me].at[newest - 1].state == RESERVED || row[me].at[newest - 1].state == PAYLOAD ||
                 row[me].at[newest - 1].state == ANSWERED || (FAULT == 5 && row[me].at[newest - 1].state == CONSENTED)) ->
            row[me].at[newest - 1].state = TOMBSTONE; row[me].at[newest - 1].paid = 0; row[me].at[newest - 1].sum = 0;
        }
    /* a crash: what was begun is gone, and a reservation without a payload is given up at the start */
    :: atomic { begun[me].what != IDLE ->
            if
            :: begun[me].what == DRAWN && FAULT != 1 -> row[me].at[begun[me].attempt].state = TOMBSTONE
            :: else
            fi;
            begun[me].what = IDLE; begun[me].attempt = 0; begun[me].sum = 0; begun[me].second = 0
        }
#ifdef COLLUDER
    /* evidence that is made once a sum has opened holds the colluder's second answer only if the honest signed that list */
    :: atomic { second_answer[0] && row[me].at[0].state == CONSENTED && row[me].at[0].cohort == ALL ->
            assert(FAULT != 9 && !row[me].at[0].second)
        }
#endif
    od
}
