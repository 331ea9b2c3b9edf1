/* A reliable endpoint: its life, its messages in every form, multi-receive,
 * counters, and queues that are full. */
#include "walk.h"

#define RECEIVES (b->memory + (1 << 20))

static void walk_life(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side side;
    struct fid_ep *ep = NULL, *alias = NULL;
    struct fi_cq_attr cq_attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_av_attr av_attr = { .type = FI_AV_MAP };
    struct fid_cq *cq = NULL;
    struct fid_av *av = NULL;
    char name[256];
    size_t length = sizeof(name), value = 0;
    uint64_t flags = 0;

    int code = side_open(&side, &options);
    if (code == -FI_ENODATA) {
        absent("an rdm endpoint", "not offered");
        return;
    }
    if (!EXPECT("an rdm endpoint", code, 0))
        return;
    if (!EXPECT("fi_endpoint", fi_endpoint(side.domain, side.info, &ep, &side), 0) ||
        !EXPECT("fi_cq_open", fi_cq_open(side.domain, &cq_attr, &cq, NULL), 0) ||
        !EXPECT("fi_av_open", fi_av_open(side.domain, &av_attr, &av, NULL), 0))
        goto out;
    CHECK("its class", ep->fid.fclass == FI_CLASS_EP);
    CHECK("its context", ep->fid.context == &side);
    if (!gentle) {
        EXPECT("fi_enable without anything", fi_enable(ep), -FI_ENOCQ, -FI_ENOAV);
        EXPECT("fi_send before it is enabled", fi_send(ep, side.memory, 8, side.region.descriptor, 0, NULL), -FI_EOPBADSTATE, -FI_EINVAL);
        EXPECT("fi_recv before it is enabled", fi_recv(ep, side.memory, 8, side.region.descriptor, FI_ADDR_UNSPEC, NULL), -FI_EOPBADSTATE, -FI_EINVAL, 0);
        EXPECT("fi_ep_bind to a domain", fi_ep_bind(ep, &side.domain->fid, 0), -FI_EINVAL, -FI_ENOSYS);
        EXPECT("fi_ep_bind to a queue with unknown flags", fi_ep_bind(ep, &cq->fid, 1ULL << 60), -FI_EBADFLAGS, -FI_EINVAL);
    }
    EXPECT("fi_ep_bind to a queue for transmits", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT), 0);
    if (!gentle) {
        EXPECT("fi_ep_bind to a second one", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT), -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
        EXPECT("fi_enable without a queue for receives", fi_enable(ep), -FI_ENOCQ, -FI_ENOAV);
    }
    EXPECT("fi_ep_bind to a queue for receives", fi_ep_bind(ep, &cq->fid, FI_RECV), 0);
    EXPECT("fi_enable without a vector", fi_enable(ep), -FI_ENOAV, -FI_EOPBADSTATE);
    EXPECT("fi_ep_bind to a vector", fi_ep_bind(ep, &av->fid, 0), 0);
    EXPECT("fi_enable", fi_enable(ep), 0);
    if (!gentle) {
        EXPECT("fi_enable again", fi_enable(ep), -FI_EOPBADSTATE, -FI_EALREADY, 0);
        EXPECT("fi_ep_bind when it is enabled", fi_ep_bind(ep, &av->fid, 0), -FI_EOPBADSTATE, -FI_EINVAL, -FI_EBUSY, -FI_EALREADY);
    }
    EXPECT("fi_getname", fi_getname(&ep->fid, name, &length), 0);
    size_t needed = length;
    length = 3;
    EXPECT("fi_getname into too little", fi_getname(&ep->fid, name, &length), -FI_ETOOSMALL);
    CHECK("it tells the length", length == needed);
    length = sizeof(value);
    EXPECT("FI_OPT_MIN_MULTI_RECV", fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length), 0, -FI_ENOPROTOOPT);
    length = 2;
    EXPECT("fi_getopt into too little", fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &length), -FI_ETOOSMALL, -FI_ENOPROTOOPT);
    value = 128;
    EXPECT("fi_setopt", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, sizeof(value)), 0, -FI_ENOPROTOOPT);
    EXPECT("fi_setopt of too little", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 2), -FI_EINVAL, -FI_ETOOSMALL, -FI_ENOPROTOOPT);
    length = sizeof(value);
    EXPECT("an unknown option", fi_getopt(&ep->fid, FI_OPT_ENDPOINT, 9999, &value, &length), -FI_ENOPROTOOPT);
    EXPECT("an unknown option to set", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 9999, &value, sizeof(value)), -FI_ENOPROTOOPT);
    EXPECT("an option of an unknown level", fi_getopt(&ep->fid, 9999, FI_OPT_MIN_MULTI_RECV, &value, &length), -FI_ENOPROTOOPT, -FI_EINVAL);
    flags = FI_TRANSMIT;
    code = fi_control(&ep->fid, FI_GETOPSFLAG, &flags);
    EXPECT("FI_GETOPSFLAG", code, 0, -FI_ENOSYS, -FI_EINVAL);
    if (!code) {
        flags = FI_TRANSMIT | FI_COMPLETION;
        EXPECT("FI_SETOPSFLAG", fi_control(&ep->fid, FI_SETOPSFLAG, &flags), 0);
        flags = FI_TRANSMIT;
        EXPECT("FI_GETOPSFLAG again", fi_control(&ep->fid, FI_GETOPSFLAG, &flags), 0);
        CHECK("it is what was set", flags & FI_COMPLETION);
    }
    code = fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_COMPLETION);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL) {
        absent("fi_ep_alias", fi_strerror(-code));
    } else if (EXPECT("fi_ep_alias", code, 0)) {
        EXPECT("fi_close of the alias", fi_close(&alias->fid), 0);
    }
    if (!gentle) {
        EXPECT("fi_shutdown without connections", fi_shutdown(ep, 0), -FI_ENOTCONN, -FI_ENOSYS, -FI_EINVAL, -FI_EOPNOTSUPP, -FI_EOPBADSTATE);
        EXPECT("fi_connect without connections", fi_connect(ep, name, NULL, 0), -FI_ENOSYS, -FI_EINVAL, -FI_EOPNOTSUPP);
    }
    EXPECT("fi_cancel of what never was", fi_cancel(&ep->fid, &flags), 0, -FI_ENOENT);
