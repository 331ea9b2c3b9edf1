/* Address vectors: map and table, by address, service and range, with events. */
#include "walk.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct sockaddr_in address_of(unsigned host, unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(0x7f000000 | host) };
    return address;
}

static void walk_inserts(struct side *side, enum fi_av_type type, const char *name)
{
    struct fi_av_attr attr = { .type = type, .count = 16 };
    struct fid_av *av = NULL;
    struct sockaddr_in many[3] = { address_of(1, 5001), address_of(1, 5002), address_of(2, 5001) };
    struct sockaddr_in got;
    fi_addr_t handles[8];
    size_t length = sizeof(got);
    char text[128];

    if (!EXPECT(name, fi_av_open(side->domain, &attr, &av, side), 0))
        return;
    CHECK("its class", av->fid.fclass == FI_CLASS_AV);
    CHECK("its context", av->fid.context == side);
    EXPECT("fi_av_insert of three", fi_av_insert(av, many, 3, handles, 0, NULL), 3);
    CHECK("three different handles", handles[0] != handles[1] && handles[1] != handles[2] && handles[0] != handles[2]);
    if (type == FI_AV_TABLE)
        CHECK("a table counts from 0", handles[0] == 0 && handles[1] == 1 && handles[2] == 2);
    for (int i = 0; i < 3; i++) {
        memset(&got, 0, sizeof(got));
        length = sizeof(got);
        if (EXPECT("fi_av_lookup", fi_av_lookup(av, handles[i], &got, &length), 0))
            CHECK("it is what was inserted", length == sizeof(got) && got.sin_port == many[i].sin_port && got.sin_addr.s_addr == many[i].sin_addr.s_addr);
    }
    length = 4;
    int code = fi_av_lookup(av, handles[0], &got, &length);
    EXPECT("fi_av_lookup into too little", code, 0, -FI_ETOOSMALL);
    CHECK("it tells the length", length == sizeof(got));
    length = sizeof(text);
    CHECK("fi_av_straddr", fi_av_straddr(av, &many[0], text, &length) == text && strstr(text, "127.0.0.1") && strstr(text, "5001"));
    length = 4;
    fi_av_straddr(av, &many[0], text, &length);
    CHECK("fi_av_straddr into too little tells the length", length > 9);
    EXPECT("fi_av_insert of none", fi_av_insert(av, many, 0, handles, 0, NULL), 0, -FI_EINVAL);
    EXPECT("fi_av_remove", fi_av_remove(av, &handles[1], 1, 0), 0);
    length = sizeof(got);
    if (!gentle)
        EXPECT("fi_av_lookup of what was removed", fi_av_lookup(av, handles[1], &got, &length), -FI_EINVAL, -FI_ENOENT, -FI_EADDRNOTAVAIL);
    EXPECT("fi_av_insert in the place of another", fi_av_insert(av, &many[1], 1, &handles[1], 0, NULL), 1);
    EXPECT("fi_av_remove of all", fi_av_remove(av, handles, 3, 0), 0);
    /* More than the count that was given as a hint. */
    unsigned inserted = 0;
    for (unsigned i = 0; i < 100; i++) {
        struct sockaddr_in one = address_of(1, 6000 + i);
        inserted += fi_av_insert(av, &one, 1, handles, 0, NULL) == 1;
    }
    CHECK("a vector grows", inserted == 100);
    if (!gentle)
        EXPECT("a domain with a vector open", fi_close(&side->domain->fid), -FI_EBUSY);
    EXPECT("fi_close", fi_close(&av->fid), 0);
}

