/* What programs get wrong and the interface lets them: formats of addresses,
 * sources without a name, handles after their end, buffers that are not
 * aligned or lie over each other, raw keys, counters of regions. */
#include "walk.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/* ---- formats of addresses ---- */

static int open_at(struct side *side, const struct side_options *options, uint32_t format, const char *node)
{
    struct fi_info *hints = hints_for(options), *info = NULL;
    hints->addr_format = format;
    int code = fi_getinfo(API_VERSION, node, NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code)
        return code;
    CHECK("the format that was asked for", info->addr_format == format);
    code = side_open_with(side, info, options);
    fi_freeinfo(info);
    return code;
}

/* One message in each direction between two sides whose addresses have this format. */
static void walk_format(uint32_t format, const char *node, const char *name)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_SOURCE);
    static struct side sides[2];
    unsigned char names[2][256];
    struct event event;
    int code = open_at(&sides[0], &options, format, node);
    if (code == -FI_ENODATA) {
        absent(name, fi_strerror(-code));
        return;
    }
    if (!EXPECT(name, code, 0))
        return;
    if (!EXPECT(name, open_at(&sides[1], &options, format, node), 0)) {
        side_close(&sides[0]);
        return;
    }
    for (int i = 0; i < 2; i++) {
        size_t length = 3, need;
        EXPECT("fi_getname into too little", fi_getname(&sides[i].ep->fid, names[i], &length), -FI_ETOOSMALL);
        need = length;
        length = sizeof(names[i]);
        EXPECT("fi_getname", fi_getname(&sides[i].ep->fid, names[i], &length), 0);
        CHECK("the length that was told", length == need && length <= sizeof(names[i]));
        if (format == FI_ADDR_STR)
            CHECK("a text with its end", strlen((char *)names[i]) + 1 == length && !strncmp((char *)names[i], "fi_sockaddr_in", 14));
        else if (format == FI_SOCKADDR_IN6)
            CHECK("a sockaddr_in6", length == sizeof(struct sockaddr_in6));
    }
    for (int i = 0; i < 2; i++) {
        char *texts[1] = { (char *)names[!i] };
        const void *addresses = format == FI_ADDR_STR ? (const void *)texts : (const void *)names[!i];
        unsigned char back[256];
        size_t length = sizeof(back);
        EXPECT("fi_av_insert", fi_av_insert(sides[i].av, addresses, 1, &sides[i].peer, 0, NULL), 1);
        if (EXPECT("fi_av_lookup", fi_av_lookup(sides[i].av, sides[i].peer, back, &length), 0))
            CHECK("it is what was inserted", !memcmp(back, names[!i], format == FI_ADDR_STR ? strlen((char *)names[!i]) + 1 : length));
        char text[128];
        length = sizeof(text);
        CHECK("fi_av_straddr", fi_av_straddr(sides[i].av, names[!i], text, &length) == text && length > 4 && strstr(text, strchr(node, ':') ? "::1" : "127."));
    }
    for (int i = 0; i < 2; i++) {
        struct side *from = &sides[i], *to = &sides[!i];
        fill(from->memory, 5000, 7);
        EXPECT("fi_recv", fi_recv(to->ep, to->memory + 8192, 8192, to->region.descriptor, FI_ADDR_UNSPEC, &event), 0);
        EXPECT("fi_send", POST(fi_send(from->ep, from->memory, 5000, from->region.descriptor, from->peer, from)), 0);
        if (TAKE(&to->receive, &event, "it arrives"))
            CHECK("from whom", event.source == to->peer && event.entry.len == 5000 && filled(to->memory + 8192, 5000, 7));
        FINISH(&from->transmit, from, "it is sent");
    }
    if (format == FI_ADDR_STR) {
        char *bad[] = { "", "fi_sockaddr_in://", "fi_sockaddr_in://300.1.1.1:5", "nonsense", "fi_sockaddr_in://127.0.0.1:99999" };
        fi_addr_t handle;
        for (size_t i = 0; i < COUNT_OF(bad); i++)
            EXPECT("fi_av_insert of a text that is no address", fi_av_insert(sides[0].av, &bad[i], 1, &handle, 0, NULL), 0, -FI_EINVAL);
    } else {
        struct sockaddr_un_like {
            uint16_t family;
            char rest[64];
        } bad = { .family = AF_UNIX };
        fi_addr_t handle;
        EXPECT("fi_av_insert of another family", fi_av_insert(sides[0].av, &bad, 1, &handle, 0, NULL), 0, -FI_EINVAL);
    }
    pair_close(&sides[0], &sides[1]);
}