out:
    if (ep)
        EXPECT("fi_close", fi_close(&ep->fid), 0);
    if (cq)
        EXPECT("fi_close of the queue", fi_close(&cq->fid), 0);
    if (av)
        EXPECT("fi_close of the vector", fi_close(&av->fid), 0);
    side_close(&side);
}

/* Came with 1.18. */
#define OPT_CUDA_API_PERMITTED 10

/* Who offers FI_HMEM knows the option: it may need the calls of CUDA, or there may be no CUDA. */
static void walk_cuda_permission(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_HMEM);
    static struct side side;
    bool permitted = false;
    int code;
    options.no_memory = true;
    if (gentle || (code = side_open(&side, &options)) == -FI_ENODATA)
        return;
    if (!EXPECT("an endpoint for memory of devices", code, 0))
        return;
    code = fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, OPT_CUDA_API_PERMITTED, &permitted, sizeof(permitted));
    EXPECT("calls of CUDA are forbidden", code, -FI_EOPNOTSUPP, -FI_EINVAL);
    bool present = code == -FI_EOPNOTSUPP;
    permitted = true;
    code = fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, OPT_CUDA_API_PERMITTED, &permitted, sizeof(permitted));
    EXPECT("and permitted", code, present ? 0 : -FI_EINVAL);
    EXPECT("too little", fi_setopt(&side.ep->fid, FI_OPT_ENDPOINT, OPT_CUDA_API_PERMITTED, &permitted, 0), -FI_EINVAL);
    side_close(&side);
}

void walk_rdm(void)
{
    walk_life();
    walk_cuda_permission();
}

/* One message of `length` bytes through `post`; the receive was posted before or after. */
static bool arrives(struct side *b, void *context, size_t length, unsigned seed, uint64_t data_flags, uint64_t data, const char *name)
{
    struct event event;
    if (!TAKE(&b->receive, &event, name))
        return false;
    return CHECK(name, event.error == 0 && event.entry.op_context == context && event.entry.len == length &&
                           (event.entry.flags & (FI_MSG | FI_RECV)) == (FI_MSG | FI_RECV) &&
                           (event.entry.flags & FI_REMOTE_CQ_DATA) == data_flags && (!data_flags || event.entry.data == data) &&
                           filled(RECEIVES, length, seed));
}

