/* fi_getinfo and its hints; fabrics; domains. */
#include "walk.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static const enum fi_ep_type types[] = { FI_EP_RDM, FI_EP_DGRAM, FI_EP_MSG };
static const char *const type_names[] = { "rdm", "dgram", "msg" };

static int ask(struct fi_info *hints, struct fi_info **info)
{
    *info = NULL;
    return fi_getinfo(API_VERSION, NULL, NULL, 0, hints, info);
}

#define cannot(name, hints) cannot_at((name), (hints), __LINE__)
/* The hints cannot be met: -FI_ENODATA, and nothing is returned. Frees them. */
static void cannot_at(const char *name, struct fi_info *hints, int line)
{
    struct fi_info *info;
    expect_code(name, ask(hints, &info), __FILE__, line, (const long[]){ -FI_ENODATA }, 1);
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

static struct fi_info *plain_hints(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_UNSPEC, 0);
    return hints_for(&options);
}

/* What every entry has to say about itself. */
static void check_entry(const struct fi_info *info, const struct fi_info *hints)
{
    CHECK("an entry has all attributes", info->tx_attr && info->rx_attr && info->ep_attr && info->domain_attr && info->fabric_attr);
    CHECK("an entry names its provider", info->fabric_attr->prov_name && strstr(info->fabric_attr->prov_name, provider));
    CHECK("an entry names fabric and domain", info->fabric_attr->name && info->domain_attr->name);
    CHECK("an entry has the type asked for", hints->ep_attr->type == FI_EP_UNSPEC || info->ep_attr->type == hints->ep_attr->type);
    CHECK("an entry has the capabilities asked for", (info->caps & hints->caps) == hints->caps);
    CHECK("an entry needs no mode that was not offered", (info->mode & ~hints->mode) == 0);
    CHECK("tx capabilities are part of all", (info->tx_attr->caps & ~info->caps) == 0);
    CHECK("rx capabilities are part of all", (info->rx_attr->caps & ~info->caps) == 0);
    CHECK("an entry has a source address", info->src_addr && info->src_addrlen);
    CHECK("sizes are given", info->tx_attr->size && info->rx_attr->size && info->ep_attr->max_msg_size && info->tx_attr->iov_limit &&
                                 info->rx_attr->iov_limit);
    CHECK("threading is given", info->domain_attr->threading != FI_THREAD_UNSPEC);
    CHECK("progress is given", info->domain_attr->data_progress != FI_PROGRESS_UNSPEC &&
                                   info->domain_attr->control_progress != FI_PROGRESS_UNSPEC);
    CHECK("the kind of address vector is given", info->domain_attr->av_type == FI_AV_UNSPEC || info->domain_attr->av_type == FI_AV_MAP ||
                                                     info->domain_attr->av_type == FI_AV_TABLE);
    CHECK("it can be printed", strlen(fi_tostr(info, FI_TYPE_INFO)) > 100);
}

static void walk_types(void)
{
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct side_options options = SIDE_OPTIONS(types[i], FI_MSG);
        struct fi_info *hints = hints_for(&options), *info;
        int code = ask(hints, &info);
        if (code == -FI_ENODATA) {
            absent(type_names[i], "no such endpoint");
        } else if (EXPECT(type_names[i], code, 0)) {
            for (struct fi_info *entry = info; entry; entry = entry->next)
                check_entry(entry, hints);
            struct fi_info *copy = fi_dupinfo(info);
            CHECK("fi_dupinfo copies", copy && copy->caps == info->caps && copy->src_addrlen == info->src_addrlen && !copy->next);
            fi_freeinfo(copy);
        }
        fi_freeinfo(info);
        fi_freeinfo(hints);
    }
}