void walk_formats(void)
{
    walk_format(FI_SOCKADDR_IN6, "::1", "addresses as sockaddr_in6");
    walk_format(FI_SOCKADDR, "127.0.0.1", "addresses as any sockaddr");
    walk_format(FI_ADDR_STR, "127.0.0.1", "addresses as text");
    walk_format(FI_ADDR_STR, "::1", "addresses of IPv6 as text");
}

/* ---- sources without a name ---- */

/* A program that takes all that is offered without hints has not asked for errors in place of messages whose source has
 * no name. */
static void walk_unknown_sources_unasked(void)
{
    struct fi_info *all = NULL, *offered;
    static struct side a, b;
    char name[256];
    size_t length = sizeof(name);
    struct event event;

    if (!EXPECT("without hints", fi_getinfo(API_VERSION, NULL, NULL, 0, NULL, &all), 0))
        return;
    for (offered = all; offered; offered = offered->next)
        if (strstr(offered->fabric_attr->prov_name, provider) && offered->ep_attr->type == FI_EP_RDM)
            break;
    if (!offered) {
        absent("rdm without hints", "not offered");
        fi_freeinfo(all);
        return;
    }
    CHECK("FI_SOURCE_ERR is for who asks for it", !(offered->caps & FI_SOURCE_ERR));
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, offered->caps);
    fi_freeinfo(all);
    if (!EXPECT("all that is offered", side_open(&a, &options), 0))
        return;
    if (EXPECT("another", side_open(&b, &options), 0)) {
        EXPECT("fi_getname", fi_getname(&a.ep->fid, name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(b.av, name, 1, &b.peer, 0, NULL), 1);
        fill(b.memory, 100, 4);
        EXPECT("fi_trecv", fi_trecv(a.ep, a.memory, 4096, a.region.descriptor, FI_ADDR_UNSPEC, 9, 0, &a), 0);
        EXPECT("fi_tsend", POST(fi_tsend(b.ep, b.memory, 100, b.region.descriptor, b.peer, 9, &b)), 0);
        if (TAKE(&a.receive, &event, "a message of somebody unknown"))
            CHECK("it is a message", event.error == 0 && event.entry.op_context == &a && filled(a.memory, 100, 4));
        FINISH(&b.transmit, &b, "it is sent");
        side_close(&b);
    }
    side_close(&a);
}

