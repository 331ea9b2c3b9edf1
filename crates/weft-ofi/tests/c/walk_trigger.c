/* Triggered operations and deferred work. */
#include "walk.h"

static bool pair_with_counters(struct side *a, struct side *b, const char *name)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER);
    return pair_open(a, b, &options, name);
}

static struct fid_cntr *counter(struct side *side)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cntr *cntr = NULL;
    EXPECT("fi_cntr_open", fi_cntr_open(side->domain, &attr, &cntr, NULL), 0);
    return cntr;
}

void walk_trigger(void)
{
    static struct side a, b;
    static struct fi_triggered_context2 first, second, third;
    char received;
    struct event event;
    if (!pair_with_counters(&a, &b, "endpoints with triggers"))
        return;
    struct fid_cntr *cntr = counter(&a);
    if (!cntr)
        goto out;
    struct iovec out = { a.memory, 64 };
    struct fi_msg message = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .context = &first };
    struct fi_rma_iov range = { b.region.base + 8192, 64, b.region.key };
    struct fi_msg_rma write = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .rma_iov = &range, .rma_iov_count = 1, .context = &second };
    struct fi_msg_tagged tagged = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .tag = 6, .context = &third };

    first.event_type = second.event_type = third.event_type = FI_TRIGGER_THRESHOLD;
    first.trigger.threshold.cntr = second.trigger.threshold.cntr = third.trigger.threshold.cntr = cntr;
    first.trigger.threshold.threshold = 2;
    second.trigger.threshold.threshold = 1;
    third.trigger.threshold.threshold = 3;
    fill(a.memory, 64, 71);
    EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_sendmsg with FI_TRIGGER at 2", fi_sendmsg(a.ep, &message, FI_TRIGGER | FI_COMPLETION), 0);
    EXPECT("fi_writemsg with FI_TRIGGER at 1", fi_writemsg(a.ep, &write, FI_TRIGGER | FI_COMPLETION), 0);
    EXPECT("fi_tsendmsg with FI_TRIGGER at 3", fi_tsendmsg(a.ep, &tagged, FI_TRIGGER | FI_COMPLETION), 0);
    CHECK("nothing happens before", nothing_comes(&a.transmit) && nothing_comes(&b.receive) && b.memory[8192] == 0);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    FINISH(&a.transmit, &second, "at 1 the write goes");
    DRIVE_UNTIL("its bytes arrive", filled(b.memory + 8192, 64, 71));
    CHECK("and only it", nothing_comes(&b.receive));
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    FINISH(&b.receive, &received, "at 2 the message goes");
    FINISH(&a.transmit, &first, "and ends");
    CHECK("its bytes", filled(b.memory, 64, 71));
    EXPECT("fi_trecv", fi_trecv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, 6, 0, &received), 0);
    EXPECT("fi_cntr_set", fi_cntr_set(cntr, 10), 0);
    FINISH(&b.receive, &received, "at 10 the tagged message goes");
    FINISH(&a.transmit, &third, "and ends");
    /* What is reached already goes at once. */
    EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_sendmsg with FI_TRIGGER of what is reached", fi_sendmsg(a.ep, &message, FI_TRIGGER | FI_COMPLETION), 0);
    FINISH(&b.receive, &received, "it goes at once");
    TAKE(&a.transmit, &event, "and ends");
    if (!gentle) {
        first.event_type = 99;
        EXPECT("a trigger of an unknown kind", fi_sendmsg(a.ep, &message, FI_TRIGGER | FI_COMPLETION), -FI_EINVAL, -FI_ENOSYS, -FI_EOPNOTSUPP);
        first.event_type = FI_TRIGGER_THRESHOLD;
        message.context = NULL;
        EXPECT("a trigger without a context", fi_sendmsg(a.ep, &message, FI_TRIGGER | FI_COMPLETION), -FI_EINVAL);
    }
    EXPECT("fi_close of the counter", fi_close(&cntr->fid), 0);
out:
    pair_close(&a, &b);
}

