/* Messages of any length: the program hears of them first, then claims or
 * discards them. */
#include "walk.h"

#define RECEIVES (b->memory + SIDE_MEMORY_BYTES / 2)
#define MANY 200

static ssize_t claim(struct side *b, struct fi_recv_context *context, size_t room, uint64_t flags)
{
    struct iovec in = { RECEIVES, room };
    struct fi_msg message = { .msg_iov = &in, .desc = &b->region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context };
    return fi_recvmsg(b->ep, &message, flags);
}

static ssize_t tagged_claim(struct side *b, struct fi_recv_context *context, size_t room, uint64_t flags)
{
    struct iovec in = { RECEIVES, room };
    struct fi_msg_tagged message = { .msg_iov = &in, .desc = &b->region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context };
    return fi_trecvmsg(b->ep, &message, flags);
}

/* The next thing that b hears is news of a message. */
static struct fi_recv_context *news(struct side *b, size_t length, uint64_t kind)
{
    struct event event;
    if (!TAKE(&b->receive, &event, "news of a message") || !CHECK("no error", !event.error))
        return NULL;
    uint64_t flags = FI_RECV | kind | (length ? FI_MORE : 0);
    CHECK("flags of the news", (event.entry.flags & ~FI_REMOTE_CQ_DATA) == flags);
    CHECK("its length, and no bytes", event.entry.len == length && !event.entry.buf);
    CHECK("its source", event.source == b->peer);
    return event.entry.op_context;
}

static void is_claimed(struct side *b, void *context, size_t length, unsigned seed, uint64_t kind, uint64_t tag)
{
    struct event event;
    if (!TAKE(&b->receive, &event, "the claimed message") || !CHECK("no error", !event.error))
        return;
    CHECK("the context that the program left", event.entry.op_context == context);
    CHECK("flags of the claim", (event.entry.flags & ~FI_REMOTE_CQ_DATA) == (FI_RECV | kind | FI_CLAIM));
    CHECK("length and tag", event.entry.len == length && (kind != FI_TAGGED || event.entry.tag == tag));
    CHECK("its bytes", filled(RECEIVES, length, seed));
}

static void walk_options(struct side *b)
{
    static const int options[] = { FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT };
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        size_t value = 77, length = sizeof(value);
        EXPECT("fi_getopt", fi_getopt(&b->ep->fid, FI_OPT_ENDPOINT, options[i], &value, &length), 0);
        CHECK("nothing is buffered", value == 0 && length == sizeof(value));
        EXPECT("fi_setopt to nothing", fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, options[i], &value, sizeof(value)), 0);
        value = 64;
        EXPECT("fi_setopt to more", fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, options[i], &value, sizeof(value)), -FI_EMSGSIZE);
    }
    size_t most = SIZE_MAX;
    EXPECT("fi_setopt to the most", fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &most, sizeof(most)), 0);
}

static void walk_messages(struct side *a, struct side *b)
{
    static const size_t lengths[] = { 0, 1, 64, 5000, 1 << 20 };
    struct fi_recv_context *context, other = { .ep = b->ep };
    char sent, received;
    struct event event;

    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), -FI_EOPNOTSUPP);
    EXPECT("fi_recvmsg", claim(b, &other, 64, 0), -FI_EOPNOTSUPP);
    EXPECT("a claim of nothing", claim(b, &other, 64, FI_CLAIM), -FI_EINVAL);
    EXPECT("a claim of no context", claim(b, NULL, 64, FI_CLAIM), -FI_EINVAL);
    EXPECT("nothing discarded", claim(b, &other, 64, FI_DISCARD), -FI_EINVAL);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t length = lengths[i];
        fill(a->memory, length, 70 + i);
        memset(RECEIVES, 0, length);
        EXPECT("fi_senddata", POST(fi_senddata(a->ep, a->memory, length, a->region.descriptor, 0x99, a->peer, &sent)), 0);
        if (!(context = news(b, length, FI_MSG)))
            return;
        CHECK("the context", context->ep == b->ep && !context->context);
        context->context = &received;
        EXPECT("a tagged claim of it", tagged_claim(b, context, length, FI_CLAIM), -FI_EINVAL, -FI_EOPNOTSUPP);
        EXPECT("the claim", POST(claim(b, context, length, FI_CLAIM)), 0);
        is_claimed(b, &received, length, 70 + i, FI_MSG, 0);
        EXPECT("a second claim", claim(b, context, length, FI_CLAIM), -FI_EINVAL);
        FINISH(&a->transmit, &sent, "its send ends");

        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, length, a->region.descriptor, a->peer, &sent)), 0);
        if (!(context = news(b, length, FI_MSG)))
            return;
        EXPECT("FI_DISCARD", claim(b, context, 0, FI_DISCARD), 0);
        FINISH(&a->transmit, &sent, "the send of a discarded message ends");
        CHECK("a discard makes no completion", nothing_comes(&b->receive));
    }
    EXPECT("fi_send of 64 bytes", POST(fi_send(a->ep, a->memory, 64, a->region.descriptor, a->peer, &sent)), 0);
    if (!(context = news(b, 64, FI_MSG)))
        return;
    context->context = &received;
    EXPECT("a claim of 10 bytes", claim(b, context, 10, FI_CLAIM), 0);
    if (FINISH_ERROR(&b->receive, FI_ETRUNC, &event, "it is too short"))
        CHECK("context, overflow, flag", event.entry.op_context == &received && event.overflow == 54 && (event.entry.flags & FI_CLAIM));
    TAKE(&a->transmit, &event, "its send ends");
}