void walk_unknown_sources(void)
{
    walk_unknown_sources_unasked();
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_SOURCE | FI_SOURCE_ERR);
    static struct side a, b;
    struct sockaddr_in name, other;
    size_t length = sizeof(name);
    struct event event;
    int code = side_open(&a, &options);
    if (code == -FI_ENODATA) {
        absent("FI_SOURCE_ERR", "not offered");
        return;
    }
    if (!EXPECT("FI_SOURCE_ERR", code, 0))
        return;
    if (EXPECT("another", side_open(&b, &options), 0)) {
        /* Only b knows a. */
        EXPECT("fi_getname", fi_getname(&a.ep->fid, &name, &length), 0);
        EXPECT("fi_av_insert", fi_av_insert(b.av, &name, 1, &b.peer, 0, NULL), 1);
        fill(b.memory, 100, 3);
        EXPECT("fi_trecv", fi_trecv(a.ep, a.memory, 4096, a.region.descriptor, FI_ADDR_UNSPEC, 9, 0, &event), 0);
        EXPECT("fi_tsend", POST(fi_tsend(b.ep, b.memory, 100, b.region.descriptor, b.peer, 9, &b)), 0);
        struct fi_cq_tagged_entry entry;
        struct fi_cq_err_entry error;
        fi_addr_t source;
        ssize_t got;
        double end = seconds() + HANG_GUARD_S;
        /* Not by the inbox, which keeps no addresses: the other side makes progress without giving away what ended. */
        while ((got = fi_cq_readfrom(a.receive.cq, &entry, 1, &source)) == -FI_EAGAIN && seconds() < end)
            fi_cq_read(b.transmit.cq, &entry, 0);
        EXPECT("a message of somebody unknown", got, -FI_EAVAIL);
        memset(&error, 0, sizeof(error));
        memset(&other, 0, sizeof(other));
        error.err_data = &other;
        error.err_data_size = sizeof(other);
        EXPECT("fi_cq_readerr", fi_cq_readerr(a.receive.cq, &error, 0), 1);
        CHECK("what it says", error.err == FI_EADDRNOTAVAIL && error.op_context == &event && error.len == 100 && error.tag == 9 && error.flags & FI_TAGGED);
        FINISH(&b.transmit, &b, "it is sent");
        CHECK("the data has come", filled(a.memory, 100, 3));
        CHECK("the source's address", error.err_data_size == sizeof(other) && other.sin_family == AF_INET);
        EXPECT("the address goes into the vector as it is", fi_av_insert(a.av, &other, 1, &a.peer, 0, NULL), 1);
        EXPECT("fi_recv", fi_recv(a.ep, a.memory, 4096, a.region.descriptor, FI_ADDR_UNSPEC, &event), 0);
        EXPECT("fi_send", POST(fi_send(b.ep, b.memory, 100, b.region.descriptor, b.peer, &b)), 0);
        if (TAKE(&a.receive, &event, "another message"))
            CHECK("now it has a name", event.error == 0 && event.source == a.peer);
        FINISH(&b.transmit, &b, "it is sent");
        side_close(&b);
    }
    side_close(&a);
}

/* ---- handles after their end ---- */

