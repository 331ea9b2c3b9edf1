/* What a short message inside a node costs a C program: the same calls as the Rust example `cost` (crates/weft/examples),
 * through libfabric. Two domains of one process, one thread; with FI_THREAD_DOMAIN nobody pays for a lock.
 *
 *   cc -O2 -o cost cost.c -lfabric && FI_PROVIDER_PATH=target/release ./cost 100000 16 8
 *   cargo run --release -p weft --example cost -- 100000 16 8 1
 *
 * The difference, by the number of calls of a message (receive, send, and its share of reads), is what the boundary costs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

struct side {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t peer;
    char memory[4096];
};

static void check(const char *what, long code) {
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-code));
        exit(1);
    }
}

static void open_side(struct fid_fabric *fabric, struct fi_info *info, struct side *side) {
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq = { .size = 1024, .format = FI_CQ_FORMAT_TAGGED };
    check("fi_domain", fi_domain(fabric, info, &side->domain, NULL));
    check("fi_av_open", fi_av_open(side->domain, &av, &side->av, NULL));
    check("fi_cq_open", fi_cq_open(side->domain, &cq, &side->cq, NULL));
    check("fi_endpoint", fi_endpoint(side->domain, info, &side->ep, NULL));
    check("fi_ep_bind", fi_ep_bind(side->ep, &side->av->fid, 0));
    check("fi_ep_bind", fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(side->ep));
}

static void meet(struct side *from, struct side *to) {
    char name[128];
    size_t length = sizeof(name);
    check("fi_getname", fi_getname(&to->ep->fid, name, &length));
    check("fi_av_insert", fi_av_insert(from->av, name, 1, &from->peer, 0, NULL) - 1);
}

static void receive(struct side *side, size_t length) {
    check("fi_trecv", fi_trecv(side->ep, side->memory, length, NULL, FI_ADDR_UNSPEC, 7, 0, side));
}

static void give(struct side *side, size_t length) {
    check("fi_tsend", fi_tsend(side->ep, side->memory, length, NULL, side->peer, 7, side));
}

static long take(struct side *side) {
    struct fi_cq_tagged_entry entries[16];
    long count = fi_cq_read(side->cq, entries, 16);
    if (count != -FI_EAGAIN)
        check("fi_cq_read", count);
    return count < 0 ? 0 : count;
}

/* A batch of 0: one message there and one back, as in a conversation. */
static void rounds(struct side *a, struct side *b, long count, long batch, size_t length) {
    for (long round = 0; round < count; round++) {
        if (batch == 0) {
            for (int turn = 0; turn < 2; turn++) {
                struct side *from = turn ? b : a, *to = turn ? a : b;
                receive(to, length);
                give(from, length);
                take(from);
                while (take(to) == 0)
                    ;
            }
            continue;
        }
        for (long i = 0; i < batch; i++)
            receive(b, length);
        for (long i = 0; i < batch; i++)
            give(a, length);
        for (long got = 0; got < batch;)
            got += take(b);
        for (long got = 0; got < batch;)
            got += take(a);
    }
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 100000, batch = argc > 2 ? atol(argv[2]) : 16;
    size_t length = argc > 3 ? (size_t)atol(argv[3]) : 8;
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    static struct side a, b;
    if (length > sizeof(a.memory) || batch < 0 || batch > 512) {
        fprintf(stderr, "at most %zu bytes and batches of 512\n", sizeof(a.memory));
        return 2;
    }
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_ALLOCATED;
    hints->fabric_attr->prov_name = strdup("weft");
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_side(fabric, info, &a);
    open_side(fabric, info, &b);
    meet(&a, &b);
    meet(&b, &a);
    /* Channels are made and accepted. */
    for (int turn = 0; turn < 2; turn++) {
        struct side *from = turn ? &b : &a, *to = turn ? &a : &b;
        receive(to, length);
        give(from, length);
        for (long got = 0; got < 2;)
            got += take(from) + take(to);
    }
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    rounds(&a, &b, count, batch, length);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double passed = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    printf("%.1f ns a message\n", passed / (double)(batch ? count * batch : 2 * count));
    fi_close(&a.ep->fid), fi_close(&b.ep->fid);
    fi_close(&a.cq->fid), fi_close(&b.cq->fid);
    fi_close(&a.av->fid), fi_close(&b.av->fid);
    fi_close(&a.domain->fid), fi_close(&b.domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info), fi_freeinfo(hints);
    return 0;
}
