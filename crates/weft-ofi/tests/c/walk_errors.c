/* Arguments that are not there, calls at the wrong time, endpoints that go. */
#include "walk.h"

static void walk_nothing_given(struct side *side)
{
    struct fid_cq *cq = NULL;
    struct fid_av *av = NULL;
    struct fid_eq *eq = NULL;
    struct fid_cntr *cntr = NULL;
    struct fid_ep *ep = NULL;
    struct fid_domain *domain = NULL;
    struct fid_pep *pep = NULL;
    struct fi_cq_attr cq_attr = { .size = 16 };
    EXPECT("fi_cq_open without a place for it", fi_cq_open(side->domain, &cq_attr, NULL, NULL), -FI_EINVAL);
    EXPECT("fi_av_open without attributes", fi_av_open(side->domain, NULL, &av, NULL), -FI_EINVAL);
    EXPECT("fi_endpoint without info", fi_endpoint(side->domain, NULL, &ep, NULL), -FI_EINVAL);
    EXPECT("fi_domain without info", fi_domain(side->fabric, NULL, &domain, NULL), -FI_EINVAL);
    EXPECT("fi_passive_ep without info", fi_passive_ep(side->fabric, NULL, &pep, NULL), -FI_EINVAL);
    int code = fi_cq_open(side->domain, NULL, &cq, NULL);
    EXPECT("fi_cq_open without attributes", code, -FI_EINVAL, 0);
    if (!code)
        fi_close(&cq->fid);
    code = fi_eq_open(side->fabric, NULL, &eq, NULL);
    EXPECT("fi_eq_open without attributes", code, -FI_EINVAL, 0);
    if (!code)
        fi_close(&eq->fid);
    code = fi_cntr_open(side->domain, NULL, &cntr, NULL);
    EXPECT("fi_cntr_open without attributes", code, -FI_EINVAL, 0);
    if (!code)
        fi_close(&cntr->fid);
    EXPECT("fi_ep_bind to nothing", fi_ep_bind(side->ep, NULL, 0), -FI_EINVAL);
    EXPECT("fi_query_atomic without attributes", fi_query_atomic(side->domain, FI_UINT64, FI_SUM, NULL, 0), -FI_EINVAL, 0, -FI_EOPNOTSUPP);
    EXPECT("fi_control with an unknown command", fi_control(&side->ep->fid, 9999, NULL), -FI_ENOSYS, -FI_EINVAL, -FI_EOPNOTSUPP);
    EXPECT("fi_control of a domain with an unknown command", fi_control(&side->domain->fid, 9999, NULL), -FI_ENOSYS, -FI_EINVAL, -FI_EOPNOTSUPP);
    EXPECT("fi_getname without a place for it", fi_getname(&side->ep->fid, NULL, NULL), -FI_EINVAL);
}

/* Calls for which the endpoint was not opened. */
static void walk_not_asked(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_SEND | FI_RECV);
    static struct side a, b;
    if (!pair_open(&a, &b, &options, "endpoints with messages only"))
        return;
    if (!(a.info->caps & FI_TAGGED))
        EXPECT("fi_tsend where there are no tags", fi_tsend(a.ep, a.memory, 8, a.region.descriptor, a.peer, 1, NULL), -FI_ENOSYS, -FI_EOPNOTSUPP, -FI_EINVAL);
    if (!(a.info->caps & FI_RMA))
        EXPECT("fi_write where there is no RMA", fi_write(a.ep, a.memory, 8, a.region.descriptor, a.peer, 0, 1, NULL), -FI_ENOSYS, -FI_EOPNOTSUPP, -FI_EINVAL);
    if (!(a.info->caps & FI_ATOMIC))
        EXPECT("fi_atomic where there are none", fi_atomic(a.ep, a.memory, 1, a.region.descriptor, a.peer, 0, 1, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS, -FI_EOPNOTSUPP, -FI_EINVAL);
    pair_close(&a, &b);
}