void walk_stale(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
    static struct side side;
    if (gentle)
        return; /* others crash, and may */
    options.counters = true;
    int code = side_open(&side, &options);
    if (code == -FI_ENODATA) {
        absent("an rdm endpoint", "not offered");
        return;
    }
    if (!EXPECT("an rdm endpoint", code, 0))
        return;
    struct fid_ep *ep = side.ep;
    struct fid_cq *cq = side.transmit.cq;
    struct fid_av *av = side.av;
    struct fid_cntr *counter = side.counters[SENT];
    struct fid_mr *mr = side.region.mr;
    struct fid_domain *domain = side.domain;
    struct fid_fabric *fabric = side.fabric;
    struct fid_eq *eq = NULL;
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
    struct fi_cq_attr cq_attr = { .size = 16 };
    struct fi_info *info = fi_dupinfo(side.info);
    unsigned char memory[64];
    void *descriptor = fi_mr_desc(mr);
    char name[256];
    size_t length = sizeof(name);
    fi_addr_t handle = 0;
    uint64_t base, key_size = 8;
    EXPECT("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL), 0);
    EXPECT("fi_close of the event queue", fi_close(&eq->fid), 0);
    side_close(&side);
    EXPECT("fi_send on a closed endpoint", fi_send(ep, memory, 8, NULL, 0, NULL), -FI_EBADF);
    EXPECT("with a region's descriptor", fi_send(ep, memory, 8, descriptor, 0, NULL), -FI_EBADF);
    EXPECT("fi_sendmsg", fi_sendmsg(ep, &(struct fi_msg){ 0 }, 0), -FI_EBADF);
    EXPECT("fi_inject", fi_inject(ep, memory, 8, 0), -FI_EBADF);
    EXPECT("fi_recv", fi_recv(ep, memory, 8, NULL, 0, NULL), -FI_EBADF);
    EXPECT("fi_tsend", fi_tsend(ep, memory, 8, NULL, 0, 1, NULL), -FI_EBADF);
    EXPECT("fi_trecv", fi_trecv(ep, memory, 8, NULL, 0, 1, 0, NULL), -FI_EBADF);
    EXPECT("fi_write", fi_write(ep, memory, 8, NULL, 0, 0, 1, NULL), -FI_EBADF);
    EXPECT("fi_read", fi_read(ep, memory, 8, NULL, 0, 0, 1, NULL), -FI_EBADF);
    EXPECT("fi_atomic", fi_atomic(ep, memory, 1, NULL, 0, 0, 1, FI_UINT64, FI_SUM, NULL), -FI_EBADF);
    EXPECT("fi_cancel", fi_cancel(&ep->fid, NULL), -FI_EBADF);
    EXPECT("fi_enable", fi_enable(ep), -FI_EBADF);
    EXPECT("fi_getname", fi_getname(&ep->fid, name, &length), -FI_EBADF);
    EXPECT("fi_setopt", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &length, sizeof(length)), -FI_EBADF);
    EXPECT("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_SEND), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&ep->fid), -FI_EBADF);
    EXPECT("fi_cq_read on a closed queue", fi_cq_read(cq, memory, 1), -FI_EBADF);
    EXPECT("fi_cq_readerr", fi_cq_readerr(cq, (struct fi_cq_err_entry *)(void *)memory, 0), -FI_EBADF);
    EXPECT("fi_cq_sread", fi_cq_sread(cq, memory, 1, NULL, 0), -FI_EBADF);
    EXPECT("fi_cq_signal", fi_cq_signal(cq), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&cq->fid), -FI_EBADF);
    EXPECT("fi_av_insert into a closed vector", fi_av_insert(av, name, 1, &handle, 0, NULL), -FI_EBADF);
    EXPECT("fi_av_remove", fi_av_remove(av, &handle, 1, 0), -FI_EBADF);
    EXPECT("fi_av_lookup", fi_av_lookup(av, handle, name, &length), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&av->fid), -FI_EBADF);
    EXPECT("fi_cntr_add to a closed counter", fi_cntr_add(counter, 1), -FI_EBADF);
    EXPECT("fi_cntr_set", fi_cntr_set(counter, 1), -FI_EBADF);
    EXPECT("fi_cntr_wait", fi_cntr_wait(counter, 1, 0), -FI_EBADF);
    CHECK("fi_cntr_read", fi_cntr_read(counter) == 0);
    EXPECT("fi_close of it once more", fi_close(&counter->fid), -FI_EBADF);
    EXPECT("fi_mr_raw_attr of a closed region", fi_mr_raw_attr(mr, &base, memory, &key_size, 0), -FI_EBADF);
    EXPECT("fi_mr_bind", fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&mr->fid), -FI_EBADF);
    EXPECT("fi_endpoint in a closed domain", fi_endpoint(domain, info, &ep, NULL), -FI_EBADF);
    EXPECT("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL), -FI_EBADF);
    EXPECT("fi_mr_reg", fi_mr_reg(domain, memory, 64, FI_REMOTE_READ, 0, 1, 0, &mr, NULL), -FI_EBADF);
    EXPECT("fi_query_atomic", fi_query_atomic(domain, FI_UINT64, FI_SUM, &(struct fi_atomic_attr){ 0 }, 0), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&domain->fid), -FI_EBADF);
    EXPECT("fi_domain in a closed fabric", fi_domain(fabric, info, &domain, NULL), -FI_EBADF);
    EXPECT("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL), -FI_EBADF);
    EXPECT("fi_close of it once more", fi_close(&fabric->fid), -FI_EBADF);
    fi_freeinfo(info);
}

/* ---- buffers ---- */

