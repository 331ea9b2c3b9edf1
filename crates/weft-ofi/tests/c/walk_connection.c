/* Datagrams, and connected endpoints with passive ones and their events. */
#include "walk.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define RECEIVES (b->memory + (1 << 20))

void walk_dgram(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_DGRAM, FI_MSG);
    static struct side a, b_side;
    struct side *b = &b_side;
    char sent, received;
    struct event event;
    if (!pair_open(&a, b, &options, "two datagram endpoints"))
        return;
    /* Some providers want room for a prefix; none of those asked here does. */
    size_t longest = a.info->ep_attr->max_msg_size < 1400 ? a.info->ep_attr->max_msg_size : 1400;
    for (size_t length = 0; length <= longest; length = length ? length * 3 : 1) {
        fill(a.memory, length, (unsigned)length);
        memset(RECEIVES, 0, length);
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 4096, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_send", POST(fi_send(a.ep, a.memory, length, a.region.descriptor, a.peer, &sent)), 0);
        FINISH(&a.transmit, &sent, "a send ends");
        if (TAKE(&b->receive, &event, "a datagram arrives"))
            CHECK("what it is", event.error == 0 && event.entry.len == length && event.entry.op_context == &received && filled(RECEIVES, length, (unsigned)length));
    }
    fill(a.memory, 100, 3);
    struct iovec out[2] = { { a.memory, 40 }, { a.memory + 40, 60 } };
    void *descriptors[2] = { a.region.descriptor, a.region.descriptor };
    if (a.info->tx_attr->iov_limit >= 2) {
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 4096, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_sendv", POST(fi_sendv(a.ep, out, descriptors, 2, a.peer, &sent)), 0);
        FINISH(&a.transmit, &sent, "a send ends");
        if (TAKE(&b->receive, &event, "a datagram of two pieces arrives"))
            CHECK("what it is", event.entry.len == 100 && filled(RECEIVES, 100, 3));
    }
    if (a.info->tx_attr->inject_size >= 16) {
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 4096, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
        EXPECT("fi_inject", POST(fi_inject(a.ep, a.memory, 16, a.peer)), 0);
        if (TAKE(&b->receive, &event, "an injected datagram arrives"))
            CHECK("what it is", event.entry.len == 16 && filled(RECEIVES, 16, 3));
        CHECK("it makes no completion of a send", nothing_comes(&a.transmit));
    }
    EXPECT("fi_send of too much", fi_send(a.ep, a.memory, a.info->ep_attr->max_msg_size + 1, a.region.descriptor, a.peer, NULL), -FI_EMSGSIZE, -FI_EINVAL);
    EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 64, b->region.descriptor, FI_ADDR_UNSPEC, &received), 0);
    EXPECT("fi_cancel", fi_cancel(&b->ep->fid, &received), 0);
    FINISH_ERROR(&b->receive, FI_ECANCELED, &event, "the receive is cancelled");
    pair_close(&a, b);
}

/* ---- connections ---- */

struct connection_event {
    struct fi_eq_cm_entry entry;
    unsigned char data[512];
};

/* The next event of the queue: its kind, or a negative code; the length of its data in *length. */
static long event_of(struct fid_eq *eq, struct connection_event *event, size_t *length)
{
    uint32_t kind = 0;
    double end = seconds() + HANG_GUARD_S;
    memset(event, 0, sizeof(*event));
    ssize_t got;
    do {
        drive();
        got = fi_eq_read(eq, &kind, event, sizeof(*event), 0);
    } while (got == -FI_EAGAIN && seconds() < end);
    if (got < 0)
        return got;
    *length = (size_t)got - sizeof(event->entry);
    return kind;
}

struct listener {
    struct fid_fabric *fabric;
    struct fid_eq *eq;
    struct fid_pep *pep;
    unsigned char address[128];
    size_t address_length;
};

