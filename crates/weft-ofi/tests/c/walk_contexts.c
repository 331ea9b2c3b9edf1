/* Scalable endpoints; shared transmit and receive contexts. */
#include "walk.h"

#define CONTEXTS 2

struct scalable {
    struct side side; /* its endpoint is not used */
    struct fid_ep *sep, *transmits[CONTEXTS], *receives[CONTEXTS];
    struct inbox transmit_inboxes[CONTEXTS], receive_inboxes[CONTEXTS];
    struct fid_av *av;
    fi_addr_t peer;
};

static bool scalable_open(struct scalable *scalable, struct fi_info *info, const struct side_options *options)
{
    struct fi_av_attr av_attr = { .type = FI_AV_MAP, .rx_ctx_bits = 4 };
    struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_TAGGED };
    struct fid_cq *cq;
    memset(scalable, 0, sizeof(*scalable));
    if (!EXPECT("a domain", side_open(&scalable->side, options), 0) ||
        !EXPECT("fi_scalable_ep", fi_scalable_ep(scalable->side.domain, info, &scalable->sep, scalable), 0))
        return false;
    CHECK("its class", scalable->sep->fid.fclass == FI_CLASS_SEP);
    EXPECT("fi_av_open", fi_av_open(scalable->side.domain, &av_attr, &scalable->av, NULL), 0);
    EXPECT("fi_scalable_ep_bind", fi_scalable_ep_bind(scalable->sep, &scalable->av->fid, 0), 0);
    for (int i = 0; i < CONTEXTS; i++) {
        if (!EXPECT("fi_tx_context", fi_tx_context(scalable->sep, i, info->tx_attr, &scalable->transmits[i], NULL), 0) ||
            !EXPECT("fi_rx_context", fi_rx_context(scalable->sep, i, info->rx_attr, &scalable->receives[i], NULL), 0) ||
            !EXPECT("fi_cq_open", fi_cq_open(scalable->side.domain, &cq_attr, &cq, NULL), 0))
            return false;
        CHECK("the classes", scalable->transmits[i]->fid.fclass == FI_CLASS_TX_CTX && scalable->receives[i]->fid.fclass == FI_CLASS_RX_CTX);
        inbox_add(&scalable->transmit_inboxes[i], cq);
        EXPECT("fi_ep_bind of a transmit context", fi_ep_bind(scalable->transmits[i], &cq->fid, FI_TRANSMIT), 0);
        EXPECT("fi_cq_open", fi_cq_open(scalable->side.domain, &cq_attr, &cq, NULL), 0);
        inbox_add(&scalable->receive_inboxes[i], cq);
        EXPECT("fi_ep_bind of a receive context", fi_ep_bind(scalable->receives[i], &cq->fid, FI_RECV), 0);
    }
    if (!gentle) {
        struct fid_ep *none = NULL;
        EXPECT("fi_tx_context beyond the last", fi_tx_context(scalable->sep, 9999, info->tx_attr, &none, NULL), -FI_EINVAL);
        EXPECT("fi_rx_context beyond the last", fi_rx_context(scalable->sep, 9999, info->rx_attr, &none, NULL), -FI_EINVAL);
        EXPECT("fi_tx_context twice", fi_tx_context(scalable->sep, 0, info->tx_attr, &none, NULL), -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
        EXPECT("fi_close of an endpoint with contexts", fi_close(&scalable->sep->fid), -FI_EBUSY);
    }
    EXPECT("fi_enable of the endpoint", fi_enable(scalable->sep), 0);
    for (int i = 0; i < CONTEXTS; i++) {
        EXPECT("fi_enable of a transmit context", fi_enable(scalable->transmits[i]), 0);
        EXPECT("fi_enable of a receive context", fi_enable(scalable->receives[i]), 0);
    }
    return true;
}