static void walk_unaligned(struct side *a, struct side *b)
{
    /* Lengths around the limits of the ways that messages go. */
    static const size_t lengths[] = { 1, 7, 63, 65, 1023, 4097, 65537, 300001 };
    struct event event;
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (size_t from = 1; from < 8; from += 2) {
            size_t to = 8 - from, length = lengths[i];
            unsigned char *target = b->memory + 1048576 + to;
            fill(a->memory + from, length, (unsigned)(i * 8 + from));
            memset(target - 1, 0xee, length + 2);
            EXPECT("fi_recv into an odd place", fi_recv(b->ep, target, length, b->region.descriptor, FI_ADDR_UNSPEC, target), 0);
            EXPECT("fi_send from an odd place", POST(fi_send(a->ep, a->memory + from, length, a->region.descriptor, a->peer, a)), 0);
            FINISH(&b->receive, target, "it arrives");
            FINISH(&a->transmit, a, "it is sent");
            CHECK("its bytes", filled(target, length, (unsigned)(i * 8 + from)) && target[-1] == 0xee && target[length] == 0xee);
            memset(target - 1, 0xee, length + 2);
            EXPECT("fi_write to an odd place",
                   POST(fi_write(a->ep, a->memory + from, length, a->region.descriptor, a->peer, b->region.base + 1048576 + to, b->region.key, a)), 0);
            FINISH(&a->transmit, a, "it is written");
            DRIVE_UNTIL("the last byte is there", target[length - 1] != 0xee || filled(target, length, (unsigned)(i * 8 + from)));
            CHECK("its bytes", filled(target, length, (unsigned)(i * 8 + from)) && target[-1] == 0xee && target[length] == 0xee);
            memset(a->memory, 0, length + 16);
            EXPECT("fi_read into an odd place",
                   POST(fi_read(a->ep, a->memory + to, length, a->region.descriptor, a->peer, b->region.base + 1048576 + to, b->region.key, a)), 0);
            FINISH(&a->transmit, a, "it is read");
            CHECK("its bytes", filled(a->memory + to, length, (unsigned)(i * 8 + from)) && a->memory[to - 1] == 0 && a->memory[to + length] == 0);
        }
    /* Operands of atomics may lie anywhere; the target has to be aligned, or is refused. */
    uint64_t one = 1;
    uint64_t *sum = (uint64_t *)(void *)(b->memory + 4096);
    *sum = 41;
    memcpy(a->memory + 3, &one, 8);
    EXPECT("fi_fetch_atomic with odd buffers",
           POST(fi_fetch_atomic(a->ep, a->memory + 3, 1, a->region.descriptor, a->memory + 101, a->region.descriptor, a->peer, b->region.base + 4096, b->region.key,
                                FI_UINT64, FI_SUM, a)),
           0);
    FINISH(&a->transmit, a, "it ends");
    memcpy(&one, a->memory + 101, 8);
    CHECK("the sum and what was there", *sum == 42 && one == 41);
    int code = (int)POST(fi_atomic(a->ep, a->memory + 3, 1, a->region.descriptor, a->peer, b->region.base + 4099, b->region.key, FI_UINT64, FI_SUM, a));
    EXPECT("fi_atomic on an odd target", code, 0, -FI_EINVAL);
    if (!code)
        TAKE(&a->transmit, &event, "it ends, well or not");
}