/* More than the endpoint keeps receives for: all are told, in order; claimed backwards. */
static void walk_many(struct side *a, struct side *b)
{
    static struct fi_recv_context *contexts[MANY];
    static char received[MANY];
    char sent;
    struct event event;
    for (int i = 0; i < MANY; i++) {
        fill(a->memory + i * 256, i, i);
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory + i * 256, i, a->region.descriptor, a->peer, &sent)), 0);
    }
    for (int i = 0; i < MANY; i++)
        if (!(contexts[i] = news(b, i, FI_MSG)))
            return;
    for (int i = MANY; i-- > 0;) {
        contexts[i]->context = &received[i];
        if (i % 3 == 0) {
            EXPECT("FI_DISCARD", claim(b, contexts[i], 0, FI_DISCARD), 0);
            continue;
        }
        EXPECT("the claim", POST(claim(b, contexts[i], 256, FI_CLAIM)), 0);
        is_claimed(b, &received[i], i, i, FI_MSG, 0);
    }
    for (int i = 0; i < MANY; i++)
        TAKE(&a->transmit, &event, "the sends end");
    /* What is not claimed ends with the endpoint. */
    for (int i = 0; i < 3; i++) {
        EXPECT("fi_inject", POST(fi_inject(a->ep, a->memory, 8, a->peer)), 0);
        news(b, 8, FI_MSG);
    }
    EXPECT("fi_inject", POST(fi_inject(a->ep, a->memory, 8, a->peer)), 0);
}

static void walk_tags(struct side *a, struct side *b)
{
    static const size_t lengths[] = { 0, 48, 1 << 20 };
    struct fi_recv_context *context;
    char sent, posted, received;
    struct event event;

    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t length = lengths[i];
        fill(a->memory, length, 80 + i);
        memset(RECEIVES, 0, length);
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, length, a->region.descriptor, a->peer, 0x123, &sent)), 0);
        CHECK("no news of a tag that nobody asked for", nothing_comes(&b->receive));
        EXPECT("fi_trecv of a tag", fi_trecv(b->ep, NULL, 64, NULL, FI_ADDR_UNSPEC, 0x100, 0xff, &posted), 0);
        if (!(context = news(b, length, FI_TAGGED)))
            return;
        CHECK("the context of the tag", !context->ep && context->context == &posted);
        context->context = &received;
        EXPECT("an untagged claim of it", claim(b, context, length, FI_CLAIM), -FI_EINVAL);
        EXPECT("the claim", POST(tagged_claim(b, context, length, FI_CLAIM)), 0);
        is_claimed(b, &received, length, 80 + i, FI_TAGGED, 0x123);
        FINISH(&a->transmit, &sent, "its send ends");

        EXPECT("fi_trecv of a tag", fi_trecv(b->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 0x7, 0, &posted), 0);
        EXPECT("fi_tsend", POST(fi_tsend(a->ep, a->memory, length, a->region.descriptor, a->peer, 0x7, &sent)), 0);
        if (!(context = news(b, length, FI_TAGGED)))
            return;
        EXPECT("FI_DISCARD", tagged_claim(b, context, 0, FI_DISCARD), 0);
        FINISH(&a->transmit, &sent, "the send of a discarded message ends");
    }
    EXPECT("fi_trecv of a tag", fi_trecv(b->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 0x8, 0, &posted), 0);
    EXPECT("fi_cancel of another", fi_cancel(&b->ep->fid, &received), -FI_ENOENT);
    EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &posted), 0);
    if (FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the tag is cancelled"))
        CHECK("context and tag", event.entry.op_context == &posted && event.entry.tag == 0x8);
}

/* Who sleeps for news hears of more messages than there are receives. */
void walk_variable_messages(struct side *a, struct side *b)
{
    b->peer = FI_ADDR_NOTAVAIL;
    walk_options(b);
    walk_messages(a, b);
    walk_tags(a, b);
    walk_many(a, b);
}

