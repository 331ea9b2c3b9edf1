/* Opens and closes many endpoints of a domain. What one costs must not grow with the number of others: eight times as many
 * take about eight times as long, where a look at all others for each would take sixty-four times. Only the time that
 * this thread has on a processor counts, and of several rounds the least, so that it does not matter what else runs.
 *   many PROVIDER */
#include "common.h"

#include <time.h>

#define FEW 1500
#define ROUNDS 5

static double busy(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double open_and_close(struct side *side, int count)
{
    struct fid_ep **endpoints = calloc((size_t)count, sizeof(*endpoints));
    double begun = busy();
    for (int i = 0; i < count; i++) {
        int code = fi_endpoint(side->domain, side->info, &endpoints[i], NULL);
        if (!code)
            code = fi_ep_bind(endpoints[i], &side->av->fid, 0);
        if (!code)
            code = fi_ep_bind(endpoints[i], &side->transmit.cq->fid, FI_TRANSMIT | FI_RECV);
        if (!code)
            code = fi_enable(endpoints[i]);
        if (code) {
            printf("FAIL endpoint %d of %d: %s\n", i, count, fi_strerror(-code));
            exit(1);
        }
    }
    for (int i = 0; i < count; i++)
        if (fi_close(&endpoints[i]->fid)) {
            printf("FAIL fi_close\n");
            exit(1);
        }
    double took = busy() - begun;
    free(endpoints);
    return took;
}

int main(int argc, char **argv)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED);
    static struct side side;
    double few = 1e9, many = 1e9;
    if (argc != 2)
        return 2;
    provider = argv[1];
    int code = side_open(&side, &options);
    if (code) {
        printf("FAIL %s\n", fi_strerror(-code));
        return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        double took = open_and_close(&side, FEW);
        few = took < few ? took : few;
        took = open_and_close(&side, 8 * FEW);
        many = took < many ? took : many;
    }
    side_close(&side);
    printf("%s %d endpoints %.4f s, eight times as many %.4f s\n", many < 32 * few ? "ok" : "FAIL", FEW, few, many);
    return many < 32 * few ? 0 : 1;
}
