/* Walks every call of the interface and its error paths through the stock
 * library, in one process with both ends of each conversation.
 *
 *   walk [-e] [-g] [-n] [-l] PROVIDER [PART...]
 *
 * -e: everything is asked: what the provider does not offer is a failure.
 * -g: gentle, without input that brings some providers of the box down.
 * -n: no process of its own for each part (for a leak checker or debugger).
 * -l: lists the parts. Without PART all are walked. The last line counts. */
#include "walk.h"

#include <sys/mman.h>
#include <sys/wait.h>

static const struct {
    const char *name;
    void (*walk)(void);
} parts[] = {
    { "info", walk_info },
    { "fabric", walk_fabric },
    { "domain", walk_domain },
    { "av", walk_av },
    { "cq", walk_cq },
    { "cntr", walk_cntr },
    { "eq", walk_eq },
    { "sets", walk_sets },
    { "mr", walk_mr },
    { "rdm", walk_rdm },
    { "message", walk_message },
    { "tagged", walk_tagged },
    { "multi-receive", walk_multi_receive },
    { "rma", walk_rma },
    { "atomic", walk_atomic },
    { "counters", walk_counters },
    { "dgram", walk_dgram },
    { "msg", walk_msg },
    { "scalable", walk_scalable },
    { "shared", walk_shared },
    { "late", walk_late },
    { "trigger", walk_trigger },
    { "work", walk_work },
    { "full", walk_full },
    { "variable", walk_variable },
    { "errors", walk_errors },
    { "formats", walk_formats },
    { "unknown-sources", walk_unknown_sources },
    { "stale", walk_stale },
    { "buffers", walk_buffers },
    { "regions", walk_regions },
};

static bool is_asked(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return true;
    return count == 0;
}

/* A part in a process of its own: a crash is one failure, and the walk goes on. */
static void walk_apart(void (*walk)(void))
{
    unsigned *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ok_count = fail_count = absent_count = 0;
        /* A call that never returns ends here, far beyond what any part needs. */
        alarm(HANG_GUARD_S * 5);
        walk();
        counts[0] = ok_count;
        counts[1] = fail_count;
        counts[2] = absent_count;
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ok_count += counts[0];
    fail_count += counts[1];
    absent_count += counts[2];
    munmap(counts, 4096);
    if (status) {
        char reason[64];
        snprintf(reason, sizeof(reason), "ended by signal %d, status %d", WTERMSIG(status), WEXITSTATUS(status));
        report(false, "the part ends well", __FILE__, __LINE__, reason);
    }
}

int main(int argc, char **argv)
{
    int option;
    bool apart = true;
    while ((option = getopt(argc, argv, "+egnl")) != -1) {
        switch (option) {
        case 'e':
            everything_is_asked = true;
            break;
        case 'g':
            gentle = true;
            break;
        case 'n':
            apart = false;
            break;
        case 'l':
            for (size_t i = 0; i < COUNT_OF(parts); i++)
                printf("%s\n", parts[i].name);
            return 0;
        default:
            return 2;
        }
    }
    if (optind >= argc) {
        fprintf(stderr, "usage: walk [-e] [-g] [-n] [-l] PROVIDER [PART...]\n");
        return 2;
    }
    provider = argv[optind++];
    unsigned walked = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!is_asked(parts[i].name, argc - optind, argv + optind))
            continue;
        walked++;
        current_part = parts[i].name;
        if (apart)
            walk_apart(parts[i].walk);
        else
            parts[i].walk();
    }
    printf("walked %u parts of %s: %u ok, %u failed, %u absent\n", walked, provider, ok_count, fail_count, absent_count);
    return fail_count || !walked ? 1 : 0;
}
