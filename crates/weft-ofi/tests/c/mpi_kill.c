/* A rank dies by a signal in the middle of traffic. The job has to end with an
 * error by itself; whoever starts it checks that, and that nothing is left.
 * Before it dies the rank makes a file: what it prints may be lost with it.
 *   mpi_kill FILE [RANK TO DIE] */
#include "mpi_common.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    REQUIRE(argc > 1, "no file is named");
    int victim = argc > 2 ? atoi(argv[2]) : ranks - 1;
    size_t block = 65536;
    unsigned char *out = room(block * (size_t)ranks), *in = room(block * (size_t)ranks);
    memset(out, rank, block * (size_t)ranks);
    for (int round = 0;; round++) {
        if (rank == victim && round == 100) {
            REQUIRE(open(argv[1], O_CREAT | O_WRONLY, 0600) >= 0, "%s", argv[1]);
            kill(getpid(), SIGKILL);
        }
        MPI_Alltoall(out, (int)block, MPI_BYTE, in, (int)block, MPI_BYTE, MPI_COMM_WORLD);
    }
}