static void scalable_close(struct scalable *scalable)
{
    for (int i = 0; i < CONTEXTS; i++) {
        struct fid_cq *cqs[2] = { scalable->transmit_inboxes[i].cq, scalable->receive_inboxes[i].cq };
        inbox_remove(&scalable->transmit_inboxes[i]);
        inbox_remove(&scalable->receive_inboxes[i]);
        if (scalable->transmits[i])
            EXPECT("fi_close of a transmit context", fi_close(&scalable->transmits[i]->fid), 0);
        if (scalable->receives[i])
            EXPECT("fi_close of a receive context", fi_close(&scalable->receives[i]->fid), 0);
        for (int which = 0; which < 2; which++)
            if (cqs[which])
                EXPECT("fi_close of its queue", fi_close(&cqs[which]->fid), 0);
    }
    if (scalable->sep)
        EXPECT("fi_close of the scalable endpoint", fi_close(&scalable->sep->fid), 0);
    if (scalable->av)
        EXPECT("fi_close of its vector", fi_close(&scalable->av->fid), 0);
    side_close(&scalable->side);
}

/* As libraries for one-sided communication open them: nothing is asked of the
 * contexts but the level of completion, and receives report nowhere. */
static void walk_one_sided(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_RMA | FI_ATOMIC);
    static struct scalable a;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    struct fi_av_attr av_attr = { .type = FI_AV_MAP };
    struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_tx_attr tx_attr = { .op_flags = FI_DELIVERY_COMPLETE };
    struct fi_rx_attr rx_attr = { 0 };
    struct fid_cq *cq = NULL;
    char name[256], context;
    size_t length = sizeof(name);
    memset(&a, 0, sizeof(a));
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent("scalable endpoints for one-sided operations", "not offered");
        return;
    }
    if (!EXPECT("fi_getinfo", code, 0))
        return;
    info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
    if (EXPECT("a domain", side_open(&a.side, &options), 0) &&
        EXPECT("fi_scalable_ep", fi_scalable_ep(a.side.domain, info, &a.sep, NULL), 0) &&
        EXPECT("fi_av_open", fi_av_open(a.side.domain, &av_attr, &a.av, NULL), 0) &&
        EXPECT("fi_scalable_ep_bind", fi_scalable_ep_bind(a.sep, &a.av->fid, 0), 0) &&
        EXPECT("fi_tx_context without wishes", fi_tx_context(a.sep, 0, &tx_attr, &a.transmits[0], NULL), 0) &&
        EXPECT("fi_rx_context without wishes", fi_rx_context(a.sep, 0, &rx_attr, &a.receives[0], NULL), 0) &&
        EXPECT("fi_cq_open", fi_cq_open(a.side.domain, &cq_attr, &cq, NULL), 0)) {
        inbox_add(&a.transmit_inboxes[0], cq);
        EXPECT("fi_ep_bind of a transmit context", fi_ep_bind(a.transmits[0], &cq->fid, FI_TRANSMIT), 0);
        EXPECT("fi_enable of a transmit context", fi_enable(a.transmits[0]), 0);
        EXPECT("fi_enable of a receive context that receives no messages", fi_enable(a.receives[0]), 0);
        EXPECT("fi_enable of the endpoint", fi_enable(a.sep), 0);
        EXPECT("fi_getname", fi_getname(&a.sep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &a.peer, 0, NULL), 1);
        fill(a.side.memory, 100, 7);
        EXPECT("fi_write from a context",
               POST(fi_write(a.transmits[0], a.side.memory, 100, a.side.region.descriptor, a.peer, a.side.region.base + 4096, a.side.region.key, &context)), 0);
        FINISH(&a.transmit_inboxes[0], &context, "it ends");
        CHECK("its bytes", filled(a.side.memory + 4096, 100, 7));
    }
    scalable_close(&a);
    fi_freeinfo(info);
}

static void walk_with_messages(void);

void walk_scalable(void)
{
    walk_with_messages();
    walk_one_sided();
}