static void walk_sleep(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_VARIABLE_MSG);
    struct fi_cq_attr attr = { .size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD };
    static struct side a, b;
    struct fid_cq *cq = NULL;
    struct fid_ep *ep = NULL;
    fi_addr_t to;
    char name[256];
    size_t length = sizeof(name);
    options.progress = FI_PROGRESS_AUTO;
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    if (EXPECT("fi_cq_open", fi_cq_open(b.domain, &attr, &cq, NULL), 0) && EXPECT("fi_endpoint", fi_endpoint(b.domain, b.info, &ep, NULL), 0)) {
        EXPECT("fi_ep_bind to a queue", fi_ep_bind(ep, &b.transmit.cq->fid, FI_TRANSMIT), 0);
        EXPECT("fi_ep_bind to a vector", fi_ep_bind(ep, &b.av->fid, 0), 0);
        EXPECT("fi_enable without a place for news", fi_enable(ep), -FI_ENOCQ);
        EXPECT("fi_ep_bind to a queue", fi_ep_bind(ep, &cq->fid, FI_RECV), 0);
        EXPECT("fi_enable", fi_enable(ep), 0);
        EXPECT("fi_getname", fi_getname(&ep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &to, 0, NULL), 1);
        for (int i = 0; i < MANY; i++)
            EXPECT("fi_inject", POST(fi_inject(a.ep, a.memory, i, to)), 0);
        for (int heard = 0; heard < MANY;) {
            struct fi_cq_data_entry entries[MANY];
            ssize_t got = fi_cq_sread(cq, entries, MANY, NULL, HANG_GUARD_S * 1000);
            if (!CHECK("fi_cq_sread", got > 0))
                break;
            for (ssize_t i = 0; i < got; i++, heard++)
                CHECK("the news in their order", (int)entries[i].len == heard);
        }
        struct fi_cq_data_entry entry;
        fi_cq_read(cq, &entry, 0);
        for (int i = 0; i < 3; i++) {
            char sent;
            EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 8, a.region.descriptor, to, &sent)), 0);
            FINISH(&a.transmit, &sent, "it is sent");
        }
        EXPECT("fi_close of the endpoint", fi_close(&ep->fid), 0);
        EXPECT("no news of a closed endpoint", fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
        EXPECT("fi_close of the queue", fi_close(&cq->fid), 0);
    }
    pair_close(&a, &b);
}

/* News come from a shared receive context, where messages are claimed. */
static void walk_shared_news(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_VARIABLE_MSG);
    static struct side a, b;
    struct fid_ep *srx = NULL, *ep = NULL;
    fi_addr_t to;
    char name[256], received;
    size_t length = sizeof(name);
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    struct fi_info *info = fi_dupinfo(b.info);
    info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    if (EXPECT("fi_srx_context", fi_srx_context(b.domain, info->rx_attr, &srx, NULL), 0) && EXPECT("fi_endpoint", fi_endpoint(b.domain, info, &ep, NULL), 0)) {
        EXPECT("fi_ep_bind to the shared context", fi_ep_bind(ep, &srx->fid, 0), 0);
        EXPECT("fi_ep_bind to a queue", fi_ep_bind(ep, &b.transmit.cq->fid, FI_TRANSMIT), 0);
        EXPECT("fi_ep_bind to a queue", fi_ep_bind(ep, &b.receive.cq->fid, FI_RECV), 0);
        EXPECT("fi_ep_bind to a vector", fi_ep_bind(ep, &b.av->fid, 0), 0);
        EXPECT("fi_enable", fi_enable(ep), 0);
        EXPECT("fi_getname", fi_getname(&ep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &to, 0, NULL), 1);
        struct fid_ep *own = b.ep;
        for (unsigned i = 0; i < MANY; i++) {
            fill(a.memory, i, i);
            EXPECT("fi_inject", POST(fi_inject(a.ep, a.memory, i, to)), 0);
            struct fi_recv_context *context = news(&b, i, FI_MSG);
            if (!context || !CHECK("the shared context is named", context->ep == srx && !context->context))
                break;
            context->context = &received;
            EXPECT("a claim at another endpoint", claim(&b, context, 256, FI_CLAIM), -FI_EINVAL);
            b.ep = context->ep;
            EXPECT("the claim", POST(claim(&b, context, 256, FI_CLAIM)), 0);
            b.ep = own;
            is_claimed(&b, &received, i, i, FI_MSG, 0);
        }
        EXPECT("fi_close of the endpoint", fi_close(&ep->fid), 0);
        EXPECT("fi_close of the shared context", fi_close(&srx->fid), 0);
    }
    fi_freeinfo(info);
    pair_close(&a, &b);
}

void walk_variable(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_SOURCE | FI_VARIABLE_MSG);
    static const enum fi_progress progress[] = { FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO };
    static struct side a, b;
    options.message_order = FI_ORDER_SAS;
    for (size_t i = 0; i < COUNT_OF(progress); i++) {
        options.progress = progress[i];
        if (!pair_open(&a, &b, &options, "two endpoints with messages of any length"))
            return;
        walk_options(&b);
        walk_messages(&a, &b);
        walk_tags(&a, &b);
        walk_many(&a, &b);
        pair_close(&a, &b);
    }
    walk_sleep();
    walk_shared_news();
}
