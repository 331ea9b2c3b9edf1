/* Remote reads, writes and atomics in every form, type and operation. */
#include "walk.h"

#include <complex.h>

/* The place in b's memory that a reads, writes and changes. */
#define TARGET ((size_t)65536)

static void walk_forms(struct side *a, struct side *b)
{
    static const size_t lengths[] = { 0, 1, 8, 65, 4096, 100000, 1 << 20 };
    char context;
    void *descriptor = a->region.descriptor, *descriptors[2] = { descriptor, descriptor };
    uint64_t remote = b->region.base + TARGET, key = b->region.key;
    unsigned char *target = b->memory + TARGET;
    struct event event;

    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t length = lengths[i];
        if (length > a->info->ep_attr->max_msg_size)
            continue;
        fill(a->memory, length, 1 + (unsigned)i);
        memset(target, 0, length + 1);
        EXPECT("fi_write", POST(fi_write(a->ep, a->memory, length, descriptor, a->peer, remote, key, &context)), 0);
        FINISH(&a->transmit, &context, "a write ends");
        DRIVE_UNTIL("its bytes arrive", filled(target, length, 1 + (unsigned)i));
        CHECK("and no more", target[length] == 0);
        memset(a->memory, 0, length + 1);
        EXPECT("fi_read", POST(fi_read(a->ep, a->memory, length, descriptor, a->peer, remote, key, &context)), 0);
        FINISH(&a->transmit, &context, "a read ends");
        CHECK("its bytes", filled(a->memory, length, 1 + (unsigned)i) && a->memory[length] == 0);
    }
    struct iovec pieces[2] = { { a->memory, 40 }, { a->memory + 40, 60 } };
    fill(a->memory, 100, 31);
    EXPECT("fi_writev", POST(fi_writev(a->ep, pieces, descriptors, 2, a->peer, remote, key, &context)), 0);
    FINISH(&a->transmit, &context, "a write of two pieces ends");
    DRIVE_UNTIL("its bytes arrive", filled(target, 100, 31));
    memset(a->memory, 0, 100);
    EXPECT("fi_readv", POST(fi_readv(a->ep, pieces, descriptors, 2, a->peer, remote, key, &context)), 0);
    FINISH(&a->transmit, &context, "a read into two pieces ends");
    CHECK("its bytes", filled(a->memory, 100, 31));
    struct fi_rma_iov ranges[2] = { { remote + 1000, 50, key }, { remote + 2000, 50, key } };
    bool two = a->info->tx_attr->rma_iov_limit >= 2;
    if (!two)
        ranges[0].len = 100;
    struct fi_msg_rma message = { .msg_iov = pieces, .desc = descriptors, .iov_count = 2, .addr = a->peer, .rma_iov = ranges,
                                  .rma_iov_count = two ? 2 : 1, .context = &context };
    fill(a->memory, 100, 32);
    EXPECT("fi_writemsg", POST(fi_writemsg(a->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)), 0);
    if (FINISH(&a->transmit, &context, "a write of all parts ends")) {
        unsigned char joined[100];
        memcpy(joined, target + 1000, two ? 50 : 100);
        if (two)
            memcpy(joined + 50, target + 2000, 50);
        CHECK("its bytes are there", filled(joined, 100, 32));
    }
    memset(a->memory, 0, 100);
    EXPECT("fi_readmsg", POST(fi_readmsg(a->ep, &message, FI_COMPLETION)), 0);
    FINISH(&a->transmit, &context, "a read of all parts ends");
    CHECK("its bytes", filled(a->memory, 100, 32));
    unsigned char buffer[16];
    fill(buffer, sizeof(buffer), 33);
    EXPECT("fi_inject_write", POST(fi_inject_write(a->ep, buffer, sizeof(buffer), a->peer, remote, key)), 0);
    memset(buffer, 0, sizeof(buffer));
    DRIVE_UNTIL("its bytes arrive", filled(target, sizeof(buffer), 33));
    CHECK("it makes no completion", nothing_comes(&a->transmit));
    if (a->info->domain_attr->cq_data_size) {
        bool wants_receive = a->info->rx_attr->mode & FI_RX_CQ_DATA;
        fill(a->memory, 100, 34);
        if (wants_receive)
            EXPECT("fi_recv", fi_recv(b->ep, b->memory, 0, b->region.descriptor, FI_ADDR_UNSPEC, NULL), 0);
        EXPECT("fi_writedata", POST(fi_writedata(a->ep, a->memory, 100, descriptor, 0x42, a->peer, remote, key, &context)), 0);
        if (TAKE(&b->receive, &event, "a write with data is told"))
            CHECK("what is told", (event.entry.flags & (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)) == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) &&
                                      event.entry.data == 0x42 && filled(target, 100, 34));
        FINISH(&a->transmit, &context, "it ends");
        if (wants_receive)
            EXPECT("fi_recv", fi_recv(b->ep, b->memory, 0, b->region.descriptor, FI_ADDR_UNSPEC, NULL), 0);
        EXPECT("fi_inject_writedata", POST(fi_inject_writedata(a->ep, buffer, sizeof(buffer), 0x43, a->peer, remote, key)), 0);
        if (TAKE(&b->receive, &event, "an injected write with data is told"))
            CHECK("what is told", (event.entry.flags & FI_REMOTE_CQ_DATA) && event.entry.data == 0x43);
    }
    /* Overlap: a read into the memory that it reads, by a peer that is itself. */
    fill(b->memory, 4096, 35);
    memset(a->memory, 0, 4096);
    for (int i = 0; i < 64; i++)
        EXPECT("unaligned reads", POST(fi_read(a->ep, a->memory + i * 61, 61, descriptor, a->peer, b->region.base + (uint64_t)i * 61, key, &context)), 0);
    for (int i = 0; i < 64; i++)
        TAKE(&a->transmit, &event, "an unaligned read ends");
    CHECK("their bytes", filled(a->memory, 64 * 61, 35));
    if (!gentle) {
        struct iovec many[64];
        void *many_descriptors[64];
        for (int i = 0; i < 64; i++) {
            many[i] = (struct iovec){ a->memory, 1 };
            many_descriptors[i] = descriptor;
        }
        if (a->info->tx_attr->iov_limit < 64) {
            EXPECT("fi_writev of too many pieces", fi_writev(a->ep, many, many_descriptors, 64, a->peer, remote, key, NULL), -FI_EINVAL);
            EXPECT("fi_readv of too many pieces", fi_readv(a->ep, many, many_descriptors, 64, a->peer, remote, key, NULL), -FI_EINVAL);
        }
        ranges[0].len = 1;
        EXPECT("lengths that differ", fi_writemsg(a->ep, &message, 0), -FI_EINVAL, -FI_EMSGSIZE);
        EXPECT("fi_write to nobody", fi_write(a->ep, a->memory, 8, descriptor, FI_ADDR_NOTAVAIL, remote, key, NULL), -FI_EINVAL, -FI_EADDRNOTAVAIL, -FI_EHOSTUNREACH);
        EXPECT("fi_inject_write of too much", fi_inject_write(a->ep, a->memory, a->info->tx_attr->inject_size + 1, a->peer, remote, key), -FI_EINVAL, -FI_EMSGSIZE);
    }
}