static void walk_hints_that_cannot_be_met(void)
{
    struct fi_info *hints, *usual = NULL;

    hints = plain_hints();
    bool any_length = ask(hints, &usual) == 0 && usual->ep_attr->max_msg_size == SIZE_MAX;
    fi_freeinfo(usual);
    fi_freeinfo(hints);
    if (!any_length) {
        hints = plain_hints();
        hints->ep_attr->max_msg_size = SIZE_MAX;
        cannot("messages of any length", hints);
    }
    hints = plain_hints();
    hints->ep_attr->protocol = 0x7ffffff0;
    cannot("an unknown protocol", hints);
    hints = plain_hints();
    hints->ep_attr->type = 77;
    cannot("an unknown endpoint type", hints);
    hints = plain_hints();
    hints->tx_attr->inject_size = SIZE_MAX;
    cannot("inject of any length", hints);
    hints = plain_hints();
    hints->tx_attr->size = SIZE_MAX;
    cannot("a transmit queue of any size", hints);
    hints = plain_hints();
    hints->rx_attr->size = SIZE_MAX;
    cannot("a receive queue of any size", hints);
    hints = plain_hints();
    hints->tx_attr->iov_limit = 1 << 20;
    cannot("very long vectors to send", hints);
    hints = plain_hints();
    hints->rx_attr->iov_limit = 1 << 20;
    cannot("very long vectors to receive", hints);
    hints = plain_hints();
    hints->tx_attr->rma_iov_limit = 1 << 20;
    cannot("very long remote vectors", hints);
    hints = plain_hints();
    hints->domain_attr->name = strdup("no-such-domain");
    cannot("an unknown domain", hints);
    hints = plain_hints();
    hints->fabric_attr->name = strdup("no-such-fabric");
    cannot("an unknown fabric", hints);
    hints = plain_hints();
    hints->addr_format = FI_ADDR_PSMX;
    cannot("an address format of others", hints);
    hints = plain_hints();
    hints->domain_attr->cq_data_size = 4096;
    cannot("very long completion data", hints);
    hints = plain_hints();
    hints->domain_attr->mr_key_size = 4096;
    cannot("very long keys", hints);
    hints = plain_hints();
    hints->ep_attr->tx_ctx_cnt = 1 << 30;
    cannot("a great many transmit contexts", hints);
    hints = plain_hints();
    hints->ep_attr->rx_ctx_cnt = 1 << 30;
    cannot("a great many receive contexts", hints);
    hints = plain_hints();
    hints->caps = FI_MSG;
    hints->tx_attr->caps = FI_MSG | (1ULL << 58);
    cannot("an unknown transmit capability", hints);
    hints = plain_hints();
    hints->caps = FI_MSG | (1ULL << 62);
    cannot("an unknown capability", hints);
    hints = plain_hints();
    hints->ep_attr->type = FI_EP_DGRAM;
    hints->caps = FI_MULTICAST | FI_COLLECTIVE | FI_RMA | FI_ATOMIC | FI_VARIABLE_MSG;
    cannot("capabilities that do not go together", hints);
}