static void walk_with_messages(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_NAMED_RX_CTX | FI_DIRECTED_RECV | FI_SOURCE);
    static struct scalable a, b;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    char name[256];
    size_t length;
    hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = CONTEXTS;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent("scalable endpoints", "not offered");
        return;
    }
    if (!EXPECT("fi_getinfo", code, 0))
        return;
    CHECK("as many contexts as asked for", info->ep_attr->tx_ctx_cnt >= CONTEXTS && info->ep_attr->rx_ctx_cnt >= CONTEXTS);
    info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = CONTEXTS;
    bool opened = scalable_open(&a, info, &options) && scalable_open(&b, info, &options);
    if (opened) {
        length = sizeof(name);
        EXPECT("fi_getname", fi_getname(&b.sep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &a.peer, 0, NULL), 1);
        length = sizeof(name);
        EXPECT("fi_getname", fi_getname(&a.sep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(b.av, name, 1, &b.peer, 0, NULL), 1);
        static const size_t sizes[] = { 100, 300000 };
        for (int from = 0; from < CONTEXTS; from++) {
            for (int to = 0; to < CONTEXTS * 2; to++) {
                char sent, received;
                size_t size = sizes[to / CONTEXTS];
                int context = to % CONTEXTS;
                unsigned seed = (unsigned)(from * CONTEXTS + to);
                unsigned char *in = b.side.memory + SIDE_MEMORY_BYTES / 2;
                struct event event;
                fill(a.side.memory, size, seed);
                memset(in, 0, size);
                /* A scalable endpoint has one address: whichever context sends, it is from there. */
                EXPECT("fi_recv at a context", fi_recv(b.receives[context], in, size, b.side.region.descriptor, fi_rx_addr(b.peer, to % 2, 4), &received), 0);
                EXPECT("fi_send from a context to a context",
                       POST(fi_send(a.transmits[from], a.side.memory, size, a.side.region.descriptor, fi_rx_addr(a.peer, context, 4), &sent)), 0);
                if (TAKE(&b.receive_inboxes[context], &event, "it arrives at that context"))
                    CHECK("whose it is, and from whom", !event.error && event.entry.op_context == &received && event.source == b.peer);
                FINISH(&a.transmit_inboxes[from], &sent, "its send ends at that context");
                CHECK("its bytes", filled(in, size, seed));
            }
        }
    }
    scalable_close(&a);
    if (b.side.domain || b.sep)
        scalable_close(&b);
    fi_freeinfo(info);
}

static void walk_shared_transmit(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side a, b;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    struct fid_stx *stx = NULL;
    struct fid_ep *eps[2] = { NULL, NULL };
    hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent("a shared transmit context", "not offered");
        return;
    }
    if (!EXPECT("fi_getinfo", code, 0) || !pair_open(&a, &b, &options, "two endpoints"))
        goto out;
    info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
    if (EXPECT("fi_stx_context", fi_stx_context(a.domain, info->tx_attr, &stx, NULL), 0)) {
        for (int i = 0; i < 2; i++) {
            if (!EXPECT("fi_endpoint", fi_endpoint(a.domain, info, &eps[i], NULL), 0))
                break;
            EXPECT("fi_ep_bind to the shared context", fi_ep_bind(eps[i], &stx->fid, 0), 0);
            EXPECT("fi_ep_bind to a queue", fi_ep_bind(eps[i], &a.transmit.cq->fid, FI_TRANSMIT), 0);
            EXPECT("fi_ep_bind to a queue", fi_ep_bind(eps[i], &a.receive.cq->fid, FI_RECV), 0);
            EXPECT("fi_ep_bind to a vector", fi_ep_bind(eps[i], &a.av->fid, 0), 0);
            EXPECT("fi_enable", fi_enable(eps[i]), 0);
        }
        if (!gentle)
            EXPECT("fi_close of a shared context in use", fi_close(&stx->fid), 0);
        for (int i = 0; i < 2 && eps[i]; i++) {
            char sent, received;
            fill(a.memory, 64, 13 + (unsigned)i);
            EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &received), 0);
            EXPECT("fi_send", POST(fi_send(eps[i], a.memory, 64, a.region.descriptor, a.peer, &sent)), 0);
            FINISH(&b.receive, &received, "a message of each endpoint arrives");
            FINISH(&a.transmit, &sent, "its send ends");
            CHECK("its bytes", filled(b.memory, 64, 13 + (unsigned)i));
        }
        for (int i = 0; i < 2; i++)
            if (eps[i])
                EXPECT("fi_close of an endpoint", fi_close(&eps[i]->fid), 0);
        if (gentle)
            EXPECT("fi_close of the shared context", fi_close(&stx->fid), 0);
    }
    pair_close(&a, &b);
out:
    fi_freeinfo(info);
}

