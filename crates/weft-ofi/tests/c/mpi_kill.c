/* A rank dies by a signal in the middle of traffic. The job has to end with an
 * error by itself; whoever starts it checks that, and that nothing is left.
 *   mpi_kill [RANK TO DIE] */
#include "mpi_common.h"

#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int victim = argc > 1 ? atoi(argv[1]) : ranks - 1;
    size_t block = 65536;
    unsigned char *out = room(block * (size_t)ranks), *in = room(block * (size_t)ranks);
    memset(out, rank, block * (size_t)ranks);
    for (int round = 0;; round++) {
        if (rank == victim && round == 100) {
            printf("rank %d dies\n", rank);
            fflush(stdout);
            kill(getpid(), SIGKILL);
        }
        MPI_Alltoall(out, (int)block, MPI_BYTE, in, (int)block, MPI_BYTE, MPI_COMM_WORLD);
    }
}