static void walk_forms(struct side *a, struct side *b)
{
    static const size_t lengths[] = { 0, 1, 8, 63, 64, 65, 1000, 4096, 65536, 1 << 20 };
    char sent, received;
    void *descriptor = a->region.descriptor;

    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t length = lengths[i];
        unsigned seed = (unsigned)i + 1;
        if (length > a->info->ep_attr->max_msg_size)
            continue;
        fill(a->memory, length, seed);
        memset(RECEIVES, 0, length);
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 1 << 20, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, length, descriptor, a->peer, &sent)), 0);
        arrives(b, &received, length, seed, 0, 0, "a message that is awaited");
        FINISH(&a->transmit, &sent, "its send ends");
        memset(RECEIVES, 0, length);
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, length, descriptor, a->peer, &sent)), 0);
        for (int round = 0; round < 200; round++)
            drive();
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 1 << 20, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        arrives(b, &received, length, seed, 0, 0, "a message that is not awaited");
        FINISH(&a->transmit, &sent, "its send ends");
    }
    fill(a->memory, 100, 77);
    struct iovec out[2] = { { a->memory, 40 }, { a->memory + 40, 60 } };
    struct iovec in[2] = { { RECEIVES, 30 }, { RECEIVES + 30, 500 } };
    void *descriptors[2] = { descriptor, descriptor }, *receive_descriptors[2] = { b->region.descriptor, b->region.descriptor };
    memset(RECEIVES, 0, 600);
    EXPECT("fi_recvv", fi_recvv(b->ep, in, receive_descriptors, 2, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_sendv", POST(fi_sendv(a->ep, out, descriptors, 2, a->peer, &sent)), 0);
    arrives(b, &received, 100, 77, 0, 0, "two pieces into two pieces");
    FINISH(&a->transmit, &sent, "its send ends");
    memset(RECEIVES, 0, 600);
    struct fi_msg message = { .msg_iov = in, .desc = receive_descriptors, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = &received };
    EXPECT("fi_recvmsg", fi_recvmsg(b->ep, &message, FI_COMPLETION), 0);
    message = (struct fi_msg){ .msg_iov = out, .desc = descriptors, .iov_count = 2, .addr = a->peer, .context = &sent, .data = 0x1234 };
    bool has_data = a->info->domain_attr->cq_data_size >= 2;
    EXPECT("fi_sendmsg", POST(fi_sendmsg(a->ep, &message, FI_COMPLETION | (has_data ? FI_REMOTE_CQ_DATA : 0))), 0);
    arrives(b, &received, 100, 77, has_data ? FI_REMOTE_CQ_DATA : 0, 0x1234, "a message with all parts");
    FINISH(&a->transmit, &sent, "its send ends");
    if (has_data) {
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 600, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_senddata", POST(fi_senddata(a->ep, a->memory, 100, descriptor, 0x5678, a->peer, &sent)), 0);
        arrives(b, &received, 100, 77, FI_REMOTE_CQ_DATA, 0x5678, "a message with data");
        FINISH(&a->transmit, &sent, "its send ends");
    }
    size_t inject = a->info->tx_attr->inject_size < 100 ? a->info->tx_attr->inject_size : 100;
    if (inject) {
        unsigned char buffer[100];
        fill(buffer, sizeof(buffer), 78);
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 600, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_inject", POST(fi_inject(a->ep, buffer, inject, a->peer)), 0);
        memset(buffer, 0, sizeof(buffer));
        arrives(b, &received, inject, 78, 0, 0, "an injected message");
        fill(buffer, sizeof(buffer), 79);
        if (has_data) {
            EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 600, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
            EXPECT("fi_injectdata", POST(fi_injectdata(a->ep, buffer, inject, 0x9abc, a->peer)), 0);
            memset(buffer, 0, sizeof(buffer));
            arrives(b, &received, inject, 79, FI_REMOTE_CQ_DATA, 0x9abc, "an injected message with data");
        }
        fill(buffer, sizeof(buffer), 80);
        struct iovec piece = { buffer, inject };
        message = (struct fi_msg){ .msg_iov = &piece, .iov_count = 1, .addr = a->peer, .context = &sent };
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 600, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_sendmsg with FI_INJECT", POST(fi_sendmsg(a->ep, &message, FI_INJECT | FI_COMPLETION)), 0);
        memset(buffer, 0, sizeof(buffer));
        arrives(b, &received, inject, 80, 0, 0, "its message");
        FINISH(&a->transmit, &sent, "its send ends, as only an injecting call has no completion");
        CHECK("injects make no completions", nothing_comes(&a->transmit));
    }
    static const struct {
        uint64_t flags;
        const char *name;
    } levels[] = { { FI_INJECT_COMPLETE, "inject complete" }, { FI_TRANSMIT_COMPLETE, "transmit complete" }, { FI_DELIVERY_COMPLETE, "delivery complete" },
                   { FI_MATCH_COMPLETE, "match complete" }, { FI_FENCE, "a fence" } };
    for (size_t i = 0; i < COUNT_OF(levels); i++) {
        message = (struct fi_msg){ .msg_iov = out, .desc = descriptors, .iov_count = 2, .addr = a->peer, .context = &sent };
        memset(RECEIVES, 0, 600);
        fill(a->memory, 100, 81);
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 600, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        int code = (int)POST(fi_sendmsg(a->ep, &message, levels[i].flags | FI_COMPLETION));
        if (code) {
            EXPECT(levels[i].name, code, -FI_EINVAL, -FI_EOPNOTSUPP, -FI_EBADFLAGS, -FI_ENOSYS);
            absent(levels[i].name, "not offered");
            EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &received), 0);
            struct event event;
            FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the receive is cancelled");
            continue;
        }
        FINISH(&a->transmit, &sent, levels[i].name);
        arrives(b, &received, 100, 81, 0, 0, levels[i].name);
    }
}