static void walk_shared_receive(uint64_t caps, const char *kind)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, caps);
    static struct side a, b;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    struct fid_ep *srx = NULL, *eps[2] = { NULL, NULL };
    fi_addr_t addresses[2] = { 0, 0 };
    bool tagged = caps & FI_TAGGED;
    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent(kind, "not offered");
        return;
    }
    if (!EXPECT(kind, code, 0) || !pair_open(&a, &b, &options, "two endpoints"))
        goto out;
    info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    if (EXPECT("fi_srx_context", fi_srx_context(b.domain, info->rx_attr, &srx, NULL), 0)) {
        for (int i = 0; i < 2; i++) {
            char name[256];
            size_t length = sizeof(name);
            if (!EXPECT("fi_endpoint", fi_endpoint(b.domain, info, &eps[i], NULL), 0))
                break;
            EXPECT("fi_ep_bind to the shared context", fi_ep_bind(eps[i], &srx->fid, 0), 0);
            EXPECT("fi_ep_bind to a queue", fi_ep_bind(eps[i], &b.transmit.cq->fid, FI_TRANSMIT), 0);
            EXPECT("fi_ep_bind to a queue", fi_ep_bind(eps[i], &b.receive.cq->fid, FI_RECV), 0);
            EXPECT("fi_ep_bind to a vector", fi_ep_bind(eps[i], &b.av->fid, 0), 0);
            EXPECT("fi_enable", fi_enable(eps[i]), 0);
            EXPECT("fi_getname", fi_getname(&eps[i]->fid, name, &length), 0);
            EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &addresses[i], 0, NULL), 1);
        }
        if (!gentle)
            EXPECT("fi_close of a shared context in use", fi_close(&srx->fid), -FI_EBUSY);
        for (int i = 0; i < 4 && eps[i % 2]; i++) {
            char sent, received;
            bool early = i >= 2;
            fill(a.memory, 64, 17 + (unsigned)i);
            memset(b.memory, 0, 64);
            if (early) {
                EXPECT("a send that is not awaited", tagged ? POST(fi_tsend(a.ep, a.memory, 64, a.region.descriptor, addresses[i % 2], 5, &sent))
                                                            : POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, addresses[i % 2], &sent)), 0);
                for (int round = 0; round < 200; round++)
                    drive();
            }
            EXPECT("a receive at the shared context", tagged ? fi_trecv(srx, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, 5, 0, &received)
                                                             : fi_recv(srx, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &received), 0);
            if (!early)
                EXPECT("a send", tagged ? POST(fi_tsend(a.ep, a.memory, 64, a.region.descriptor, addresses[i % 2], 5, &sent))
                                        : POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, addresses[i % 2], &sent)), 0);
            FINISH(&b.receive, &received, "a message for each endpoint arrives");
            FINISH(&a.transmit, &sent, "its send ends");
            CHECK("its bytes", filled(b.memory, 64, 17 + (unsigned)i));
        }
        for (int i = 0; i < 2; i++)
            if (eps[i])
                EXPECT("fi_close of an endpoint", fi_close(&eps[i]->fid), 0);
        EXPECT("fi_close of the shared context", fi_close(&srx->fid), 0);
    }
    pair_close(&a, &b);
out:
    fi_freeinfo(info);
}

/* A shared receive context whose two endpoints report to queues of their own, or that reports to one itself. */
struct sharing {
    struct fid_ep *srx, *eps[2];
    struct inbox inboxes[2];
    fi_addr_t addresses[2];
};

