/* Tagged messages: every form, matching, peek, claim and discard. */
#include "walk.h"

#define RECEIVES (b->memory + (1 << 20))

static bool arrives(struct side *b, void *context, size_t length, unsigned seed, uint64_t tag, const char *name)
{
    struct event event;
    if (!TAKE(&b->receive, &event, name))
        return false;
    return CHECK(name, event.error == 0 && event.entry.op_context == context && event.entry.len == length && event.entry.tag == tag &&
                           (event.entry.flags & (FI_TAGGED | FI_RECV)) == (FI_TAGGED | FI_RECV) && filled(RECEIVES, length, seed));
}

static void walk_forms(struct side *a, struct side *b)
{
    static const size_t lengths[] = { 0, 1, 64, 1000, 8192, 65536, 1 << 20 };
    char sent, received;
    void *descriptors[2] = { a->region.descriptor, a->region.descriptor }, *receive_descriptors[2] = { b->region.descriptor, b->region.descriptor };

    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        unsigned seed = (unsigned)i + 1;
        uint64_t tag = 0x1000 + i;
        fill(a->memory, lengths[i], seed);
        memset(RECEIVES, 0, lengths[i]);
        EXPECT("fi_trecv", fi_trecv(b->ep, RECEIVES, 1 << 20, receive_descriptors[0], FI_ADDR_UNSPEC, tag, 0, &received), 0);
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, lengths[i], descriptors[0], a->peer, tag, &sent)), 0);
        arrives(b, &received, lengths[i], seed, tag, "a tagged message that is awaited");
        FINISH(&a->transmit, &sent, "its send ends");
        memset(RECEIVES, 0, lengths[i]);
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, lengths[i], descriptors[0], a->peer, tag, &sent)), 0);
        for (int round = 0; round < 200; round++)
            drive();
        EXPECT("fi_trecv", fi_trecv(b->ep, RECEIVES, 1 << 20, receive_descriptors[0], FI_ADDR_UNSPEC, tag, 0, &received), 0);
        arrives(b, &received, lengths[i], seed, tag, "a tagged message that is not awaited");
        FINISH(&a->transmit, &sent, "its send ends");
    }
    fill(a->memory, 100, 41);
    struct iovec out[2] = { { a->memory, 40 }, { a->memory + 40, 60 } }, in[2] = { { RECEIVES, 30 }, { RECEIVES + 30, 500 } };
    EXPECT("fi_trecvv", fi_trecvv(b->ep, in, receive_descriptors, 2, FI_ADDR_UNSPEC, 7, 0, &received), 0);
    EXPECT("fi_tsendv", POST(fi_tsendv(a->ep, out, descriptors, 2, a->peer, 7, &sent)), 0);
    arrives(b, &received, 100, 41, 7, "two pieces into two pieces");
    FINISH(&a->transmit, &sent, "its send ends");
    struct fi_msg_tagged message = { .msg_iov = in, .desc = receive_descriptors, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .tag = 8, .context = &received };
    EXPECT("fi_trecvmsg", fi_trecvmsg(b->ep, &message, FI_COMPLETION), 0);
    message = (struct fi_msg_tagged){ .msg_iov = out, .desc = descriptors, .iov_count = 2, .addr = a->peer, .tag = 8, .context = &sent, .data = 0x99 };
    EXPECT("fi_tsendmsg", POST(fi_tsendmsg(a->ep, &message, FI_COMPLETION | FI_REMOTE_CQ_DATA)), 0);
    struct event event;
    if (TAKE(&b->receive, &event, "a tagged message with data"))
        CHECK("its data", (event.entry.flags & FI_REMOTE_CQ_DATA) && event.entry.data == 0x99 && event.entry.tag == 8);
    FINISH(&a->transmit, &sent, "its send ends");
    EXPECT("fi_trecv", fi_trecv(b->ep, RECEIVES, 600, receive_descriptors[0], FI_ADDR_UNSPEC, 9, 0, &received), 0);
    EXPECT("fi_tsenddata", POST(fi_tsenddata(a->ep, a->memory, 100, descriptors[0], 0x77, a->peer, 9, &sent)), 0);
    if (TAKE(&b->receive, &event, "a tagged message with data"))
        CHECK("its data", (event.entry.flags & FI_REMOTE_CQ_DATA) && event.entry.data == 0x77 && event.entry.tag == 9);
    FINISH(&a->transmit, &sent, "its send ends");
    unsigned char buffer[16];
    fill(buffer, sizeof(buffer), 42);
    EXPECT("fi_trecv", fi_trecv(b->ep, RECEIVES, 600, receive_descriptors[0], FI_ADDR_UNSPEC, 10, 0, &received), 0);
    EXPECT("fi_tinject", POST(fi_tinject(a->ep, buffer, sizeof(buffer), a->peer, 10)), 0);
    memset(buffer, 0, sizeof(buffer));
    arrives(b, &received, sizeof(buffer), 42, 10, "an injected message");
    EXPECT("fi_trecv", fi_trecv(b->ep, RECEIVES, 600, receive_descriptors[0], FI_ADDR_UNSPEC, 11, 0, &received), 0);
    EXPECT("fi_tinjectdata", POST(fi_tinjectdata(a->ep, buffer, sizeof(buffer), 0x55, a->peer, 11)), 0);
    if (TAKE(&b->receive, &event, "an injected message with data"))
        CHECK("its data", (event.entry.flags & FI_REMOTE_CQ_DATA) && event.entry.data == 0x55 && event.entry.tag == 11);
    CHECK("injects make no completions", nothing_comes(&a->transmit));
}