static void walk_bad_addresses(struct side *side)
{
    struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 16 };
    struct fid_av *av = NULL;
    struct sockaddr_in two[2] = { address_of(1, 5001), address_of(1, 5002) };
    fi_addr_t handles[2] = { 0, 0 };
    int errors[2] = { 0, 0 };
    if (gentle || !EXPECT("fi_av_open", fi_av_open(side->domain, &attr, &av, NULL), 0))
        return;
    two[1].sin_family = AF_UNIX;
    EXPECT("fi_av_insert of one good and one bad", fi_av_insert(av, two, 2, handles, FI_SYNC_ERR, errors), 1);
    CHECK("the bad one has no handle", handles[1] == FI_ADDR_NOTAVAIL && handles[0] != FI_ADDR_NOTAVAIL);
    CHECK("FI_SYNC_ERR tells which", errors[0] == 0 && errors[1] != 0);
    EXPECT("FI_SYNC_ERR without room", fi_av_insert(av, two, 2, handles, FI_SYNC_ERR, NULL), -FI_EINVAL);
    EXPECT("fi_av_insert without addresses", fi_av_insert(av, NULL, 1, handles, 0, NULL), -FI_EINVAL);
    EXPECT("fi_av_insert with unknown flags", fi_av_insert(av, two, 1, handles, 1ULL << 60, NULL), -FI_EINVAL, -FI_EBADFLAGS);
    if (side->info->domain_attr->av_type != FI_AV_MAP)
        EXPECT("fi_av_insert into a table without handles", fi_av_insert(av, two, 1, NULL, 0, NULL), 1);
    size_t length = sizeof(two[0]);
    EXPECT("fi_av_lookup of what never was", fi_av_lookup(av, 4000, &two[0], &length), -FI_EINVAL, -FI_ENOENT, -FI_EADDRNOTAVAIL);
    handles[0] = 4000;
    EXPECT("fi_av_remove of what never was", fi_av_remove(av, handles, 1, 0), -FI_EINVAL, -FI_ENOENT, -FI_EADDRNOTAVAIL);
    EXPECT("fi_close", fi_close(&av->fid), 0);
    attr.type = 99;
    EXPECT("an unknown type", fi_av_open(side->domain, &attr, &av, NULL), -FI_EINVAL, -FI_ENOSYS);
    attr = (struct fi_av_attr){ .type = FI_AV_MAP, .flags = 1ULL << 60 };
    EXPECT("unknown flags", fi_av_open(side->domain, &attr, &av, NULL), -FI_EINVAL, -FI_EBADFLAGS, -FI_ENOSYS);
    attr = (struct fi_av_attr){ .type = FI_AV_MAP, .rx_ctx_bits = 65 };
    EXPECT("too many context bits", fi_av_open(side->domain, &attr, &av, NULL), -FI_EINVAL);
}