void walk_rma(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA);
    static struct side a, b;
    if (!pair_open(&a, &b, &options, "two endpoints with RMA"))
        return;
    walk_forms(&a, &b);
    pair_close(&a, &b);
}

/* ---- atomics ---- */

/* What the operation makes of the target, by the C compiler's own arithmetic. */
#define INTEGER_CASE(code, type)                                                  \
    case code: {                                                                  \
        type t = *(type *)target, o = *(const type *)operand, c = *(const type *)compare; \
        switch (operation) {                                                      \
        case FI_MIN: t = o < t ? o : t; break;                                    \
        case FI_MAX: t = o > t ? o : t; break;                                    \
        case FI_SUM: t = (type)(t + o); break;                                    \
        case FI_PROD: t = (type)((uint64_t)t * (uint64_t)o); break;               \
        case FI_LOR: t = t || o; break;                                           \
        case FI_LAND: t = t && o; break;                                          \
        case FI_BOR: t = t | o; break;                                            \
        case FI_BAND: t = t & o; break;                                           \
        case FI_LXOR: t = !t != !o; break;                                        \
        case FI_BXOR: t = t ^ o; break;                                           \
        case FI_ATOMIC_READ: break;                                               \
        case FI_ATOMIC_WRITE: t = o; break;                                       \
        case FI_CSWAP: t = c == t ? o : t; break;                                 \
        case FI_CSWAP_NE: t = c != t ? o : t; break;                              \
        case FI_CSWAP_LE: t = c <= t ? o : t; break;                              \
        case FI_CSWAP_LT: t = c < t ? o : t; break;                               \
        case FI_CSWAP_GE: t = c >= t ? o : t; break;                              \
        case FI_CSWAP_GT: t = c > t ? o : t; break;                               \
        case FI_MSWAP: t = (type)((o & c) | (t & (type)~c)); break;               \
        default: return false;                                                    \
        }                                                                         \
        memcpy(target, &t, sizeof(t));                                            \
        return true;                                                              \
    }