static void walk_pep(struct listener *listener, struct fi_info *info)
{
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    size_t value = 0, length = sizeof(value);
    if (!EXPECT("fi_fabric", fi_fabric(info->fabric_attr, &listener->fabric, NULL), 0) ||
        !EXPECT("fi_eq_open", fi_eq_open(listener->fabric, &attr, &listener->eq, NULL), 0) ||
        !EXPECT("fi_passive_ep", fi_passive_ep(listener->fabric, info, &listener->pep, listener), 0))
        return;
    CHECK("its class", listener->pep->fid.fclass == FI_CLASS_PEP);
    CHECK("its context", listener->pep->fid.context == listener);
    if (!gentle)
        EXPECT("fi_listen without an event queue", fi_listen(listener->pep), -FI_EOPBADSTATE, -FI_ENOEQ, -FI_EINVAL);
    EXPECT("fi_pep_bind", fi_pep_bind(listener->pep, &listener->eq->fid, 0), 0);
    if (!gentle)
        EXPECT("fi_pep_bind to a fabric", fi_pep_bind(listener->pep, &listener->fabric->fid, 0), -FI_EINVAL, -FI_ENOSYS);
    int backlog = 16;
    EXPECT("FI_BACKLOG", fi_control(&listener->pep->fid, FI_BACKLOG, &backlog), 0, -FI_ENOSYS);
    EXPECT("FI_OPT_CM_DATA_SIZE", fi_getopt(&listener->pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &length), 0);
    CHECK("room for data of connections", value >= 16);
    EXPECT("fi_listen", fi_listen(listener->pep), 0);
    listener->address_length = sizeof(listener->address);
    EXPECT("fi_getname", fi_getname(&listener->pep->fid, listener->address, &listener->address_length), 0);
    if (!gentle) {
        EXPECT("fi_listen again", fi_listen(listener->pep), -FI_EOPBADSTATE, -FI_EINVAL, -FI_EALREADY, 0);
        EXPECT("fi_close of the queue in use", fi_close(&listener->eq->fid), -FI_EBUSY);
    }
}

static void listener_close(struct listener *listener)
{
    if (listener->pep)
        EXPECT("fi_close of the listener", fi_close(&listener->pep->fid), 0);
    if (listener->eq)
        EXPECT("fi_close of its queue", fi_close(&listener->eq->fid), 0);
    if (listener->fabric)
        EXPECT("fi_close of its fabric", fi_close(&listener->fabric->fid), 0);
}

static bool walk_connect(struct listener *listener, struct side *a, struct side *b, const struct side_options *options)
{
    static struct connection_event event;
    size_t length = 0;
    char hello[] = "hello", welcome[] = "welcome", address[128];

    if (!gentle) {
        EXPECT("fi_send before it is connected", fi_send(a->ep, a->memory, 8, a->region.descriptor, 0, NULL), -FI_ENOTCONN, -FI_EOPBADSTATE, -FI_EAGAIN);
        EXPECT("fi_shutdown before it is connected", fi_shutdown(a->ep, 0), -FI_ENOTCONN, -FI_EOPBADSTATE, -FI_EINVAL, 0);
    }
    EXPECT("fi_connect", fi_connect(a->ep, listener->address, hello, sizeof(hello)), 0);
    if (!EXPECT("a request comes", event_of(listener->eq, &event, &length), FI_CONNREQ))
        return false;
    CHECK("its listener", event.entry.fid == &listener->pep->fid);
    CHECK("its data", length >= sizeof(hello) && !memcmp(event.data, hello, sizeof(hello)));
    if (!CHECK("its info", event.entry.info && event.entry.info->handle && event.entry.info->ep_attr->type == FI_EP_MSG))
        return false;
    struct fi_info *info = event.entry.info;
    struct side_options on_the_fabric = *options;
    on_the_fabric.fabric = listener->fabric;
    int code = side_open_with(b, info, &on_the_fabric);
    fi_freeinfo(info);
    if (!EXPECT("an endpoint for it", code, 0))
        return false;
    EXPECT("fi_accept", fi_accept(b->ep, welcome, sizeof(welcome)), 0);
    if (!EXPECT("the connecting one is connected", event_of(a->eq, &event, &length), FI_CONNECTED))
        return false;
    CHECK("its endpoint", event.entry.fid == &a->ep->fid);
    CHECK("the data of the other", length >= sizeof(welcome) && !memcmp(event.data, welcome, sizeof(welcome)));
    if (!EXPECT("the accepting one is connected", event_of(b->eq, &event, &length), FI_CONNECTED))
        return false;
    CHECK("its endpoint", event.entry.fid == &b->ep->fid);
    length = sizeof(address);
    EXPECT("fi_getpeer", fi_getpeer(a->ep, address, &length), 0);
    CHECK("the peer's address is as long as the listener's", length == listener->address_length);
    length = sizeof(address);
    EXPECT("fi_getname", fi_getname(&a->ep->fid, address, &length), 0);
    return true;
}