static void walk_matching(struct side *a, struct side *b)
{
    char one, two, any, sent;
    struct event event;
    fill(a->memory, 64, 51);
    EXPECT("fi_trecv of 1", fi_trecv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, 1, 0, &one), 0);
    EXPECT("fi_trecv of 2", fi_trecv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, 2, 0, &two), 0);
    EXPECT("fi_trecv of 0x1??", fi_trecv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, 0x100, 0xff, &any), 0);
    EXPECT("fi_tsend of 2", POST(fi_tsend(a->ep, a->memory, 64, a->region.descriptor, a->peer, 2, &sent)), 0);
    arrives(b, &two, 64, 51, 2, "the second receive matches");
    EXPECT("fi_tsend of 0x1ab", POST(fi_tsend(a->ep, a->memory, 64, a->region.descriptor, a->peer, 0x1ab, &sent)), 0);
    arrives(b, &any, 64, 51, 0x1ab, "the ignored bits are ignored");
    EXPECT("fi_tsend of 3", POST(fi_tsend(a->ep, a->memory, 64, a->region.descriptor, a->peer, 3, &sent)), 0);
    CHECK("a tag that nobody waits for waits", nothing_comes(&b->receive));
    EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &one), 0);
    if (FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the first receive is cancelled"))
        CHECK("its context", event.entry.op_context == &one);
    EXPECT("fi_trecv of all", fi_trecv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, 0, ~0ULL, &any), 0);
    arrives(b, &any, 64, 51, 3, "all bits ignored");
    for (int i = 0; i < 3; i++)
        TAKE(&a->transmit, &event, "the sends end");
    EXPECT("fi_trecv of 10 bytes", fi_trecv(b->ep, RECEIVES, 10, b->region.descriptor, FI_ADDR_UNSPEC, 4, 0, &one), 0);
    EXPECT("fi_tsend of 64 bytes", POST(fi_tsend(a->ep, a->memory, 64, a->region.descriptor, a->peer, 4, &sent)), 0);
    if (FINISH_ERROR(&b->receive, FI_ETRUNC, &event, "the receive is too short"))
        CHECK("context, tag, overflow", event.entry.op_context == &one && event.overflow == 54 && event.entry.tag == 4);
    TAKE(&a->transmit, &event, "its send ends");
}