/* Each kind of work waits for a counter, goes, and counts at another. */
void walk_work(void)
{
    static struct side a, b;
    struct event event;
    if (!pair_with_counters(&a, &b, "endpoints with deferred work"))
        return;
    struct fid_cntr *cntr = counter(&a), *done = counter(&a), *third = counter(&a);
    if (!cntr || !done || !third)
        goto out;
    uint64_t *operand = (uint64_t *)(void *)(a.memory + 4096), *compare = operand + 1, *result = operand + 2;
    volatile uint64_t *target = (volatile uint64_t *)(void *)(b.memory + 16384);
    struct iovec out = { a.memory, 64 }, in = { a.memory + 1024, 64 };
    struct fi_rma_iov range = { b.region.base + 8192, 64, b.region.key };
    struct fi_ioc operands = { operand, 1 }, compares = { compare, 1 }, results = { result, 1 };
    struct fi_rma_ioc cell = { b.region.base + 16384, 1, b.region.key };
    struct fi_msg_atomic atomic = { .msg_iov = &operands, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .rma_iov = &cell,
                                    .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM };
    struct fi_op_msg send = { .ep = a.ep, .msg = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer } };
    struct fi_op_msg receive = { .ep = a.ep, .msg = { .msg_iov = &in, .desc = &a.region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC } };
    struct fi_op_tagged tagged = { .ep = a.ep, .msg = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .tag = 12 } };
    struct fi_op_rma write = { .ep = a.ep, .msg = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .rma_iov = &range, .rma_iov_count = 1 } };
    struct fi_op_rma read = write;
    read.msg.msg_iov = &in;
    struct fi_op_atomic add = { .ep = a.ep, .msg = atomic };
    struct fi_op_fetch_atomic fetch = { .ep = a.ep, .msg = atomic, .fetch = { .msg_iov = &results, .desc = &a.region.descriptor, .iov_count = 1 } };
    struct fi_op_compare_atomic swap = { .ep = a.ep, .msg = atomic, .fetch = fetch.fetch, .compare = { .msg_iov = &compares, .desc = &a.region.descriptor, .iov_count = 1 } };
    swap.msg.op = FI_CSWAP;
    struct fi_op_cntr counting = { .cntr = third, .value = 7 };
    static struct fi_deferred_work work[10];
    memset(work, 0, sizeof(work));
    for (int i = 0; i < 10; i++) {
        work[i].threshold = (uint64_t)i + 1;
        work[i].triggering_cntr = cntr;
        work[i].completion_cntr = done;
    }
    work[0].op_type = FI_OP_SEND, work[0].op.msg = &send;
    work[1].op_type = FI_OP_TSEND, work[1].op.tagged = &tagged;
    work[2].op_type = FI_OP_WRITE, work[2].op.rma = &write;
    work[3].op_type = FI_OP_READ, work[3].op.rma = &read;
    work[4].op_type = FI_OP_ATOMIC, work[4].op.atomic = &add;
    work[5].op_type = FI_OP_FETCH_ATOMIC, work[5].op.fetch_atomic = &fetch;
    work[6].op_type = FI_OP_COMPARE_ATOMIC, work[6].op.compare_atomic = &swap;
    work[7].op_type = FI_OP_CNTR_ADD, work[7].op.cntr = &counting;
    work[8].op_type = FI_OP_CNTR_SET, work[8].op.cntr = &counting;
    work[9].op_type = FI_OP_SEND, work[9].op.msg = &send;

    /* Only the write asks for a completion at the endpoint; counters take no completion counter. */
    write.flags = FI_COMPLETION;
    work[7].completion_cntr = work[8].completion_cntr = NULL;
    send.msg.context = &work[0].context;
    tagged.msg.context = &work[1].context;
    write.msg.context = &work[2].context;
    read.msg.context = &work[3].context;
    add.msg.context = &work[4].context;
    fetch.msg.context = &work[5].context;
    swap.msg.context = &work[6].context;

    int code = fi_control(&a.domain->fid, FI_QUEUE_WORK, &work[0]);
    if (code) {
        absent("FI_QUEUE_WORK", fi_strerror(-code));
        goto out;
    }
    for (int i = 1; i < 9; i++)
        EXPECT("FI_QUEUE_WORK", fi_control(&a.domain->fid, FI_QUEUE_WORK, &work[i]), 0);
    fill(a.memory, 64, 91);
    *operand = 5, *compare = 15, *result = 0;
    *target = 5;
    CHECK("nothing happens before", nothing_comes(&a.transmit));
    static struct fi_deferred_work awaited;
    memset(&awaited, 0, sizeof(awaited));
    awaited.triggering_cntr = cntr;
    EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &awaited), 0);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    FINISH(&b.receive, &awaited, "a deferred send");
    CHECK("its bytes", filled(b.memory, 64, 91));
    EXPECT("fi_trecv", fi_trecv(b.ep, b.memory + 64, 64, b.region.descriptor, FI_ADDR_UNSPEC, 12, 0, &awaited), 0);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    FINISH(&b.receive, &awaited, "a deferred tagged send");
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred write", filled(b.memory + 8192, 64, 91));
    DRIVE_UNTIL("three are done", fi_cntr_read(done) == 3);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred read", filled(a.memory + 1024, 64, 91));
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred atomic", *target == 10);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred fetch", *target == 15 && *result == 10);
    DRIVE_UNTIL("six are done", fi_cntr_read(done) == 6);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred swap", *target == 5 && *result == 15);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred addition to a counter", fi_cntr_read(third) == 7);
    EXPECT("fi_cntr_add to what will be set", fi_cntr_add(third, 1), 0);
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
    DRIVE_UNTIL("a deferred setting of a counter", fi_cntr_read(third) == 7);
    DRIVE_UNTIL("seven are done", fi_cntr_read(done) == 7);
    FINISH(&a.transmit, &work[2].context, "a completion where one was asked for");
    CHECK("and nowhere else", nothing_comes(&a.transmit));
    static struct fi_deferred_work receiving;
    receiving = (struct fi_deferred_work){ .threshold = 9, .triggering_cntr = cntr, .completion_cntr = done, .op_type = FI_OP_RECV, .op.msg = &receive };
    receive.msg.context = &receiving.context;
    receive.flags = FI_COMPLETION;
    EXPECT("FI_QUEUE_WORK of a receive whose threshold is reached", fi_control(&a.domain->fid, FI_QUEUE_WORK, &receiving), 0);
    EXPECT("fi_inject", POST(fi_inject(b.ep, b.memory + 8192, 16, b.peer)), 0);
    if (TAKE(&a.receive, &event, "a deferred receive"))
        CHECK("its bytes", event.error == 0 && event.entry.len == 16 && filled(a.memory + 1024, 16, 91));
    /* Work that is cancelled or flushed does not go. */
    work[9].threshold = 1000;
    send.msg.context = &work[9].context;
    EXPECT("FI_QUEUE_WORK", fi_control(&a.domain->fid, FI_QUEUE_WORK, &work[9]), 0);
    EXPECT("FI_CANCEL_WORK", fi_control(&a.domain->fid, FI_CANCEL_WORK, &work[9]), 0, -FI_ENOSYS);
    EXPECT("FI_FLUSH_WORK", fi_control(&a.domain->fid, FI_FLUSH_WORK, NULL), 0);
    EXPECT("fi_cntr_set", fi_cntr_set(cntr, 2000), 0);
    CHECK("neither goes", nothing_comes(&a.transmit));
    if (!gentle) {
        EXPECT("FI_CANCEL_WORK of what never was", fi_control(&a.domain->fid, FI_CANCEL_WORK, &awaited), -FI_ENOENT, -FI_EINVAL, -FI_ENOSYS);
        work[9].op_type = 99;
        EXPECT("work of an unknown kind", fi_control(&a.domain->fid, FI_QUEUE_WORK, &work[9]), -FI_EINVAL, -FI_ENOSYS, -FI_EOPNOTSUPP);
        EXPECT("no work", fi_control(&a.domain->fid, FI_QUEUE_WORK, NULL), -FI_EINVAL);
    }
out:
    if (cntr)
        EXPECT("fi_close of a counter", fi_close(&cntr->fid), 0);
    if (done)
        EXPECT("fi_close of a counter", fi_close(&done->fid), 0);
    if (third)
        EXPECT("fi_close of a counter", fi_close(&third->fid), 0);
    pair_close(&a, &b);
}