static void walk_connected(struct side *a, struct side *b)
{
    char sent, received;
    struct event event;
    static const size_t lengths[] = { 0, 1, 64, 4096, 1 << 20 };
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        fill(a->memory, lengths[i], 5 + (unsigned)i);
        EXPECT("fi_recv", fi_recv(b->ep, RECEIVES, 1 << 20, b->region.descriptor, 0, &received), 0);
        EXPECT("fi_send", POST(fi_send(a->ep, a->memory, lengths[i], a->region.descriptor, 0, &sent)), 0);
        FINISH(&b->receive, &received, "a message arrives");
        FINISH(&a->transmit, &sent, "its send ends");
        CHECK("its bytes", filled(RECEIVES, lengths[i], 5 + (unsigned)i));
    }
    EXPECT("fi_recv", fi_recv(a->ep, a->memory, 64, a->region.descriptor, 0, &received), 0);
    EXPECT("fi_inject", POST(fi_inject(b->ep, b->memory, 8, 0)), 0);
    FINISH(&a->receive, &received, "a message the other way");
    if (a->info->caps & FI_RMA) {
        fill(a->memory, 4096, 9);
        EXPECT("fi_write", POST(fi_write(a->ep, a->memory, 4096, a->region.descriptor, 0, b->region.base + 8192, b->region.key, &sent)), 0);
        FINISH(&a->transmit, &sent, "a write ends");
        DRIVE_UNTIL("its bytes arrive", filled(b->memory + 8192, 4096, 9));
        memset(a->memory, 0, 4096);
        EXPECT("fi_read", POST(fi_read(a->ep, a->memory, 4096, a->region.descriptor, 0, b->region.base + 8192, b->region.key, &sent)), 0);
        FINISH(&a->transmit, &sent, "a read ends");
        CHECK("its bytes", filled(a->memory, 4096, 9));
    }
    EXPECT("fi_recv of 8 bytes", fi_recv(b->ep, RECEIVES, 8, b->region.descriptor, 0, &received), 0);
    if (!gentle) {
        EXPECT("fi_send of 64 bytes", POST(fi_send(a->ep, a->memory, 64, a->region.descriptor, 0, &sent)), 0);
        FINISH_ERROR(&b->receive, FI_ETRUNC, &event, "the receive is too short");
        TAKE(&a->transmit, &event, "its send ends");
    }
}

static void walk_shutdown(struct side *a, struct side *b)
{
    static struct connection_event event;
    size_t length = 0;
    EXPECT("fi_shutdown", fi_shutdown(a->ep, 0), 0);
    if (EXPECT("the other is told", event_of(b->eq, &event, &length), FI_SHUTDOWN))
        CHECK("its endpoint", event.entry.fid == &b->ep->fid);
    if (!gentle)
        EXPECT("fi_send after the end", POST(fi_send(a->ep, a->memory, 8, a->region.descriptor, 0, NULL)), -FI_ENOTCONN, -FI_EOPBADSTATE, -FI_ESHUTDOWN);
}

/* The error of a connection that was not made: the code of the event, and its data. */
static long refusal_of(struct fid_eq *eq, struct fi_eq_err_entry *error, void *data, size_t length)
{
    static struct connection_event event;
    size_t unused;
    long code = event_of(eq, &event, &unused);
    if (code != -FI_EAVAIL)
        return code;
    memset(error, 0, sizeof(*error));
    error->err_data = data;
    error->err_data_size = length;
    ssize_t got = fi_eq_readerr(eq, error, 0);
    return got == sizeof(*error) ? error->err : got;
}

static void walk_refusals(struct listener *listener, const struct side_options *options)
{
    static struct side a;
    static struct connection_event event;
    struct fi_eq_err_entry error;
    size_t length = 0;
    char no[] = "not today", data[64];

    if (!EXPECT("an endpoint", side_open(&a, options), 0))
        return;
    EXPECT("fi_connect", fi_connect(a.ep, listener->address, NULL, 0), 0);
    if (EXPECT("a request without data comes", event_of(listener->eq, &event, &length), FI_CONNREQ)) {
        EXPECT("fi_reject", fi_reject(listener->pep, event.entry.info->handle, no, sizeof(no)), 0);
        fi_freeinfo(event.entry.info);
        memset(data, 0, sizeof(data));
        EXPECT("it is refused", refusal_of(a.eq, &error, data, sizeof(data)), FI_ECONNREFUSED);
        CHECK("its endpoint", error.fid == &a.ep->fid);
        CHECK("its data", error.err_data_size >= sizeof(no) && !memcmp(error.err_data, no, sizeof(no)));
    }
    side_close(&a);
    if (gentle)
        return;
    if (!EXPECT("an endpoint", side_open(&a, options), 0))
        return;
    unsigned char *long_data = calloc(1, 1 << 20);
    EXPECT("fi_connect with too much data", fi_connect(a.ep, listener->address, long_data, 1 << 20), -FI_EINVAL, -FI_EMSGSIZE);
    free(long_data);
    EXPECT("fi_connect to no address", fi_connect(a.ep, NULL, NULL, 0), -FI_EINVAL);
    /* A listener that is closed: nobody answers. */
    EXPECT("fi_close of the listener", fi_close(&listener->pep->fid), 0);
    listener->pep = NULL;
    int code = fi_connect(a.ep, listener->address, NULL, 0);
    if (code == 0)
        code = -(int)refusal_of(a.eq, &error, data, sizeof(data));
    EXPECT("fi_connect to nobody", code, -FI_ECONNREFUSED, -FI_ETIMEDOUT, -FI_EHOSTUNREACH);
    side_close(&a);
}