static void walk_receives(struct side *a, struct side *b)
{
    struct event event;
    char sent, received, other;

    fill(a->memory, 256, 11);
    memset(RECEIVES, 0, 256);
    EXPECT("fi_recv of 100 bytes", fi_recv(b->ep, RECEIVES, 100, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_send of 256 bytes", POST(fi_send(a->ep, a->memory, 256, a->region.descriptor, a->peer, &sent)), 0);
    if (FINISH_ERROR(&b->receive, FI_ETRUNC, &event, "the receive is too short")) {
        CHECK("its context", event.entry.op_context == &received);
        CHECK("how much was lost", event.overflow == 156);
        CHECK("nothing behind it was written", RECEIVES[100] == 0);
    }
    TAKE(&a->transmit, &event, "the send of a message that was cut ends");
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 100, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 100, b->region.descriptor, FI_ADDR_UNSPEC, &other), 0);
    EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &received), 0);
    if (FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the receive is cancelled"))
        CHECK("its context", event.entry.op_context == &received);
    EXPECT("fi_send", POST(fi_send(a->ep, a->memory, 64, a->region.descriptor, a->peer, &sent)), 0);
    arrives(b, &other, 64, 11, 0, 0, "the next receive gets the message");
    FINISH(&a->transmit, &sent, "its send ends");
    /* Order: a hundred messages are received as they were sent. */
    for (int i = 0; i < 100; i++)
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES + i * 8, 8, b->region.descriptor, FI_ADDR_UNSPEC, RECEIVES + i * 8), 0);
    bool in_order = true;
    for (uint64_t i = 0; i < 100; i++) {
        memcpy(a->memory + i * 8, &i, 8);
        if (POST(fi_send(a->ep, a->memory + i * 8, 8, a->region.descriptor, a->peer, NULL)))
            in_order = false;
    }
    for (uint64_t i = 0; i < 100; i++)
        in_order = TAKE(&b->receive, &event, "a message in order") && event.error == 0 && in_order;
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t value;
        memcpy(&value, RECEIVES + i * 8, 8);
        in_order = in_order && value == i;
        TAKE(&a->transmit, &event, "a send in order");
    }
    CHECK("messages keep their order", in_order);
}