/* A peek ends with a completion that tells of the message, or with FI_ENOMSG. */
static bool peek(struct side *b, uint64_t tag, uint64_t flags, void *context, struct event *event)
{
    struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context };
    for (int tries = 0; tries < 100000; tries++) {
        if (!EXPECT("fi_trecvmsg with FI_PEEK", fi_trecvmsg(b->ep, &message, FI_PEEK | FI_COMPLETION | flags), 0, -FI_ENOMSG))
            return false;
        ok_count -= tries > 0;
        if (!TAKE(&b->receive, event, "a peek ends"))
            return false;
        if (event->error != FI_ENOMSG)
            return true;
    }
    return false;
}

static void walk_peek(struct side *a, struct side *b)
{
    static struct fi_context2 context;
    char received, sent;
    struct event event;
    struct fi_msg_tagged message = { .addr = FI_ADDR_UNSPEC, .tag = 0x70, .context = &context };
    static const size_t lengths[] = { 48, 1 << 20 };

    int code = (int)fi_trecvmsg(b->ep, &message, FI_PEEK | FI_COMPLETION);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL || code == -FI_EBADFLAGS) {
        absent("FI_PEEK", fi_strerror(-code));
        return;
    }
    EXPECT("fi_trecvmsg with FI_PEEK", code, 0, -FI_ENOMSG);
    if (code == 0)
        FINISH_ERROR(&b->receive, FI_ENOMSG, &event, "a peek when there is nothing");
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t length = lengths[i];
        fill(a->memory, length, 61);
        EXPECT("fi_tsenddata", POST(fi_tsenddata(a->ep, a->memory, length, a->region.descriptor, 0x31, a->peer, 0x70, &sent)), 0);
        if (!CHECK("a peek finds the message", peek(b, 0x70, 0, &context, &event)))
            return;
        CHECK("what it tells", event.error == 0 && event.entry.tag == 0x70 && event.entry.len == length && event.entry.op_context == &context);
        CHECK("its data", !(event.entry.flags & FI_REMOTE_CQ_DATA) || event.entry.data == 0x31);
        CHECK("a claim finds it too", peek(b, 0x70, FI_CLAIM, &context, &event) && event.error == 0);
        memset(RECEIVES, 0, length);
        EXPECT("a receive of the same tag", fi_trecv(b->ep, RECEIVES, 1 << 20, b->region.descriptor, FI_ADDR_UNSPEC, 0x70, 0, &received), 0);
        CHECK("it does not get what is claimed", nothing_comes(&b->receive));
        struct iovec in = { RECEIVES, 1 << 20 };
        struct fi_msg_tagged claimed = { .msg_iov = &in, .desc = &b->region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 0x70, .context = &context };
        EXPECT("fi_trecvmsg with FI_CLAIM", fi_trecvmsg(b->ep, &claimed, FI_CLAIM | FI_COMPLETION), 0);
        arrives(b, &context, length, 61, 0x70, "the claimed message");
        FINISH(&a->transmit, &sent, "its send ends");
        EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &received), 0);
        FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the other receive is cancelled");
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, length, a->region.descriptor, a->peer, 0x71, &sent)), 0);
        CHECK("a peek that discards", peek(b, 0x71, FI_DISCARD, &context, &event) && event.error == 0);
        FINISH(&a->transmit, &sent, "the send of a discarded message ends");
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, length, a->region.descriptor, a->peer, 0x72, &sent)), 0);
        CHECK("a claim", peek(b, 0x72, FI_CLAIM, &context, &event) && event.error == 0);
        message = (struct fi_msg_tagged){ .addr = FI_ADDR_UNSPEC, .tag = 0x72, .context = &context };
        EXPECT("FI_CLAIM with FI_DISCARD", fi_trecvmsg(b->ep, &message, FI_CLAIM | FI_DISCARD | FI_COMPLETION), 0);
        TAKE(&b->receive, &event, "the claim that was discarded ends");
        FINISH(&a->transmit, &sent, "and so does its send");
    }
}

void walk_tagged(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_TAGGED);
    static struct side a, b;
    options.message_order = FI_ORDER_SAS;
    if (!pair_open(&a, &b, &options, "two endpoints with tagged messages"))
        return;
    walk_forms(&a, &b);
    walk_matching(&a, &b);
    walk_peek(&a, &b);
    pair_close(&a, &b);
}