/* A peer that is gone: the operation ends with an error, and others go on. */
static void walk_gone(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA);
    static struct side a, b, c;
    char name[256], context;
    size_t length = sizeof(name);
    fi_addr_t c_at_a = 0;
    struct event event;
    if (!pair_open(&a, &b, &options, "two endpoints"))
        return;
    if (!EXPECT("a third one", side_open(&c, &options), 0))
        goto out;
    EXPECT("fi_getname", fi_getname(&c.ep->fid, name, &length), 0);
    EXPECT("fi_av_insert", fi_av_insert(a.av, name, 1, &c_at_a, 0, NULL), 1);
    side_close(&c);
    struct iovec piece = { a.memory, 8 };
    struct fi_msg message = { .msg_iov = &piece, .desc = &a.region.descriptor, .iov_count = 1, .addr = c_at_a, .context = &context };
    EXPECT("fi_write to one that is gone", POST(fi_write(a.ep, a.memory, 8, a.region.descriptor, c_at_a, 0, 1, &context)), 0, -FI_EHOSTUNREACH, -FI_ECONNREFUSED);
    if (TAKE(&a.transmit, &event, "it ends"))
        CHECK("with an error", event.error != 0 && event.entry.op_context == &context);
    EXPECT("fi_send to one that is gone", POST(fi_send(a.ep, a.memory, 8, a.region.descriptor, c_at_a, &context)), 0, -FI_EHOSTUNREACH, -FI_ECONNREFUSED);
    if (TAKE(&a.transmit, &event, "it ends")) {
        CHECK("its context", event.entry.op_context == &context);
        /* A copy was made, and the context may be in use again by now. */
        if (!event.error && TAKE(&a.transmit, &event, "its failure is told"))
            CHECK("as nobody's", event.error != 0 && event.entry.op_context == NULL);
    }
    EXPECT("fi_send that waits for its target", POST(fi_sendmsg(a.ep, &message, FI_TRANSMIT_COMPLETE | FI_COMPLETION)), 0, -FI_EHOSTUNREACH, -FI_ECONNREFUSED);
    if (TAKE(&a.transmit, &event, "it ends"))
        CHECK("with an error", event.error != 0 && event.entry.op_context == &context);
    EXPECT("fi_recv", fi_recv(b.ep, b.memory, 64, b.region.descriptor, FI_ADDR_UNSPEC, &context), 0);
    EXPECT("fi_send to another", POST(fi_send(a.ep, a.memory, 8, a.region.descriptor, a.peer, &context)), 0);
    FINISH(&b.receive, &context, "it arrives");
    FINISH(&a.transmit, &context, "and ends");
out:
    pair_close(&a, &b);
}

/* Closing with operations under way: they are dropped without a word, and nothing leaks or hangs. */
static void walk_close_early(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_RMA);
    static struct side a, b;
    for (int round = 0; round < 5; round++) {
        if (!pair_open(&a, &b, &options, "two endpoints"))
            return;
        for (int i = 0; i < 10; i++) {
            fi_recv(a.ep, a.memory, 64, a.region.descriptor, FI_ADDR_UNSPEC, NULL);
            fi_trecv(a.ep, a.memory, 64, a.region.descriptor, FI_ADDR_UNSPEC, 1, 0, NULL);
            fi_send(a.ep, a.memory, 1 << 20, a.region.descriptor, a.peer, NULL);
            fi_tsend(a.ep, a.memory, 1 << 20, a.region.descriptor, a.peer, 1, NULL);
            fi_write(a.ep, a.memory, 1 << 20, a.region.descriptor, a.peer, b.region.base, b.region.key, NULL);
        }
        if (round & 1)
            pair_close(&a, &b);
        else
            pair_close(&b, &a);
    }
    CHECK("endpoints close with operations under way", true);
}

void walk_errors(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    static struct side side;
    if (!gentle) {
        int code = side_open(&side, &options);
        if (code == -FI_ENODATA)
            absent("an rdm endpoint", "not offered");
        else if (EXPECT("an rdm endpoint", code, 0)) {
            walk_nothing_given(&side);
            side_close(&side);
        }
        walk_gone();
        walk_not_asked();
    }
    walk_close_early();
}