#define REAL_CASE(code, type)                                                     \
    case code: {                                                                  \
        type t = *(type *)target, o = *(const type *)operand, c = *(const type *)compare; \
        switch (operation) {                                                      \
        case FI_MIN: t = o < t ? o : t; break;                                    \
        case FI_MAX: t = o > t ? o : t; break;                                    \
        case FI_SUM: t = t + o; break;                                            \
        case FI_PROD: t = t * o; break;                                           \
        case FI_LOR: t = t || o; break;                                           \
        case FI_LAND: t = t && o; break;                                          \
        case FI_LXOR: t = !t != !o; break;                                        \
        case FI_ATOMIC_READ: break;                                               \
        case FI_ATOMIC_WRITE: t = o; break;                                       \
        case FI_CSWAP: t = c == t ? o : t; break;                                 \
        case FI_CSWAP_NE: t = c != t ? o : t; break;                              \
        case FI_CSWAP_LE: t = c <= t ? o : t; break;                              \
        case FI_CSWAP_LT: t = c < t ? o : t; break;                               \
        case FI_CSWAP_GE: t = c >= t ? o : t; break;                              \
        case FI_CSWAP_GT: t = c > t ? o : t; break;                               \
        default: return false;                                                    \
        }                                                                         \
        memcpy(target, &t, sizeof(t));                                            \
        return true;                                                              \
    }
#define COMPLEX_CASE(code, type)                                                  \
    case code: {                                                                  \
        type t = *(type *)target, o = *(const type *)operand, c = *(const type *)compare; \
        switch (operation) {                                                      \
        case FI_SUM: t = t + o; break;                                            \
        case FI_PROD: t = t * o; break;                                           \
        case FI_LOR: t = (t != 0) || (o != 0); break;                             \
        case FI_LAND: t = (t != 0) && (o != 0); break;                            \
        case FI_LXOR: t = (t != 0) != (o != 0); break;                            \
        case FI_ATOMIC_READ: break;                                               \
        case FI_ATOMIC_WRITE: t = o; break;                                       \
        case FI_CSWAP: t = c == t ? o : t; break;                                 \
        case FI_CSWAP_NE: t = c != t ? o : t; break;                              \
        default: return false;                                                    \
        }                                                                         \
        memcpy(target, &t, sizeof(t));                                            \
        return true;                                                              \
    }