static bool sharing_open(struct sharing *sharing, struct side *a, struct side *b, const struct side_options *options, bool own)
{
    struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_TAGGED };
    struct fi_info *hints = hints_for(options), *info = NULL;
    bool good = true;
    memset(sharing, 0, sizeof(*sharing));
    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code || fi_srx_context(b->domain, info->rx_attr, &sharing->srx, NULL)) {
        absent("a shared receive context", "not offered");
        fi_freeinfo(info);
        return false;
    }
    info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    for (int i = 0; i < 2; i++) {
        struct fid_cq *cq;
        good = good && EXPECT("fi_cq_open", fi_cq_open(b->domain, &cq_attr, &cq, NULL), 0);
        if (good)
            inbox_add(&sharing->inboxes[i], cq);
    }
    if (good && own)
        good = EXPECT("fi_ep_bind of the shared context to a queue", fi_ep_bind(sharing->srx, &sharing->inboxes[0].cq->fid, FI_RECV), 0) &&
               EXPECT("fi_enable of the shared context", fi_enable(sharing->srx), 0);
    for (int i = 0; good && i < 2; i++) {
        char name[256];
        size_t length = sizeof(name);
        good = EXPECT("fi_endpoint", fi_endpoint(b->domain, info, &sharing->eps[i], NULL), 0);
        if (!good)
            break;
        EXPECT("fi_ep_bind to the shared context", fi_ep_bind(sharing->eps[i], &sharing->srx->fid, 0), 0);
        EXPECT("fi_ep_bind to a queue", fi_ep_bind(sharing->eps[i], &b->transmit.cq->fid, FI_TRANSMIT), 0);
        if (!own)
            EXPECT("fi_ep_bind to a queue", fi_ep_bind(sharing->eps[i], &sharing->inboxes[i].cq->fid, FI_RECV), 0);
        EXPECT("fi_ep_bind to a vector", fi_ep_bind(sharing->eps[i], &b->av->fid, 0), 0);
        EXPECT("fi_enable", fi_enable(sharing->eps[i]), 0);
        EXPECT("fi_getname", fi_getname(&sharing->eps[i]->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(a->av, name, 1, &sharing->addresses[i], 0, NULL), 1);
    }
    fi_freeinfo(info);
    return good;
}

static void sharing_close(struct sharing *sharing)
{
    for (int i = 0; i < 2; i++)
        if (sharing->eps[i])
            EXPECT("fi_close of an endpoint", fi_close(&sharing->eps[i]->fid), 0);
    if (sharing->srx)
        EXPECT("fi_close of the shared context", fi_close(&sharing->srx->fid), 0);
    for (int i = 0; i < 2; i++) {
        struct fid_cq *cq = sharing->inboxes[i].cq;
        if (cq) {
            inbox_remove(&sharing->inboxes[i]);
            EXPECT("fi_close of a queue", fi_close(&cq->fid), 0);
        }
    }
}

/* One buffer for many messages, told of in the queue of whichever endpoint a message was for. */
static void walk_shared_multi(bool own)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_MULTI_RECV);
    static struct side a, b;
    static struct sharing sharing;
    size_t least = 64;
    char many, sent;
    if (!pair_open(&a, &b, &options, "two endpoints for multi-receives"))
        return;
    if (sharing_open(&sharing, &a, &b, &options, own)) {
        struct iovec piece = { .iov_base = b.memory, .iov_len = 1024 };
        struct fi_msg message = { .msg_iov = &piece, .desc = &b.region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &many };
        struct event event;
        EXPECT("FI_OPT_MIN_MULTI_RECV", fi_setopt(&sharing.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)), 0);
        EXPECT("a multi-receive at the shared context", fi_recvmsg(sharing.srx, &message, FI_MULTI_RECV), 0);
        for (unsigned i = 0; i < 10; i++) {
            fill(a.memory, 100, i);
            EXPECT("a send", POST(fi_send(a.ep, a.memory, 100, a.region.descriptor, sharing.addresses[i % 2], &sent)), 0);
            FINISH(&a.transmit, &sent, "its send ends");
            if (!TAKE(&sharing.inboxes[own ? 0 : i % 2], &event, "each endpoint tells of its messages"))
                break;
            CHECK("the buffer's context", event.entry.op_context == &many);
            CHECK("where it is", event.entry.buf == b.memory + 100 * i && event.entry.len == 100);
            CHECK("its bytes", filled(b.memory + 100 * i, 100, i));
            CHECK("when the buffer comes back", !(event.entry.flags & FI_MULTI_RECV) == (i < 9));
        }
        EXPECT("another multi-receive", fi_recvmsg(sharing.srx, &message, FI_MULTI_RECV), 0);
        EXPECT("fi_cancel of it", fi_cancel(&sharing.srx->fid, &many), 0);
    }
    sharing_close(&sharing);
    pair_close(&a, &b);
}