/* Closing an endpoint ends its connection too. */
static void walk_close_connected(struct listener *listener, const struct side_options *options)
{
    static struct side a, b;
    static struct connection_event event;
    size_t length;
    if (!EXPECT("an endpoint", side_open(&a, options), 0))
        return;
    if (walk_connect(listener, &a, &b, options)) {
        EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, 0, NULL), 0);
        side_close(&a);
        EXPECT("the other is told of a close", event_of(b.eq, &event, &length), FI_SHUTDOWN);
        side_close(&b);
    } else {
        side_close(&a);
    }
}

/* Messages of any length between connected endpoints. */
static void walk_msg_variable(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_MSG, FI_MSG | FI_TAGGED | FI_VARIABLE_MSG);
    static struct side a, b;
    static struct listener listener;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent("connected endpoints with messages of any length", "not offered");
        return;
    }
    if (!EXPECT("fi_getinfo", code, 0))
        return;
    memset(&listener, 0, sizeof(listener));
    walk_pep(&listener, info);
    if (listener.pep && listener.address_length && EXPECT("an endpoint", side_open(&a, &options), 0)) {
        if (walk_connect(&listener, &a, &b, &options)) {
            walk_variable_messages(&a, &b);
            side_close(&b);
        }
        side_close(&a);
    }
    listener_close(&listener);
    fi_freeinfo(info);
}

/* A server that opens its domain first, with the info by which it listens afterwards. Nobody else uses the address. */
static void walk_domain_before_listener(const struct side_options *options)
{
    char node[32];
    struct listener listener = { 0 };
    struct fid_domain *domain = NULL;
    struct fi_info *hints = hints_for(options), *info = NULL;
    snprintf(node, sizeof(node), "127.%d.%d.%d", 77 + (getpid() >> 16), getpid() >> 8 & 255, getpid() & 255);
    int code = fi_getinfo(API_VERSION, node, "4799", FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (!EXPECT("fi_getinfo with a service", code, 0))
        return;
    if (EXPECT("fi_fabric", fi_fabric(info->fabric_attr, &listener.fabric, NULL), 0) &&
        EXPECT("a domain before its listener", fi_domain(listener.fabric, info, &domain, NULL), 0) &&
        EXPECT("fi_eq_open", fi_eq_open(listener.fabric, &(struct fi_eq_attr){ .wait_obj = FI_WAIT_UNSPEC }, &listener.eq, NULL), 0) &&
        EXPECT("fi_passive_ep", fi_passive_ep(listener.fabric, info, &listener.pep, NULL), 0)) {
        EXPECT("fi_pep_bind", fi_pep_bind(listener.pep, &listener.eq->fid, 0), 0);
        EXPECT("fi_listen at the port of the domain's info", fi_listen(listener.pep), 0);
        struct sockaddr_in name = { 0 };
        size_t length = sizeof(name);
        EXPECT("fi_getname", fi_getname(&listener.pep->fid, &name, &length), 0);
        CHECK("the port that was asked for", ntohs(name.sin_port) == 4799);
    }
    if (domain)
        EXPECT("fi_close of the domain", fi_close(&domain->fid), 0);
    listener_close(&listener);
    fi_freeinfo(info);
}

void walk_msg(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_MSG, FI_MSG | FI_RMA);
    static struct side a, b;
    static struct listener listener;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    if (code == -FI_ENODATA) {
        hints->caps = options.caps = FI_MSG;
        code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    }
    fi_freeinfo(hints);
    if (code == -FI_ENODATA) {
        absent("connected endpoints", "not offered");
        return;
    }
    if (!EXPECT("fi_getinfo", code, 0))
        return;
    memset(&listener, 0, sizeof(listener));
    walk_pep(&listener, info);
    if (listener.pep && listener.address_length && EXPECT("an endpoint", side_open(&a, &options), 0)) {
        if (walk_connect(&listener, &a, &b, &options)) {
            walk_connected(&a, &b);
            walk_shutdown(&a, &b);
            side_close(&b);
        }
        side_close(&a);
        walk_close_connected(&listener, &options);
        walk_refusals(&listener, &options);
        walk_domain_before_listener(&options);
    }
    listener_close(&listener);
    fi_freeinfo(info);
    walk_msg_variable();
}