/* False where C itself has no such operation on the type. */
static bool apply(enum fi_datatype type, enum fi_op operation, void *target, const void *operand, const void *compare)
{
    switch (type) {
        INTEGER_CASE(FI_INT8, int8_t)
        INTEGER_CASE(FI_UINT8, uint8_t)
        INTEGER_CASE(FI_INT16, int16_t)
        INTEGER_CASE(FI_UINT16, uint16_t)
        INTEGER_CASE(FI_INT32, int32_t)
        INTEGER_CASE(FI_UINT32, uint32_t)
        INTEGER_CASE(FI_INT64, int64_t)
        INTEGER_CASE(FI_UINT64, uint64_t)
        REAL_CASE(FI_FLOAT, float)
        REAL_CASE(FI_DOUBLE, double)
        COMPLEX_CASE(FI_FLOAT_COMPLEX, float complex)
        COMPLEX_CASE(FI_DOUBLE_COMPLEX, double complex)
    default:
        return false;
    }
}

static void put_value(enum fi_datatype type, void *place, int value)
{
    switch (type) {
    case FI_INT8: case FI_UINT8: *(int8_t *)place = (int8_t)value; break;
    case FI_INT16: case FI_UINT16: *(int16_t *)place = (int16_t)value; break;
    case FI_INT32: case FI_UINT32: *(int32_t *)place = value; break;
    case FI_INT64: case FI_UINT64: *(int64_t *)place = value; break;
    case FI_FLOAT: *(float *)place = (float)value; break;
    case FI_DOUBLE: *(double *)place = value; break;
    case FI_FLOAT_COMPLEX: *(float complex *)place = (float)value + (float)(value + 1) * I; break;
    case FI_DOUBLE_COMPLEX: *(double complex *)place = value + (value + 1) * I; break;
    default: break;
    }
}

/* How an operation is asked: plain, with the old value, with a compare value. */
enum class { BASE, FETCH, COMPARE };
static const uint64_t class_flags[] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };
static const char *const class_names[] = { "plain", "fetching", "comparing" };

static void walk_one_atomic(struct side *a, struct side *b, enum fi_datatype type, enum fi_op operation, enum class class, size_t count)
{
    _Alignas(16) unsigned char expected[256], operands[256], compares[256], before[256];
    struct fi_atomic_attr attr;
    char name[128], context;
    void *descriptor = a->region.descriptor;
    uint64_t remote = b->region.base + TARGET, key = b->region.key;
    unsigned char *target = b->memory + TARGET, *operand = a->memory, *compare = a->memory + 4096, *result = a->memory + 8192;

    memset(&attr, 0, sizeof(attr));
    fi_query_atomic(a->domain, type, operation, &attr, class_flags[class]);
    if (count > attr.count)
        count = attr.count;
    size_t size = attr.size, bytes = size * count;
    if (bytes > sizeof(expected))
        return;
    snprintf(name, sizeof(name), "%s %s on %s", class_names[class], fi_tostr(&operation, FI_TYPE_ATOMIC_OP), "");
    snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s, %zu of them", fi_tostr(&type, FI_TYPE_ATOMIC_TYPE), count);
    for (size_t i = 0; i < count; i++) {
        put_value(type, expected + i * size, (int)i * 3 + 1);
        put_value(type, operands + i * size, 7 - (int)i);
        put_value(type, compares + i * size, (int)i * 3 + 1 + (int)(i % 3) - 1);
    }
    memcpy(before, expected, bytes);
    memcpy(target, expected, bytes);
    memcpy(operand, operands, bytes);
    memcpy(compare, compares, bytes);
    memset(result, 0xee, bytes);
    bool known = true;
    for (size_t i = 0; i < count; i++)
        known = apply(type, operation, expected + i * size, operands + i * size, compares + i * size) && known;
    if (!known)
        return;
    ssize_t code = class == BASE ? POST(fi_atomic(a->ep, operand, count, descriptor, a->peer, remote, key, type, operation, &context))
                   : class == FETCH
                       ? POST(fi_fetch_atomic(a->ep, operand, count, descriptor, result, descriptor, a->peer, remote, key, type, operation, &context))
                       : POST(fi_compare_atomic(a->ep, operand, count, descriptor, compare, descriptor, result, descriptor, a->peer, remote, key, type,
                                                operation, &context));
    if (!EXPECT(name, code, 0) || !FINISH(&a->transmit, &context, name))
        return;
    DRIVE_UNTIL(name, memcmp(target, expected, bytes) == 0);
    if (class != BASE)
        CHECK(name, memcmp(result, before, bytes) == 0);
}