/* FI_SOURCE_ERR, where the shared context tells of messages or the endpoints do. */
static void walk_shared_unknown(bool own)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_SOURCE | FI_SOURCE_ERR);
    static struct side a, b;
    static struct sharing sharing;
    char received, sent;
    int code = side_open(&a, &options);
    if (code == -FI_ENODATA) {
        absent("FI_SOURCE_ERR", "not offered");
        return;
    }
    if (!EXPECT("FI_SOURCE_ERR", code, 0) || !EXPECT("another", side_open(&b, &options), 0))
        return;
    /* Nobody tells b of a. */
    if (sharing_open(&sharing, &a, &b, &options, own)) {
        for (int i = 0; i < 2; i++) {
            struct event event;
            EXPECT("fi_recv", fi_recv(sharing.srx, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &received), 0);
            EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, sharing.addresses[i], &sent)), 0);
            FINISH(&a.transmit, &sent, "its send ends");
            if (TAKE(&sharing.inboxes[own ? 0 : i], &event, "a message of somebody unknown"))
                CHECK("what it says", event.error == FI_EADDRNOTAVAIL && event.entry.op_context == &received && event.entry.len == 64);
        }
    }
    sharing_close(&sharing);
    side_close(&b);
    side_close(&a);
}

void walk_shared(void)
{
    walk_shared_transmit();
    walk_shared_multi(false);
    walk_shared_multi(true);
    walk_shared_unknown(false);
    walk_shared_unknown(true);
    walk_shared_receive(FI_MSG, "a shared receive context");
    walk_shared_receive(FI_TAGGED, "a shared receive context with tags");
}

/* ---- what is bound to endpoints that are enabled ---- */

/* An endpoint of a's domain that tells of nothing but by a counter. */
static struct fid_ep *open_counted(struct side *a, struct fid_cntr *counter)
{
    struct fid_ep *ep = NULL;
    if (!EXPECT("fi_endpoint", fi_endpoint(a->domain, a->info, &ep, NULL), 0))
        return NULL;
    EXPECT("fi_ep_bind to a counter", fi_ep_bind(ep, &counter->fid, FI_SEND | FI_RECV | FI_WRITE | FI_READ), 0);
    EXPECT("fi_ep_bind to a vector", fi_ep_bind(ep, &a->av->fid, 0), 0);
    EXPECT("fi_enable", fi_enable(ep), 0);
    return ep;
}