static void walk_limits(struct side *a)
{
    struct iovec pieces[64];
    void *descriptors[64];
    unsigned char *memory = a->memory;
    for (int i = 0; i < 64; i++) {
        pieces[i] = (struct iovec){ memory, 1 };
        descriptors[i] = a->region.descriptor;
    }
    if (gentle)
        return;
    if (a->info->tx_attr->iov_limit < 64) {
        EXPECT("fi_sendv of too many pieces", fi_sendv(a->ep, pieces, descriptors, 64, a->peer, NULL), -FI_EINVAL);
        EXPECT("fi_recvv of too many pieces", fi_recvv(a->ep, pieces, descriptors, 64, a->peer, NULL), -FI_EINVAL);
    }
    if (a->info->ep_attr->max_msg_size < SIZE_MAX)
        EXPECT("fi_send of too much", fi_send(a->ep, memory, a->info->ep_attr->max_msg_size + 1, a->region.descriptor, a->peer, NULL), -FI_EMSGSIZE, -FI_EINVAL);
    EXPECT("fi_inject of too much", fi_inject(a->ep, memory, a->info->tx_attr->inject_size + 1, a->peer), -FI_EINVAL, -FI_EMSGSIZE);
    EXPECT("fi_send to nobody", fi_send(a->ep, memory, 8, a->region.descriptor, FI_ADDR_NOTAVAIL, NULL), -FI_EINVAL, -FI_EADDRNOTAVAIL, -FI_EHOSTUNREACH);
    EXPECT("fi_send to a handle that never was", fi_send(a->ep, memory, 8, a->region.descriptor, 4000, NULL), -FI_EINVAL, -FI_EADDRNOTAVAIL, -FI_EHOSTUNREACH);
    EXPECT("fi_send of no memory", fi_send(a->ep, NULL, 8, a->region.descriptor, a->peer, NULL), -FI_EINVAL, -FI_EFAULT);
    /* Some programs receive messages without bytes so. */
    int context;
    long code = fi_recv(a->ep, NULL, 8, a->region.descriptor, FI_ADDR_UNSPEC, &context);
    EXPECT("fi_recv into no memory", code, -FI_EINVAL, -FI_EFAULT, 0);
    struct event cancelled;
    if (!code && EXPECT("fi_cancel", fi_cancel(&a->ep->fid, &context), 0))
        FINISH_ERROR(&a->receive, FI_ECANCELED, &cancelled, "it is cancelled");
    struct fi_msg message = { .msg_iov = pieces, .desc = descriptors, .iov_count = 1, .addr = a->peer };
    EXPECT("fi_sendmsg with unknown flags", fi_sendmsg(a->ep, &message, 1ULL << 57), -FI_EBADFLAGS, -FI_EINVAL, -FI_EOPNOTSUPP);
    EXPECT("fi_recvmsg with unknown flags", fi_recvmsg(a->ep, &message, 1ULL << 57), -FI_EBADFLAGS, -FI_EINVAL, -FI_EOPNOTSUPP);
    EXPECT("fi_sendmsg without a message", fi_sendmsg(a->ep, NULL, 0), -FI_EINVAL);
}

static void walk_directed(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_DIRECTED_RECV | FI_SOURCE);
    static struct side a, b_side, c;
    struct side *b = &b_side;
    char from_a, from_c, sent;
    char name[256];
    size_t length = sizeof(name);
    fi_addr_t c_at_b = 0, b_at_c = 0;
    struct event event;
    if (!pair_open(&a, b, &options, "directed receives"))
        return;
    if (!EXPECT("a third one", side_open(&c, &options), 0))
        goto out;
    EXPECT("fi_getname", fi_getname(&c.ep->fid, name, &length), 0);
    EXPECT("fi_av_insert", fi_av_insert(b->av, name, 1, &c_at_b, 0, NULL), 1);
    length = sizeof(name);
    EXPECT("fi_getname", fi_getname(&b->ep->fid, name, &length), 0);
    EXPECT("fi_av_insert", fi_av_insert(c.av, name, 1, &b_at_c, 0, NULL), 1);
    EXPECT("fi_recv from the third", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, c_at_b, &from_c), 0);
    EXPECT("fi_recv from the first", fi_recv(b->ep, RECEIVES + 64, 64, b->region.descriptor, b->peer, &from_a), 0);
    EXPECT("fi_send by the first", POST(fi_send(a.ep, a.memory, 8, a.region.descriptor, a.peer, &sent)), 0);
    if (TAKE(&b->receive, &event, "a message from the first"))
        CHECK("its receive and its source", event.entry.op_context == &from_a && event.source == b->peer);
    EXPECT("fi_send by the third", POST(fi_send(c.ep, c.memory, 8, c.region.descriptor, b_at_c, &sent)), 0);
    if (TAKE(&b->receive, &event, "a message from the third"))
        CHECK("its receive and its source", event.entry.op_context == &from_c && event.source == c_at_b);
    FINISH(&a.transmit, &sent, "the send of the first ends");
    FINISH(&c.transmit, &sent, "the send of the third ends");
    side_close(&c);
out:
    pair_close(&a, b);
}