/* What the result holds is open; that it ends, and that nothing beyond is touched, is not. */
static void walk_overlapping(struct side *a, struct side *b)
{
    struct event event;
    struct iovec pieces[3] = { { a->memory, 300 }, { a->memory + 100, 300 }, { a->memory, 300 } };
    void *descriptors[3] = { a->region.descriptor, a->region.descriptor, a->region.descriptor };
    fill(a->memory, 400, 1);
    EXPECT("fi_recv", fi_recv(b->ep, b->memory, 900, b->region.descriptor, FI_ADDR_UNSPEC, &event), 0);
    EXPECT("fi_sendv of pieces over each other", POST(fi_sendv(a->ep, pieces, descriptors, 3, a->peer, a)), 0);
    FINISH(&b->receive, &event, "it arrives");
    FINISH(&a->transmit, a, "it is sent");
    CHECK("all three pieces", filled(b->memory, 300, 1) && !memcmp(b->memory + 300, a->memory + 100, 300) && filled(b->memory + 600, 300, 1));
    struct iovec into[2] = { { b->memory, 600 }, { b->memory + 300, 600 } };
    void *descriptors_into[2] = { b->region.descriptor, b->region.descriptor };
    memset(b->memory, 0xee, 2048);
    EXPECT("fi_recvv into pieces over each other", fi_recvv(b->ep, into, descriptors_into, 2, FI_ADDR_UNSPEC, &event), 0);
    EXPECT("fi_send", POST(fi_send(a->ep, a->memory, 1200, a->region.descriptor, a->peer, a)), 0);
    FINISH(&b->receive, &event, "it arrives");
    FINISH(&a->transmit, a, "it is sent");
    CHECK("nothing behind it", b->memory[900] == 0xee && !memcmp(b->memory, a->memory, 300));
    /* Two receives in the same place. */
    for (int i = 0; i < 2; i++)
        EXPECT("fi_recv in the same place", fi_recv(b->ep, b->memory, 4096, b->region.descriptor, FI_ADDR_UNSPEC, &event), 0);
    for (int i = 0; i < 2; i++)
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, 4096, a->region.descriptor, a->peer, a)), 0);
    for (int i = 0; i < 2; i++) {
        FINISH(&b->receive, &event, "it arrives");
        FINISH(&a->transmit, a, "it is sent");
    }
    CHECK("its bytes", !memcmp(b->memory, a->memory, 4096));
}

/* Sends, writes and reads of an endpoint to itself, where source and target lie over each other. */
static void walk_over_itself(struct side *a)
{
    char name[256];
    size_t length = sizeof(name);
    fi_addr_t self = 0;
    static const size_t lengths[] = { 200, 5000, 200000 };
    char sent, received;
    EXPECT("fi_getname", fi_getname(&a->ep->fid, name, &length), 0);
    EXPECT("fi_av_insert of itself", fi_av_insert(a->av, name, 1, &self, 0, NULL), 1);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        memset(a->memory, 0x11, lengths[i] * 2);
        a->memory[lengths[i] + 100] = 0xee;
        EXPECT("fi_recv over what is sent", fi_recv(a->ep, a->memory + 100, lengths[i], a->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, lengths[i], a->region.descriptor, self, &sent)), 0);
        FINISH(&a->receive, &received, "it arrives");
        FINISH(&a->transmit, &sent, "it is sent");
        EXPECT("fi_write over itself", POST(fi_write(a->ep, a->memory, lengths[i], a->region.descriptor, self, a->region.base + 100, a->region.key, &sent)), 0);
        FINISH(&a->transmit, &sent, "it ends");
        EXPECT("fi_read over itself", POST(fi_read(a->ep, a->memory + 100, lengths[i], a->region.descriptor, self, a->region.base, a->region.key, &sent)), 0);
        FINISH(&a->transmit, &sent, "it ends");
        CHECK("nothing but the same bytes", a->memory[100] == 0x11 && a->memory[lengths[i] + 99] == 0x11 && a->memory[lengths[i] + 100] == 0xee);
    }
}

void walk_buffers(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA | FI_ATOMIC);
    static struct side a, b;
    options.transmit_flags = FI_DELIVERY_COMPLETE;
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    walk_unaligned(&a, &b);
    if (a.info->tx_attr->iov_limit >= 3)
        walk_overlapping(&a, &b);
    walk_over_itself(&a);
    pair_close(&a, &b);
}

/* ---- keys and counters of regions ---- */