static void walk_nodes(void)
{
    struct fi_info *hints = plain_hints(), *info = NULL;

    EXPECT("a node that is no name", fi_getinfo(API_VERSION, "no.such.node.invalid", "4000", 0, hints, &info), -FI_ENODATA);
    EXPECT("a name where a number is due", fi_getinfo(API_VERSION, "localhost", "4000", FI_NUMERICHOST, hints, &info), -FI_ENODATA, 0);
    fi_freeinfo(info);
    info = NULL;
    EXPECT("a version to come", fi_getinfo(FI_VERSION(99, 0), NULL, NULL, 0, hints, &info), -FI_ENOSYS);
    info = NULL;
    if (EXPECT("a node to reach", fi_getinfo(API_VERSION, "127.0.0.1", "4711", 0, hints, &info), 0)) {
        CHECK("its address is the destination", info->dest_addr && info->dest_addrlen);
        if (info->addr_format == FI_SOCKADDR_IN && info->dest_addr) {
            const struct sockaddr_in *address = info->dest_addr;
            CHECK("with node and service", address->sin_port == htons(4711) && address->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        }
    }
    fi_freeinfo(info);
    info = NULL;
    if (EXPECT("a node to be", fi_getinfo(API_VERSION, "127.0.0.1", "4712", FI_SOURCE, hints, &info), 0)) {
        CHECK("has no destination", !info->dest_addr);
        if (info->addr_format == FI_SOCKADDR_IN && info->src_addr) {
            const struct sockaddr_in *address = info->src_addr;
            CHECK("is the source", address->sin_port == htons(4712) && address->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        }
    }
    fi_freeinfo(info);
    info = NULL;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(4713), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    hints->addr_format = FI_SOCKADDR_IN;
    hints->src_addr = malloc(sizeof(address));
    memcpy(hints->src_addr, &address, sizeof(address));
    hints->src_addrlen = sizeof(address);
    if (EXPECT("a source address among the hints", fi_getinfo(API_VERSION, NULL, NULL, 0, hints, &info), 0))
        CHECK("it is kept", info->src_addr && ((struct sockaddr_in *)info->src_addr)->sin_port == htons(4713));
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* Hints that have to come back as they were given. */
static void walk_hints_that_are_kept(void)
{
    static const enum fi_threading threadings[] = { FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT };
    struct fi_info *info;
    for (size_t i = 0; i < COUNT_OF(threadings); i++) {
        struct fi_info *hints = plain_hints();
        hints->domain_attr->threading = threadings[i];
        if (EXPECT("a threading level", ask(hints, &info), 0)) {
            /* Stricter is allowed only towards FI_THREAD_SAFE. */
            CHECK("it is kept or safer", info->domain_attr->threading == threadings[i] || info->domain_attr->threading == FI_THREAD_SAFE);
        }
        fi_freeinfo(info);
        fi_freeinfo(hints);
    }
    static const enum fi_progress progresses[] = { FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL };
    for (size_t i = 0; i < COUNT_OF(progresses); i++) {
        struct fi_info *hints = plain_hints();
        hints->domain_attr->data_progress = hints->domain_attr->control_progress = progresses[i];
        int code = ask(hints, &info);
        if (code == -FI_ENODATA)
            absent("a progress mode", "this provider has the other");
        else if (EXPECT("a progress mode", code, 0))
            CHECK("it is kept or automatic", info->domain_attr->data_progress == progresses[i] || info->domain_attr->data_progress == FI_PROGRESS_AUTO);
        fi_freeinfo(info);
        fi_freeinfo(hints);
    }
    static const enum fi_av_type av_types[] = { FI_AV_MAP, FI_AV_TABLE };
    for (size_t i = 0; i < COUNT_OF(av_types); i++) {
        struct fi_info *hints = plain_hints();
        hints->domain_attr->av_type = av_types[i];
        if (EXPECT("a kind of address vector", ask(hints, &info), 0))
            CHECK("it is kept", info->domain_attr->av_type == av_types[i] || info->domain_attr->av_type == FI_AV_UNSPEC);
        fi_freeinfo(info);
        fi_freeinfo(hints);
    }
    struct fi_info *hints = plain_hints();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    int code = ask(hints, &info);
    if (code == -FI_ENODATA)
        absent("rdm with delivery complete and ordered sends", "not offered");
    else if (EXPECT("rdm with delivery complete and ordered sends", code, 0)) {
        CHECK("op flags are kept", info->tx_attr->op_flags & FI_DELIVERY_COMPLETE);
        CHECK("orders are kept", (info->tx_attr->msg_order & FI_ORDER_SAS) && (info->rx_attr->msg_order & FI_ORDER_SAS));
    }
    fi_freeinfo(info);
    fi_freeinfo(hints);
}

/* Who asks again with what it was given gets the same, and no orders for the sizes of others. */
static void walk_answers_as_hints(void)
{
    static const uint64_t orders[] = {
        0,
        FI_ORDER_SAS | FI_ORDER_ATOMIC_WAW | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_RAR,
        FI_ORDER_RMA_WAW,
    };
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        for (size_t j = 0; j < COUNT_OF(orders); j++) {
            struct side_options options = SIDE_OPTIONS(types[i], types[i] == FI_EP_DGRAM ? FI_MSG : FI_RMA | FI_ATOMIC | FI_TAGGED);
            struct fi_info *hints = hints_for(&options), *first, *second = NULL;
            hints->tx_attr->msg_order = orders[j];
            int code = ask(hints, &first);
            fi_freeinfo(hints);
            if (code == -FI_ENODATA) {
                if (!orders[j])
                    absent(type_names[i], "no such endpoint");
                continue;
            }
            if (EXPECT(type_names[i], code, 0) && EXPECT("the answer as hints", ask(first, &second), 0)) {
                CHECK("capabilities and modes stay", first->caps == second->caps && first->mode == second->mode &&
                                                         first->domain_attr->mr_mode == second->domain_attr->mr_mode);
                CHECK("orders stay", first->tx_attr->msg_order == second->tx_attr->msg_order && first->rx_attr->msg_order == second->rx_attr->msg_order);
                CHECK("sizes stay", first->ep_attr->max_order_raw_size == second->ep_attr->max_order_raw_size &&
                                        first->ep_attr->max_order_war_size == second->ep_attr->max_order_war_size &&
                                        first->ep_attr->max_order_waw_size == second->ep_attr->max_order_waw_size &&
                                        first->ep_attr->max_msg_size == second->ep_attr->max_msg_size &&
                                        first->tx_attr->inject_size == second->tx_attr->inject_size && first->tx_attr->size == second->tx_attr->size &&
                                        first->rx_attr->size == second->rx_attr->size);
            }
            fi_freeinfo(second);
            fi_freeinfo(first);
        }
    }
}

void walk_info(void)
{
    struct fi_info *info = NULL;

    CHECK("the library is new enough", FI_VERSION_GE(fi_version(), API_VERSION));
    if (EXPECT("without hints", fi_getinfo(API_VERSION, NULL, NULL, 0, NULL, &info), 0)) {
        bool found = false;
        for (struct fi_info *entry = info; entry; entry = entry->next)
            found |= strstr(entry->fabric_attr->prov_name, provider) != NULL;
        CHECK("the provider is among them", found);
    }
    fi_freeinfo(info);
    info = NULL;
    if (EXPECT("providers only", fi_getinfo(API_VERSION, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &info), 0)) {
        bool found = false;
        for (struct fi_info *entry = info; entry; entry = entry->next)
            found |= entry->fabric_attr && entry->fabric_attr->prov_name && !strcmp(entry->fabric_attr->prov_name, provider) &&
                     entry->fabric_attr->prov_version;
        CHECK("the provider is among them with its version", found || strchr(provider, ';'));
    }
    fi_freeinfo(info);
    walk_types();
    walk_hints_that_cannot_be_met();
    walk_nodes();
    walk_hints_that_are_kept();
    walk_answers_as_hints();
}

static struct fi_info *any_info(enum fi_ep_type type)
{
    struct side_options options = SIDE_OPTIONS(type, 0);
    struct fi_info *hints = hints_for(&options), *info = NULL;
    ask(hints, &info);
    fi_freeinfo(hints);
    return info;
}

void walk_fabric(void)
{
    struct fi_info *info = any_info(FI_EP_UNSPEC);
    struct fid_fabric *fabric = NULL, *second = NULL;
    struct fid_domain *domain = NULL;
    void *operations = NULL;

    if (!CHECK("there is one", info))
        return;
    if (!EXPECT("fi_fabric", fi_fabric(info->fabric_attr, &fabric, &info), 0))
        goto out;
    CHECK("its class", fabric->fid.fclass == FI_CLASS_FABRIC);
    CHECK("its context", fabric->fid.context == &info);
    if (EXPECT("fi_fabric again", fi_fabric(info->fabric_attr, &second, NULL), 0))
        EXPECT("fi_close of the second", fi_close(&second->fid), 0);
    EXPECT("operations of an unknown name", fi_open_ops(&fabric->fid, "no such operations", 0, &operations, NULL), -FI_ENOSYS, -FI_EINVAL);
    if (EXPECT("fi_domain", fi_domain(fabric, info, &domain, NULL), 0)) {
        if (!gentle)
            EXPECT("fi_close with a domain open", fi_close(&fabric->fid), -FI_EBUSY);
        EXPECT("fi_close of the domain", fi_close(&domain->fid), 0);
    }
    EXPECT("fi_close", fi_close(&fabric->fid), 0);
    struct fi_fabric_attr unknown = *info->fabric_attr;
    unknown.prov_name = "no-such-provider";
    unknown.fabric = NULL;
    EXPECT("a fabric of an unknown provider", fi_fabric(&unknown, &fabric, NULL), -FI_ENODEV, -FI_ENODATA);
    unknown = *info->fabric_attr;
    unknown.name = "no-such-fabric";
    fabric = NULL;
    int code = fi_fabric(&unknown, &fabric, NULL);
    EXPECT("a fabric of an unknown name", code, -FI_ENODATA, -FI_EINVAL, -FI_ENODEV);
    if (!code)
        fi_close(&fabric->fid);
out:
    fi_freeinfo(info);
}

static void walk_domain_attributes(struct fid_fabric *fabric, struct fi_info *info)
{
    struct fid_domain *domain = NULL;
    if (gentle)
        return;
    struct fi_info *wrong = fi_dupinfo(info);
    free(wrong->domain_attr->name);
    wrong->domain_attr->name = strdup("no-such-domain");
    int code = fi_domain(fabric, wrong, &domain, NULL);
    EXPECT("a domain of an unknown name", code, -FI_EINVAL, -FI_ENODATA, -FI_ENODEV);
    if (!code)
        fi_close(&domain->fid);
    fi_freeinfo(wrong);
    wrong = fi_dupinfo(info);
    wrong->domain_attr->mr_key_size = 4096;
    domain = NULL;
    code = fi_domain(fabric, wrong, &domain, NULL);
    EXPECT("keys that are too long", code, -FI_EINVAL, -FI_ENODATA);
    if (!code)
        fi_close(&domain->fid);
    fi_freeinfo(wrong);
    for (enum fi_threading threading = FI_THREAD_UNSPEC; threading <= FI_THREAD_ENDPOINT; threading++) {
        struct fi_info *other = fi_dupinfo(info);
        other->domain_attr->threading = threading;
        if (EXPECT("a domain of each threading level", fi_domain(fabric, other, &domain, NULL), 0))
            fi_close(&domain->fid);
        fi_freeinfo(other);
    }
}

void walk_domain(void)
{
    struct fi_info *info = any_info(FI_EP_UNSPEC);
    struct fid_fabric *fabric = NULL;
    struct fid_domain *domain = NULL, *second = NULL;
    struct fid_ep *ep = NULL;
    struct fid_eq *eq = NULL;
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
    void *operations = NULL;

    if (!CHECK("there is one", info) || !EXPECT("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL), 0))
        goto out;
    if (!EXPECT("fi_domain", fi_domain(fabric, info, &domain, &info), 0))
        goto out;
    CHECK("its class", domain->fid.fclass == FI_CLASS_DOMAIN);
    CHECK("its context", domain->fid.context == &info);
    if (EXPECT("fi_domain again", fi_domain(fabric, info, &second, NULL), 0))
        EXPECT("fi_close of the second", fi_close(&second->fid), 0);
    EXPECT("operations of an unknown name", fi_open_ops(&domain->fid, "no such operations", 0, &operations, NULL), -FI_ENOSYS, -FI_EINVAL);
    if (EXPECT("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL), 0)) {
        EXPECT("fi_domain_bind to an event queue", fi_domain_bind(domain, &eq->fid, 0), 0, -FI_ENOSYS);
        if (!gentle)
            EXPECT("fi_domain_bind to a domain", fi_domain_bind(domain, &domain->fid, 0), -FI_EINVAL, -FI_ENOSYS);
    }
    if (EXPECT("fi_endpoint", fi_endpoint(domain, info, &ep, NULL), 0)) {
        EXPECT("fi_close with an endpoint open", fi_close(&domain->fid), -FI_EBUSY);
        EXPECT("fi_close of the endpoint", fi_close(&ep->fid), 0);
    }
    struct fi_info *wrong = fi_dupinfo(info);
    wrong->ep_attr->type = 77;
    EXPECT("fi_endpoint of an unknown type", fi_endpoint(domain, wrong, &ep, NULL), -FI_EINVAL, -FI_ENOPROTOOPT, -FI_ENODATA, -FI_ENOSYS);
    fi_freeinfo(wrong);
    wrong = fi_dupinfo(info);
    wrong->tx_attr->inject_size = SIZE_MAX;
    int code = fi_endpoint(domain, wrong, &ep, NULL);
    EXPECT("fi_endpoint with attributes beyond the limits", code, -FI_EINVAL, -FI_ENODATA);
    if (!code)
        fi_close(&ep->fid);
    fi_freeinfo(wrong);
    EXPECT("fi_close", fi_close(&domain->fid), 0);
    domain = NULL;
    if (eq)
        EXPECT("fi_close of the event queue", fi_close(&eq->fid), 0);
    walk_domain_attributes(fabric, info);
out:
    if (fabric)
        EXPECT("fi_close of the fabric", fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
}