static void walk_services(struct side *side)
{
    struct fi_av_attr attr = { .type = FI_AV_MAP, .count = 16 };
    struct fid_av *av = NULL;
    fi_addr_t handles[6];
    struct sockaddr_in got;
    size_t length = sizeof(got);
    if (!EXPECT("fi_av_open", fi_av_open(side->domain, &attr, &av, NULL), 0))
        return;
    int code = fi_av_insertsvc(av, "127.0.0.1", "5003", handles, 0, NULL);
    if (code == -FI_ENOSYS) {
        absent("fi_av_insertsvc", "not offered");
    } else if (EXPECT("fi_av_insertsvc", code, 1)) {
        EXPECT("fi_av_lookup", fi_av_lookup(av, handles[0], &got, &length), 0);
        CHECK("node and service", got.sin_port == htons(5003) && got.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        if (!gentle) {
            code = fi_av_insertsvc(av, "no.such.node.invalid", "5003", handles, 0, NULL);
            CHECK("fi_av_insertsvc of an unknown node", code <= 0);
            EXPECT("fi_av_insertsvc without a service", fi_av_insertsvc(av, "127.0.0.1", NULL, handles, 0, NULL), -FI_EINVAL);
        }
    }
    code = fi_av_insertsym(av, "127.0.0.1", 2, "5100", 3, handles, 0, NULL);
    if (code == -FI_ENOSYS) {
        absent("fi_av_insertsym", "not offered");
    } else if (EXPECT("fi_av_insertsym of 2 nodes with 3 services", code, 6)) {
        for (unsigned i = 0; i < 6; i++) {
            length = sizeof(got);
            EXPECT("fi_av_lookup", fi_av_lookup(av, handles[i], &got, &length), 0);
            CHECK("nodes and services in turn", got.sin_port == htons((uint16_t)(5100 + i % 3)) && got.sin_addr.s_addr == htonl(INADDR_LOOPBACK + i / 3));
        }
    }
    EXPECT("fi_close", fi_close(&av->fid), 0);
}

static void walk_events(struct side *side)
{
    struct fi_av_attr attr = { .type = FI_AV_MAP, .count = 16, .flags = FI_EVENT };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fid_av *av = NULL;
    struct fid_eq *eq = NULL;
    struct sockaddr_in two[2] = { address_of(1, 5001), address_of(1, 5002) };
    fi_addr_t handles[2] = { 0, 0 };
    int code = fi_av_open(side->domain, &attr, &av, NULL);
    if (code) {
        absent("an asynchronous vector", fi_strerror(-code));
        return;
    }
    if (!EXPECT("fi_eq_open", fi_eq_open(side->fabric, &eq_attr, &eq, NULL), 0))
        goto out;
    EXPECT("fi_av_insert before an event queue is bound", fi_av_insert(av, two, 2, handles, 0, NULL), -FI_ENOEQ);
    if (!EXPECT("fi_av_bind", fi_av_bind(av, &eq->fid, 0), 0))
        goto out;
    EXPECT("fi_av_bind to a domain", fi_av_bind(av, &side->domain->fid, 0), -FI_EINVAL, -FI_ENOSYS);
    if (!gentle)
        EXPECT("fi_close of the queue in use", fi_close(&eq->fid), -FI_EBUSY);
    if (EXPECT("fi_av_insert", fi_av_insert(av, two, 2, handles, 0, &two), 0)) {
        struct fi_eq_entry entry;
        uint32_t event = 0;
        memset(&entry, 0, sizeof(entry));
        EXPECT("its event", fi_eq_sread(eq, &event, &entry, sizeof(entry), HANG_GUARD_S * 1000, 0), sizeof(entry));
        CHECK("what it says", event == FI_AV_COMPLETE && entry.fid == &av->fid && entry.context == &two && entry.data == 2);
    }
    two[0].sin_family = AF_UNIX;
    if (!gentle && EXPECT("fi_av_insert of one bad", fi_av_insert(av, two, 2, handles, 0, &two), 0)) {
        struct fi_eq_entry entry;
        struct fi_eq_err_entry error;
        uint32_t event = 0;
        memset(&entry, 0, sizeof(entry));
        memset(&error, 0, sizeof(error));
        EXPECT("the error comes first", fi_eq_sread(eq, &event, &entry, sizeof(entry), HANG_GUARD_S * 1000, 0), -FI_EAVAIL);
        EXPECT("fi_eq_readerr", fi_eq_readerr(eq, &error, 0), sizeof(error));
        CHECK("which one it was", error.data == 0 && error.err > 0 && error.context == &two);
        EXPECT("its event", fi_eq_sread(eq, &event, &entry, sizeof(entry), HANG_GUARD_S * 1000, 0), sizeof(entry));
        CHECK("how many were inserted", event == FI_AV_COMPLETE && entry.data == 1);
    }
out:
    EXPECT("fi_close", fi_close(&av->fid), 0);
    if (eq)
        EXPECT("fi_close of the queue", fi_close(&eq->fid), 0);
}

/* A vector with a name is shared; whoever opens it for reading sees what was inserted. */
static void walk_shared_vector(struct side *side)
{
    char name[64];
    snprintf(name, sizeof(name), "walk-%d", (int)getpid());
    struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 16, .name = name };
    struct fid_av *first = NULL, *second = NULL;
    struct sockaddr_in one = address_of(1, 5001), got;
    fi_addr_t handle = 0;
    size_t length = sizeof(got);
    int code = fi_av_open(side->domain, &attr, &first, NULL);
    if (code) {
        absent("a vector with a name", fi_strerror(-code));
        return;
    }
    EXPECT("fi_av_insert", fi_av_insert(first, &one, 1, &handle, 0, NULL), 1);
    attr.flags = FI_READ;
    attr.name = name;
    if (EXPECT("fi_av_open for reading", fi_av_open(side->domain, &attr, &second, NULL), 0)) {
        memset(&got, 0, sizeof(got));
        EXPECT("fi_av_lookup in the other", fi_av_lookup(second, handle, &got, &length), 0);
        CHECK("it is what was inserted", got.sin_port == one.sin_port);
        EXPECT("fi_av_insert into one for reading", fi_av_insert(second, &one, 1, &handle, 0, NULL), -FI_EINVAL, -FI_EACCES, -FI_EPERM, -FI_EOPNOTSUPP);
        EXPECT("fi_close of the other", fi_close(&second->fid), 0);
    }
    EXPECT("fi_close", fi_close(&first->fid), 0);
}

void walk_av(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side side;
    options.not_enabled = options.no_memory = true;
    int code = side_open(&side, &options);
    if (code == -FI_ENODATA) {
        options.type = FI_EP_DGRAM;
        code = side_open(&side, &options);
    }
    if (code == -FI_ENODATA) {
        absent("address vectors", "only connected endpoints");
        return;
    }
    if (!EXPECT("an endpoint", code, 0))
        return;
    if (side.info->addr_format != FI_SOCKADDR_IN) {
        absent("address vectors", "the addresses are not sockaddr_in");
    } else {
        walk_inserts(&side, FI_AV_MAP, "a map");
        walk_inserts(&side, FI_AV_TABLE, "a table");
        walk_bad_addresses(&side);
        walk_services(&side);
        walk_events(&side);
        walk_shared_vector(&side);
    }
    CHECK("fi_rx_addr", fi_rx_addr(5, 3, 8) == (5 | (3ULL << 56)));
    side_close(&side);
}