void walk_regions(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA | FI_ATOMIC | FI_RMA_EVENT);
    static struct side a, b;
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fid_cntr *writes = NULL, *reads = NULL;
    struct fid_mr *mr = NULL;
    unsigned char raw[64];
    size_t size = 4;
    uint64_t base = 1, key = 0;
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    if (!EXPECT("fi_mr_reg", fi_mr_reg(b.domain, b.memory, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 77, FI_RMA_EVENT, &mr, NULL), 0))
        goto out;
    EXPECT("fi_mr_raw_attr into too little", fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_ETOOSMALL);
    CHECK("the need", size == b.info->domain_attr->mr_key_size || size == 8);
    EXPECT("fi_mr_raw_attr", fi_mr_raw_attr(mr, &base, raw, &size, 0), 0);
    EXPECT("fi_mr_map_raw", fi_mr_map_raw(a.domain, base, raw, size, &key, 0), 0);
    EXPECT("fi_mr_map_raw of half a key", fi_mr_map_raw(a.domain, base, raw, 3, &key, 0), -FI_EINVAL);
    EXPECT("fi_mr_map_raw without a key", fi_mr_map_raw(a.domain, base, NULL, size, &key, 0), -FI_EINVAL);
    EXPECT("fi_cntr_open", fi_cntr_open(b.domain, &attr, &writes, NULL), 0);
    EXPECT("fi_cntr_open", fi_cntr_open(b.domain, &attr, &reads, NULL), 0);
    EXPECT("fi_mr_bind with nothing to count", fi_mr_bind(mr, &writes->fid, 0), -FI_EINVAL);
    EXPECT("fi_mr_bind with wrong flags", fi_mr_bind(mr, &writes->fid, FI_SEND), -FI_EINVAL, -FI_EBADFLAGS);
    EXPECT("fi_mr_bind to a queue", fi_mr_bind(mr, &b.receive.cq->fid, FI_REMOTE_WRITE), -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_mr_bind to nothing", fi_mr_bind(mr, NULL, FI_REMOTE_WRITE), -FI_EINVAL);
    EXPECT("fi_mr_bind of writes", fi_mr_bind(mr, &writes->fid, FI_REMOTE_WRITE), 0);
    EXPECT("fi_mr_bind of reads", fi_mr_bind(mr, &reads->fid, FI_REMOTE_READ), 0);
    EXPECT("fi_mr_enable", fi_mr_enable(mr), 0);
    struct iovec piece = { b.memory, 65536 };
    EXPECT("fi_mr_refresh", fi_mr_refresh(mr, &piece, 1, 0), 0, -FI_ENOSYS);
    fill(a.memory, 4096, 4);
    for (int i = 0; i < 5; i++) {
        EXPECT("fi_write with the mapped key", POST(fi_write(a.ep, a.memory, 4096, a.region.descriptor, a.peer, base + 8192, key, &a)), 0);
        FINISH(&a.transmit, &a, "it ends");
    }
    DRIVE_UNTIL("five writes are counted", fi_cntr_read(writes) >= 5);
    CHECK("its bytes", filled(b.memory + 8192, 4096, 4));
    for (int i = 0; i < 3; i++) {
        EXPECT("fi_read", POST(fi_read(a.ep, a.memory, 64, a.region.descriptor, a.peer, base, key, &a)), 0);
        FINISH(&a.transmit, &a, "it ends");
    }
    DRIVE_UNTIL("three reads are counted", fi_cntr_read(reads) >= 3);
    EXPECT("fi_atomic", POST(fi_atomic(a.ep, a.memory, 1, a.region.descriptor, a.peer, base, key, FI_UINT64, FI_SUM, &a)), 0);
    FINISH(&a.transmit, &a, "it ends");
    DRIVE_UNTIL("an atomic counts as a write", fi_cntr_read(writes) >= 6);
    /* Through another region nothing is counted. */
    EXPECT("fi_write elsewhere", POST(fi_write(a.ep, a.memory, 64, a.region.descriptor, a.peer, b.region.base + 131072, b.region.key, &a)), 0);
    FINISH(&a.transmit, &a, "it ends");
    CHECK("nothing else is counted", nothing_comes(&a.transmit) && fi_cntr_read(writes) == 6 && fi_cntr_read(reads) == 3);
    EXPECT("fi_mr_unmap_key", fi_mr_unmap_key(a.domain, key), 0);
    EXPECT("fi_close", fi_close(&mr->fid), 0);
    EXPECT("fi_close of the counter", fi_close(&writes->fid), 0);
    EXPECT("fi_close of the counter", fi_close(&reads->fid), 0);
out:
    pair_close(&a, &b);
}