static void walk_selective(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side a, b_side;
    struct side *b = &b_side;
    char sent, received;
    options.bind_flags = FI_SELECTIVE_COMPLETION;
    if (!pair_open(&a, b, &options, "selective completions"))
        return;
    fill(a.memory, 64, 21);
    struct iovec out = { a.memory, 64 }, in = { RECEIVES, 64 };
    struct fi_msg send = { .msg_iov = &out, .desc = &a.region.descriptor, .iov_count = 1, .addr = a.peer, .context = &sent };
    struct fi_msg receive = { .msg_iov = &in, .desc = &b->region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &received };
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, a.peer, &sent)), 0);
    DRIVE_UNTIL("the message arrives", filled(RECEIVES, 64, 21));
    CHECK("no completions where none were asked for", nothing_comes(&a.transmit) && nothing_comes(&b->receive));
    memset(RECEIVES, 0, 64);
    EXPECT("fi_recvmsg with FI_COMPLETION", fi_recvmsg(b->ep, &receive, FI_COMPLETION), 0);
    EXPECT("fi_sendmsg with FI_COMPLETION", POST(fi_sendmsg(a.ep, &send, FI_COMPLETION)), 0);
    arrives(b, &received, 64, 21, 0, 0, "a completion where one was asked for");
    FINISH(&a.transmit, &sent, "and of the send");
    pair_close(&a, b);
}

void walk_message(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side a, b;
    options.message_order = FI_ORDER_SAS;
    if (pair_open(&a, &b, &options, "two endpoints with messages")) {
        walk_forms(&a, &b);
        walk_receives(&a, &b);
        walk_limits(&a);
        pair_close(&a, &b);
    }
    walk_directed();
    walk_selective();
}

void walk_multi_receive(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_MULTI_RECV);
    static struct side a, b_side;
    struct side *b = &b_side;
    struct event event;
    char received;
    size_t least = 256;
    if (!pair_open(&a, b, &options, "multi-receive"))
        return;
    EXPECT("FI_OPT_MIN_MULTI_RECV", fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)), 0);
    struct iovec in = { RECEIVES, 1024 };
    struct fi_msg receive = { .msg_iov = &in, .desc = &b->region.descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &received };
    EXPECT("fi_recvmsg with FI_MULTI_RECV", fi_recvmsg(b->ep, &receive, FI_MULTI_RECV | FI_COMPLETION), 0);
    unsigned char *expected = RECEIVES;
    bool released = false;
    for (unsigned i = 0; i < 4; i++) {
        fill(a.memory, 200, 30 + i);
        EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 200, a.region.descriptor, a.peer, NULL)), 0);
        TAKE(&a.transmit, &event, "its send ends");
        if (!TAKE(&b->receive, &event, "a message in a multi-receive"))
            break;
        CHECK("its context", event.error == 0 && event.entry.op_context == &received);
        CHECK("its length", event.entry.len == 200);
        CHECK("its place", event.entry.buf == expected);
        CHECK("its bytes", filled(expected, 200, 30 + i));
        expected += 200;
        released = event.entry.flags & FI_MULTI_RECV;
        CHECK("the buffer is not released early", !released || i == 3);
    }
    /* 1024 - 800 < 256: the buffer is given back, in the last completion or in one of its own. */
    if (!released && TAKE(&b->receive, &event, "the buffer is released"))
        CHECK("with FI_MULTI_RECV and its context", (event.entry.flags & FI_MULTI_RECV) && event.entry.op_context == &received);
    EXPECT("fi_recvmsg with FI_MULTI_RECV", fi_recvmsg(b->ep, &receive, FI_MULTI_RECV | FI_COMPLETION), 0);
    EXPECT("fi_cancel of a multi-receive", fi_cancel(&b->ep->fid, &received), 0);
    FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "it is cancelled");
    pair_close(&a, b);
}