static void walk_atomic_forms(struct side *a, struct side *b)
{
    char context;
    void *descriptor = a->region.descriptor;
    uint64_t remote = b->region.base + TARGET, key = b->region.key;
    volatile uint64_t *target = (volatile uint64_t *)(void *)(b->memory + TARGET);
    uint64_t *operand = (uint64_t *)(void *)a->memory, *compare = operand + 8, *result = operand + 16;
    struct fi_ioc operands = { operand, 1 }, compares = { compare, 1 }, results = { result, 1 };
    struct fi_rma_ioc range = { remote, 1, key };
    struct fi_msg_atomic message = { .msg_iov = &operands, .desc = &descriptor, .iov_count = 1, .addr = a->peer, .rma_iov = &range,
                                     .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM, .context = &context };
    target[0] = 100;
    operand[0] = 5;
    EXPECT("fi_atomicv", POST(fi_atomicv(a->ep, &operands, &descriptor, 1, a->peer, remote, key, FI_UINT64, FI_SUM, &context)), 0);
    FINISH(&a->transmit, &context, "it ends");
    DRIVE_UNTIL("fi_atomicv adds", target[0] == 105);
    EXPECT("fi_atomicmsg", POST(fi_atomicmsg(a->ep, &message, FI_COMPLETION)), 0);
    FINISH(&a->transmit, &context, "it ends");
    DRIVE_UNTIL("fi_atomicmsg adds", target[0] == 110);
    EXPECT("fi_inject_atomic", POST(fi_inject_atomic(a->ep, operand, 1, a->peer, remote, key, FI_UINT64, FI_SUM)), 0);
    operand[0] = 1000;
    DRIVE_UNTIL("fi_inject_atomic adds", target[0] == 115);
    CHECK("it makes no completion", nothing_comes(&a->transmit));
    operand[0] = 5;
    EXPECT("fi_fetch_atomicv", POST(fi_fetch_atomicv(a->ep, &operands, &descriptor, 1, &results, &descriptor, 1, a->peer, remote, key, FI_UINT64, FI_SUM, &context)), 0);
    FINISH(&a->transmit, &context, "it ends");
    CHECK("fi_fetch_atomicv tells the old value", result[0] == 115 && target[0] == 120);
    EXPECT("fi_fetch_atomicmsg", POST(fi_fetch_atomicmsg(a->ep, &message, &results, &descriptor, 1, FI_COMPLETION)), 0);
    FINISH(&a->transmit, &context, "it ends");
    CHECK("fi_fetch_atomicmsg tells the old value", result[0] == 120 && target[0] == 125);
    compare[0] = 125;
    operand[0] = 1;
    EXPECT("fi_compare_atomicv", POST(fi_compare_atomicv(a->ep, &operands, &descriptor, 1, &compares, &descriptor, 1, &results, &descriptor, 1, a->peer, remote,
                                                         key, FI_UINT64, FI_CSWAP, &context)), 0);
    FINISH(&a->transmit, &context, "it ends");
    CHECK("fi_compare_atomicv swaps", result[0] == 125 && target[0] == 1);
    message.op = FI_CSWAP;
    EXPECT("fi_compare_atomicmsg", POST(fi_compare_atomicmsg(a->ep, &message, &compares, &descriptor, 1, &results, &descriptor, 1, FI_COMPLETION)), 0);
    FINISH(&a->transmit, &context, "it ends");
    CHECK("fi_compare_atomicmsg does not swap what differs", result[0] == 1 && target[0] == 1);
    if (gentle)
        return;
    size_t count = 0;
    EXPECT("fi_atomicvalid of an unknown type", fi_atomicvalid(a->ep, 99, FI_SUM, &count), -FI_EOPNOTSUPP, -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_atomicvalid of an unknown operation", fi_atomicvalid(a->ep, FI_UINT64, 99, &count), -FI_EOPNOTSUPP, -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_atomic of an unknown operation", fi_atomic(a->ep, operand, 1, descriptor, a->peer, remote, key, FI_UINT64, 99, NULL), -FI_EOPNOTSUPP, -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_atomic of an unknown type", fi_atomic(a->ep, operand, 1, descriptor, a->peer, remote, key, 99, FI_SUM, NULL), -FI_EOPNOTSUPP, -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_atomic of bits of a float", fi_atomic(a->ep, operand, 1, descriptor, a->peer, remote, key, FI_FLOAT, FI_BOR, NULL), -FI_EOPNOTSUPP, -FI_EINVAL, -FI_ENOSYS);
    EXPECT("fi_atomic of none", fi_atomic(a->ep, operand, 0, descriptor, a->peer, remote, key, FI_UINT64, FI_SUM, NULL), -FI_EINVAL, -FI_EMSGSIZE);
    EXPECT("fi_atomic of too many", fi_atomic(a->ep, operand, 1 << 28, descriptor, a->peer, remote, key, FI_UINT64, FI_SUM, NULL), -FI_EINVAL, -FI_EMSGSIZE);
    struct event event;
    EXPECT("fi_atomic with a wrong key", POST(fi_atomic(a->ep, operand, 1, descriptor, a->peer, remote, key ^ 0x7777, FI_UINT64, FI_SUM, &context)), 0);
    if (TAKE(&a->transmit, &event, "it ends"))
        CHECK("with an error", event.error != 0);
}