static void walk_late_queues(struct side *a, struct side *b)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cntr *counter = NULL;
    struct fid_ep *ep;
    fi_addr_t to_ep;
    char name[256], sent, received;
    size_t length = sizeof(name);
    struct iovec piece = { .iov_base = a->memory, .iov_len = 64 };
    struct fi_msg message = { .msg_iov = &piece, .desc = &a->region.descriptor, .iov_count = 1, .addr = a->peer, .context = &sent };

    if (!EXPECT("fi_cntr_open", fi_cntr_open(a->domain, &attr, &counter, NULL), 0))
        return;
    if ((ep = open_counted(a, counter))) {
        EXPECT("a queue for transmits", fi_ep_bind(ep, &a->transmit.cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION), 0);
        EXPECT("a second one", fi_ep_bind(ep, &a->transmit.cq->fid, FI_TRANSMIT), -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
        EXPECT("a queue for receives", fi_ep_bind(ep, &a->receive.cq->fid, FI_RECV), 0);
        EXPECT("fi_recv", fi_recv(b->ep, b->memory, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_sendmsg", POST(fi_sendmsg(ep, &message, 0)), 0);
        FINISH(&b->receive, &received, "a message arrives");
        DRIVE_UNTIL("it is counted", fi_cntr_read(counter) == 1);
        CHECK("but not told", nothing_comes(&a->transmit));
        EXPECT("fi_recv", fi_recv(b->ep, b->memory, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_sendmsg with a completion", POST(fi_sendmsg(ep, &message, FI_COMPLETION)), 0);
        FINISH(&b->receive, &received, "another message arrives");
        FINISH(&a->transmit, &sent, "its send is told");
        EXPECT("fi_getname", fi_getname(&ep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(b->av, name, 1, &to_ep, 0, NULL), 1);
        EXPECT("fi_recv", fi_recv(ep, a->memory, 64, a->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_send", POST(fi_send(b->ep, b->memory, 64, b->region.descriptor, to_ep, &sent)), 0);
        FINISH(&a->receive, &received, "a message to it is told");
        FINISH(&b->transmit, &sent, "its send is told");
        EXPECT("fi_close", fi_close(&ep->fid), 0);
    }
    if ((ep = open_counted(a, counter))) {
        uint64_t before = fi_cntr_read(counter);
        EXPECT("fi_recv", fi_recv(b->ep, b->memory, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_send", POST(fi_send(ep, a->memory, 64, a->region.descriptor, a->peer, &sent)), 0);
        if (!gentle)
            EXPECT("a queue after something was posted", fi_ep_bind(ep, &a->transmit.cq->fid, FI_TRANSMIT), -FI_EOPBADSTATE, 0);
        FINISH(&b->receive, &received, "a message arrives");
        DRIVE_UNTIL("its send is counted", fi_cntr_read(counter) == before + 1);
        EXPECT("fi_close", fi_close(&ep->fid), 0);
    }
    EXPECT("fi_close of the counter", fi_close(&counter->fid), 0);
}

/* Libraries bind shared contexts and counters to endpoints that are in use already. */
void walk_late(void)
{
    static const uint64_t kinds[COUNTER_KINDS] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE };
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA | FI_RMA_EVENT);
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
    static struct side a, b;
    struct fid_stx *stx = NULL;
    char context;
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    EXPECT("fi_write", POST(fi_write(a.ep, a.memory, 64, a.region.descriptor, a.peer, b.region.base, b.region.key, &context)), 0);
    FINISH(&a.transmit, &context, "a write before");
    if (EXPECT("fi_stx_context", fi_stx_context(a.domain, a.info->tx_attr, &stx, NULL), 0)) {
        EXPECT("a shared transmit context", fi_ep_bind(a.ep, &stx->fid, 0), 0);
        if (!gentle)
            EXPECT("a second one", fi_ep_bind(a.ep, &stx->fid, 0), -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
    }
    for (int i = 0; i < COUNTER_KINDS * 2; i++) {
        struct side *side = i % 2 ? &a : &b;
        struct fid_cntr **counter = &side->counters[i / 2];
        if (!EXPECT("fi_cntr_open", fi_cntr_open(side->domain, &attr, counter, NULL), 0))
            return;
        EXPECT("a counter", fi_ep_bind(side->ep, &(*counter)->fid, kinds[i / 2]), 0);
        if (!gentle)
            EXPECT("a second one", fi_ep_bind(side->ep, &(*counter)->fid, kinds[i / 2]), -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
    }
    EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &context), 0);
    EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, a.peer, &context)), 0);
    FINISH(&b.receive, &context, "a message");
    FINISH(&a.transmit, &context, "its send");
    for (int i = 0; i < 3; i++) {
        EXPECT("fi_write", POST(fi_write(a.ep, a.memory, 64, a.region.descriptor, a.peer, b.region.base, b.region.key, &context)), 0);
        FINISH(&a.transmit, &context, "a write");
    }
    EXPECT("fi_read", POST(fi_read(a.ep, a.memory, 64, a.region.descriptor, a.peer, b.region.base, b.region.key, &context)), 0);
    FINISH(&a.transmit, &context, "a read");
    DRIVE_UNTIL("a send is counted", fi_cntr_read(a.counters[SENT]) == 1);
    DRIVE_UNTIL("a receive is counted", fi_cntr_read(b.counters[RECEIVED]) == 1);
    DRIVE_UNTIL("writes are counted", fi_cntr_read(a.counters[WRITTEN]) == 3);
    DRIVE_UNTIL("a read is counted", fi_cntr_read(a.counters[READ_DONE]) == 1);
    DRIVE_UNTIL("writes of a peer are counted", fi_cntr_read(b.counters[REMOTE_WRITTEN]) == 3);
    DRIVE_UNTIL("a read of a peer is counted", fi_cntr_read(b.counters[REMOTE_READ]) == 1);
    walk_late_queues(&a, &b);
    EXPECT("fi_close of the endpoint", fi_close(&a.ep->fid), 0);
    a.ep = NULL;
    if (stx)
        EXPECT("fi_close of the shared context", fi_close(&stx->fid), 0);
    pair_close(&a, &b);
}