void walk_counters(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA);
    static struct side a, b_side;
    struct side *b = &b_side;
    struct event event;
    char context;
    options.counters = true;
    options.caps |= FI_RMA_EVENT;
    bool remote = true;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    if (fi_getinfo(API_VERSION, NULL, NULL, 0, hints, &info)) {
        absent("RMA events", "not offered");
        options.caps &= ~FI_RMA_EVENT;
        remote = false;
    }
    fi_freeinfo(info);
    fi_freeinfo(hints);
    if (!pair_open(&a, b, &options, "counters of an endpoint"))
        return;
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, &context), 0);
    EXPECT("fi_send", POST(fi_send(a.ep, a.memory, 64, a.region.descriptor, a.peer, &context)), 0);
    DRIVE_UNTIL("a send is counted", fi_cntr_read(a.counters[SENT]) == 1);
    DRIVE_UNTIL("a receive is counted", fi_cntr_read(b->counters[RECEIVED]) == 1);
    EXPECT("fi_inject", POST(fi_inject(a.ep, a.memory, 1, a.peer)), 0);
    DRIVE_UNTIL("an inject is counted", fi_cntr_read(a.counters[SENT]) == 2);
    EXPECT("fi_write", POST(fi_write(a.ep, a.memory, 64, a.region.descriptor, a.peer, b->region.base, b->region.key, &context)), 0);
    DRIVE_UNTIL("a write is counted", fi_cntr_read(a.counters[WRITTEN]) == 1);
    EXPECT("fi_read", POST(fi_read(a.ep, a.memory, 64, a.region.descriptor, a.peer, b->region.base, b->region.key, &context)), 0);
    DRIVE_UNTIL("a read is counted", fi_cntr_read(a.counters[READ_DONE]) == 1);
    if (remote) {
        DRIVE_UNTIL("a write of a peer is counted", fi_cntr_read(b->counters[REMOTE_WRITTEN]) == 1);
        DRIVE_UNTIL("a read of a peer is counted", fi_cntr_read(b->counters[REMOTE_READ]) == 1);
    }
    if (!gentle) {
        EXPECT("fi_write with a wrong key", POST(fi_write(a.ep, a.memory, 64, a.region.descriptor, a.peer, b->region.base, b->region.key ^ 0x7777, &context)), 0);
        DRIVE_UNTIL("its error is counted", fi_cntr_readerr(a.counters[WRITTEN]) == 1);
        CHECK("and is no success", fi_cntr_read(a.counters[WRITTEN]) == 1);
    }
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, &context), 0);
    DRIVE_UNTIL("the inject is received", fi_cntr_read(b->counters[RECEIVED]) == 2);
    while (a.transmit.head != a.transmit.tail)
        TAKE(&a.transmit, &event, "all completions are there too");
    pair_close(&a, b);
}

/* Sends without receives until the queue is full; then all of them arrive. */
void walk_full(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side a, b_side;
    struct side *b = &b_side;
    struct event event;
    enum { MOST = 200000, BYTES = 1024 };
    if (!pair_open(&a, b, &options, "two endpoints"))
        return;
    uint64_t posted = 0, received = 0, ended = 0;
    ssize_t code = 0;
    while (posted < MOST && (code = fi_send(a.ep, a.memory, BYTES, a.region.descriptor, a.peer, NULL)) == 0)
        posted++;
    CHECK("sends that nobody reads end in -FI_EAGAIN", code == -FI_EAGAIN);
    CHECK("at least as many as the queue has places", posted >= a.info->tx_attr->size / 2);
    uint64_t receives = 0;
    double end = seconds() + HANG_GUARD_S;
    while (received < posted && seconds() < end) {
        if (receives < posted && fi_recv(b->ep, RECEIVES, BYTES, b->region.descriptor, FI_ADDR_UNSPEC, NULL) == 0)
            receives++;
        drive();
        while (b->receive.head != b->receive.tail) {
            TAKE(&b->receive, &event, "a receive");
            received += event.error == 0;
        }
        while (a.transmit.head != a.transmit.tail) {
            TAKE(&a.transmit, &event, "a send");
            ended += event.error == 0;
        }
    }
    CHECK("all that were posted arrive", received == posted);
    while (ended < posted && TAKE(&a.transmit, &event, "a send"))
        ended += event.error == 0;
    CHECK("and all sends end", ended == posted);
    EXPECT("then there is room again", POST(fi_send(a.ep, a.memory, 8, a.region.descriptor, a.peer, NULL)), 0);
    uint64_t waiting = 0;
    while (waiting < MOST && (code = fi_recv(b->ep, RECEIVES, BYTES, b->region.descriptor, FI_ADDR_UNSPEC, NULL)) == 0)
        waiting++;
    CHECK("receives that nobody serves end in -FI_EAGAIN", code == -FI_EAGAIN || waiting == MOST);
    CHECK("at least as many as the queue has places", waiting >= b->info->rx_attr->size / 2);
    TAKE(&b->receive, &event, "the first of them is served");
    TAKE(&a.transmit, &event, "and its send ends");
    pair_close(&a, b);
}
