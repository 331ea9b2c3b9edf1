//! Programs that others wrote, as Debian packs them, with its Open MPI on the plug-in: HPC Challenge, NetPIPE and
//! ScaLAPACK's own tests. They judge their results themselves; the tests here only read what they say.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test: a panic is a failed test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use common::{Road, mpirun, run_in, scratch, tail, text};

/// Small matrices on a grid of two by two; the sizes of HPC Challenge's other parts follow from these. The program reads
/// it line by line and takes the numbers at the beginning of each.
const HPCC_INPUT: &str = "\
HPL, the input of HPC Challenge
four ranks
HPL.out  file
8        to the file
1        sizes
128      N
1        block sizes
16       NB
0        ranks by rows
1        grids
2        P
2        Q
16.0     threshold
1        panel factorizations
2        right-looking
1        recursive stopping criteria
4        NBMIN
1        panels in recursion
2        NDIV
1        recursive factorizations
1        Crout
1        broadcasts
1        modified ring
1        depths of lookahead
1        depth
2        swaps: mixed
64       threshold of swaps
0        L1 transposed
0        U transposed
1        equilibration
8        alignment
---- PTRANS
0        further sizes
0        N
0        further block sizes
0        NB
";

const LU_INPUT: &str = "\
'LU factorizations'
'four ranks'
'LU.out'  file
6         to standard output
2         sizes
13 40     M
13 40     N
1         block sizes
4         NB
1         numbers of right-hand sides
3         NRHS
1         block sizes of right-hand sides
3         NBRHS
2         grids
2 1       P
2 4       Q
1.0       threshold
F         no condition estimates and iterative refinement: on some processors those hang, over whatever transport
";

const QR_INPUT: &str = "\
'Orthogonal factorizations'
'four ranks'
'QR.out'  file
6         to standard output
6         factorizations
'QR' 'QL' 'LQ' 'RQ' 'QP' 'TZ'
2         sizes
13 30     M
17 30     N
1         block sizes
4         MB
3         NB
2         grids
2 4       P
2 1       Q
5.0       threshold
";

#[test]
fn hpc_challenge() {
    hpcc(Road::Auto);
}

#[test]
fn hpc_challenge_over_packets() {
    hpcc(Road::Packets);
}

#[test]
fn netpipe() {
    integrity(Road::Auto);
}

#[test]
fn netpipe_over_packets() {
    integrity(Road::Packets);
}

#[test]
fn scalapack() {
    factorizations(Road::Auto);
}

#[test]
fn scalapack_over_packets() {
    factorizations(Road::Packets);
}

fn hpcc(road: Road) {
    let program = on_path("hpcc", "hpcc");
    let folder = empty_folder();
    fs::write(folder.join("hpccinf.txt"), HPCC_INPUT).unwrap();
    let output = run_ranks(road, 4, &folder, &program, &[]);
    let told = fs::read_to_string(folder.join("hpccoutf.txt")).unwrap_or_default();
    let good = output.status.success() && told.lines().any(|line| line == "Success=1");
    assert!(good, "{}\n{}", tail(&told), tail(&text(&output)));
}

/// Two ranks pass messages to and fro that both of them check: plainly, and both at once into receives that wait.
fn integrity(road: Road) {
    let program = on_path("NPopenmpi", "netpipe-openmpi");
    for options in [&[][..], &["-a", "-2"][..]] {
        let arguments = [&["-i", "-u", "300000", "-n", "3"], options].concat();
        let output = run_ranks(road, 2, &empty_folder(), &program, &arguments);
        let told = text(&output);
        let sizes = told.lines().filter(|line| line.contains(" bytes ")).count();
        let passed = told.lines().filter(|line| line.contains("Integrity check passed")).count();
        // From 1 byte to 300,000: two sizes for each power of two.
        let good = output.status.success() && passed >= 30 && passed == sizes && !told.contains("failed");
        assert!(good, "{passed} of {sizes} passed:\n{}", tail(&told));
    }
}

fn factorizations(road: Road) {
    for (name, input, data, tests) in [("xdlu", "LU.dat", LU_INPUT, 4), ("xcqr", "QR.dat", QR_INPUT, 24)] {
        let program = scalapack_test(name);
        let folder = empty_folder();
        fs::write(folder.join(input), data).unwrap();
        let output = run_ranks(road, 4, &folder, &program, &[]);
        let told = text(&output);
        let says = |count: u32, words: &str| {
            told.lines().any(|line| line.trim().strip_prefix(&count.to_string()).is_some_and(|rest| rest == words))
        };
        let good = output.status.success()
            && says(tests, " tests completed and passed residual checks.")
            && says(0, " tests completed and failed residual checks.")
            && says(0, " tests skipped because of illegal input values.");
        assert!(good, "{name}:\n{}", tail(&told));
    }
}

fn run_ranks(road: Road, ranks: u32, folder: &Path, program: &Path, arguments: &[&str]) -> Output {
    let mut command = mpirun(road, ranks);
    // One thread for each rank, whichever BLAS is installed.
    command.env("OPENBLAS_NUM_THREADS", "1").env("OMP_NUM_THREADS", "1");
    run_in(folder, command.arg(program).args(arguments))
}

fn on_path(name: &str, package: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: apt-get install {package}"))
}

fn scalapack_test(name: &str) -> PathBuf {
    let program = format!("/usr/lib/{}-linux-gnu/scalapack/openmpi-tests/{name}", env::consts::ARCH);
    assert!(Path::new(&program).is_file(), "{program} is not there: apt-get install scalapack-mpi-test");
    PathBuf::from(program)
}

/// These programs read and write files in the folder where they are started.
fn empty_folder() -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let folder = scratch().join(format!("run-{}", MADE.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&folder).unwrap();
    folder
}
