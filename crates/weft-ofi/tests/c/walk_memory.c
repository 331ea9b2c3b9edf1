/* Memory registration: calls, keys, access rights, ranges. */
#include "walk.h"

static const uint64_t all_access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

static void walk_calls(struct side *side)
{
    struct fid_mr *mr = NULL, *second = NULL;
    struct iovec pieces[2] = { { side->memory, 4096 }, { side->memory + 8192, 4096 } };
    struct fi_mr_attr attr = { .mr_iov = pieces, .iov_count = 1, .access = all_access, .requested_key = 2001, .context = side };
    bool drawn = side->info->domain_attr->mr_mode & FI_MR_PROV_KEY;

    if (EXPECT("fi_mr_reg", fi_mr_reg(side->domain, side->memory, 4096, all_access, 0, 2000, 0, &mr, side), 0)) {
        CHECK("its class", mr->fid.fclass == FI_CLASS_MR);
        CHECK("its context", mr->fid.context == side);
        CHECK("its key", drawn || fi_mr_key(mr) == 2000);
        CHECK("its key is valid", fi_mr_key(mr) != FI_KEY_NOTAVAIL || (side->info->domain_attr->mr_mode & FI_MR_ENDPOINT));
        if (!drawn)
            EXPECT("a key that is in use", fi_mr_reg(side->domain, side->memory + 4096, 4096, all_access, 0, 2000, 0, &second, NULL), -FI_ENOKEY);
        if (!gentle)
            EXPECT("a domain with a region open", fi_close(&side->domain->fid), -FI_EBUSY);
        EXPECT("fi_close", fi_close(&mr->fid), 0);
        if (EXPECT("its key may be used again", fi_mr_reg(side->domain, side->memory, 4096, all_access, 0, 2000, 0, &mr, NULL), 0))
            EXPECT("fi_close", fi_close(&mr->fid), 0);
    }
    if (EXPECT("fi_mr_regattr", fi_mr_regattr(side->domain, &attr, 0, &mr), 0)) {
        CHECK("its context", mr->fid.context == side);
        EXPECT("fi_close", fi_close(&mr->fid), 0);
    }
    if (side->info->domain_attr->mr_iov_limit > 1 &&
        EXPECT("fi_mr_regv", fi_mr_regv(side->domain, pieces, 2, all_access, 0, 2002, 0, &mr, NULL), 0))
        EXPECT("fi_close", fi_close(&mr->fid), 0);
    if (EXPECT("fi_mr_regv of one", fi_mr_regv(side->domain, pieces, 1, all_access, 0, 2003, 0, &mr, NULL), 0)) {
        EXPECT("fi_mr_bind to a domain", fi_mr_bind(mr, &side->domain->fid, 0), -FI_EINVAL, -FI_ENOSYS);
        EXPECT("fi_close", fi_close(&mr->fid), 0);
    }
    if (gentle)
        return;
    EXPECT("unknown flags", fi_mr_reg(side->domain, side->memory, 4096, all_access, 0, 2004, 1ULL << 60, &mr, NULL), -FI_EBADFLAGS, -FI_EINVAL);
    EXPECT("an offset, which has to be 0", fi_mr_reg(side->domain, side->memory, 4096, all_access, 17, 2004, 0, &mr, NULL), -FI_EINVAL, -FI_EBADFLAGS);
    EXPECT("unknown access", fi_mr_reg(side->domain, side->memory, 4096, 1ULL << 60, 0, 2004, 0, &mr, NULL), -FI_EINVAL, -FI_EBADFLAGS);
    /* Pages that are not there may be registered where the provider does not ask for allocated ones. */
    int code = fi_mr_reg(side->domain, NULL, 4096, all_access, 0, 2004, 0, &mr, NULL);
    EXPECT("no memory at all", code, -FI_EINVAL, -FI_EFAULT, 0);
    if (!code)
        EXPECT("fi_close", fi_close(&mr->fid), 0);
    EXPECT("no pieces", fi_mr_regv(side->domain, pieces, 0, all_access, 0, 2004, 0, &mr, NULL), -FI_EINVAL);
    EXPECT("too many pieces", fi_mr_regv(side->domain, pieces, side->info->domain_attr->mr_iov_limit + 1000, all_access, 0, 2004, 0, &mr, NULL), -FI_EINVAL);
    attr.iov_count = 0;
    EXPECT("attributes without pieces", fi_mr_regattr(side->domain, &attr, 0, &mr), -FI_EINVAL);
    EXPECT("no attributes", fi_mr_regattr(side->domain, NULL, 0, &mr), -FI_EINVAL);
}