void walk_atomic(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA | FI_ATOMIC);
    static struct side a, b;
    unsigned offered[3] = { 0, 0, 0 };
    if (!pair_open(&a, &b, &options, "two endpoints with atomics"))
        return;
    for (enum fi_datatype type = FI_INT8; type <= FI_LONG_DOUBLE_COMPLEX; type++) {
        for (enum fi_op operation = FI_MIN; operation <= FI_MSWAP; operation++) {
            for (enum class class = BASE; class <= COMPARE; class++) {
                struct fi_atomic_attr attr;
                size_t count = 0;
                memset(&attr, 0, sizeof(attr));
                int code = fi_query_atomic(a.domain, type, operation, &attr, class_flags[class]);
                int valid = class == BASE    ? fi_atomicvalid(a.ep, type, operation, &count)
                            : class == FETCH ? fi_fetch_atomicvalid(a.ep, type, operation, &count)
                                             : fi_compare_atomicvalid(a.ep, type, operation, &count);
                if ((code == 0) != (valid == 0) || (code == 0 && count != attr.count))
                    CHECK("fi_query_atomic and fi_atomicvalid agree", false);
                if (code)
                    continue;
                offered[class]++;
                walk_one_atomic(&a, &b, type, operation, class, 1);
                walk_one_atomic(&a, &b, type, operation, class, 13);
            }
        }
    }
    printf("# %u plain, %u fetching, %u comparing atomics are offered\n", offered[BASE], offered[FETCH], offered[COMPARE]);
    CHECK("atomics of all three kinds", offered[BASE] && offered[FETCH] && offered[COMPARE]);
    walk_atomic_forms(&a, &b);
    pair_close(&a, &b);
}