/* A write of 64 bytes by `a` into `region` of `b` at the offset ends with this error (0: it succeeds). */
static void write_ends(struct side *a, const struct region *region, uint64_t offset, bool fails, const char *name)
{
    struct event event;
    fill(a->memory, 64, 5);
    if (!EXPECT(name, POST(fi_write(a->ep, a->memory, 64, a->region.descriptor, a->peer, region->base + offset, region->key, &event)), 0))
        return;
    if (TAKE(&a->transmit, &event, name))
        CHECK(name, (event.error != 0) == fails);
}

static void read_ends(struct side *a, const struct region *region, uint64_t offset, bool fails, const char *name)
{
    struct event event;
    if (!EXPECT(name, POST(fi_read(a->ep, a->memory, 64, a->region.descriptor, a->peer, region->base + offset, region->key, &event)), 0))
        return;
    if (TAKE(&a->transmit, &event, name))
        CHECK(name, (event.error != 0) == fails);
}

static void walk_rights(struct side *a, struct side *b)
{
    struct region region;
    unsigned char *target = b->memory + 65536;

    if (!EXPECT("a region for writes", region_open(b, target, 4096, FI_REMOTE_WRITE, &region), 0))
        return;
    memset(target, 0, 8192);
    write_ends(a, &region, 0, false, "a write into it");
    CHECK("its bytes", filled(target, 64, 5) && target[64] == 0);
    write_ends(a, &region, 4096 - 64, false, "a write up to its end");
    CHECK("its bytes at the end", filled(target + 4096 - 64, 64, 5) && target[4096] == 0);
    read_ends(a, &region, 0, true, "a read where only writes are allowed");
    write_ends(a, &region, 4096 - 63, true, "a write one byte beyond its end");
    write_ends(a, &region, (uint64_t)1 << 40, true, "a write far beyond its end");
    write_ends(a, &region, UINT64_MAX - region.base - 10, true, "a write at the end of all addresses");
    CHECK("nothing behind it was written", target[4096] == 0);
    struct region closed = region;
    region_close(&region);
    write_ends(a, &closed, 0, true, "a write into a region that was closed");
    closed.key ^= 0x5555;
    write_ends(a, &closed, 0, true, "a write with a key that never was");
    if (!EXPECT("a region for reads", region_open(b, target, 4096, FI_REMOTE_READ, &region), 0))
        return;
    fill(target, 64, 9);
    read_ends(a, &region, 0, false, "a read from it");
    CHECK("its bytes", filled(a->memory, 64, 9));
    write_ends(a, &region, 0, true, "a write where only reads are allowed");
    CHECK("nothing was written", filled(target, 64, 9));
    region_close(&region);
    /* The conversation goes on after errors. */
    write_ends(a, &b->region, 128, false, "a write after errors");
    CHECK("its bytes", filled(b->memory + 128, 64, 5));
}

static void walk_mode(int mode, const char *name)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA);
    static struct side a, b;
    options.only_mr_mode = mode;
    if (!pair_open(&a, &b, &options, name))
        return;
    if (mode != FI_MR_BASIC && mode != FI_MR_SCALABLE)
        CHECK("no mode beyond those offered", (a.info->domain_attr->mr_mode & ~mode) == 0);
    struct region region;
    if (EXPECT("a region", region_open(&b, b.memory + 8192, 8192, all_access, &region), 0)) {
        write_ends(&a, &region, 4096, false, name);
        CHECK("its bytes", filled(b.memory + 8192 + 4096, 64, 5));
        region_close(&region);
    }
    pair_close(&a, &b);
}

void walk_mr(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_RMA);
    static struct side a, b;
    if (pair_open(&a, &b, &options, "two endpoints with RMA")) {
        walk_calls(&a);
        if (!gentle)
            walk_rights(&a, &b);
        pair_close(&a, &b);
    }
    walk_mode(0, "registration by offset and chosen keys");
    walk_mode(FI_MR_SCALABLE, "the scalable mode of old");
    walk_mode(FI_MR_BASIC, "the basic mode of old");
    walk_mode(FI_MR_VIRT_ADDR, "virtual addresses");
    walk_mode(FI_MR_PROV_KEY, "keys of the provider");
    walk_mode(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED, "virtual addresses and keys of the provider");
    walk_mode(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED | FI_MR_LOCAL, "and local registration");
    walk_mode(FI_MR_ENDPOINT, "regions of an endpoint");
}
