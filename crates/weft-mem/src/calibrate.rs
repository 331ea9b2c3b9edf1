//! How long messages are best copied between processes on this machine: measured, not believed.
//!
//! There are two ways. Cross-memory attach copies once, in the system, on one core. Through shared memory bytes are
//! copied twice, in pieces, but by two cores at the same time. Which is faster depends on processor, system and length.
//! [`copy_methods`] measures both, in some [`CALIBRATE_BUDGET_US`] microseconds, and keeps the result in a file until the
//! machine is started anew. `WEFT_COPY=attach` or `WEFT_COPY=ring` decides without measuring.
//!
//! What is kept is the best of all measurements, of which there is one in [`CALIBRATE_FRESH_S`] seconds: virtual processors
//! move, and the ring is slow while they are far from each other. That it is slow just now is for who uses it to find out.
//!
//! Whether attach is permitted between two processes is another question ([`attach::can_attach`](crate::attach::can_attach)).

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::limits::{CALIBRATE_BUDGET_US, CALIBRATE_FILE_MAX_BYTES, CALIBRATE_FRESH_S, CALIBRATE_LENGTHS};

mod bench;

/// Which way long messages are copied between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyMethods {
    /// From this many bytes on cross-memory attach is the better way, where it is permitted. `None`: it never is.
    pub attach_from_bytes: Option<usize>,
    /// What was measured; empty where nothing was.
    pub measurements: Vec<Measurement>,
    /// How it was decided.
    pub decided: Decided,
}

/// Bytes a second of both ways, at one length. 0: that way does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Bytes of the message.
    pub length: usize,
    /// By cross-memory attach.
    pub attach: u64,
    /// Through shared memory, in pieces, with a core on either side.
    pub ring: u64,
}

/// How it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Measured by this process.
    Measured,
    /// Measured by this process while others used the cores: the next one measures again.
    Disturbed,
    /// This process may use one core of several, and cannot measure the ring: its peers may be on the others.
    Bound,
    /// Measured by a process before, since this machine was started.
    Remembered,
    /// By the environment.
    Told,
}

impl CopyMethods {
    /// What follows from measurements, which are sorted by length.
    fn from_measurements(measurements: Vec<Measurement>, decided: Decided) -> CopyMethods {
        // From the longest down, unless the ring is clearly the faster one: it takes two copies, and a processor on either
        // side for all of the time, where attach takes one of both and leaves the other program alone. So attach is taken
        // as well where the ring could not be measured, or was slow because the machine was busy.
        let better = |found: &&Measurement| found.attach > 0 && found.attach + found.attach / 2 >= found.ring;
        let better = measurements.iter().rev().take_while(better);
        let attach_from_bytes = better.last().map(|found| found.length);
        CopyMethods { attach_from_bytes, measurements, decided }
    }

    /// Whether cross-memory attach may be used at all: it may be slower than shared memory now, and faster later.
    #[must_use]
    pub fn may_attach(&self) -> bool {
        self.decided != Decided::Told || self.attach_from_bytes.is_some()
    }

    /// What was decided and why, in lines for people.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let how = match self.attach_from_bytes {
            None => "in pieces through shared memory".to_owned(),
            Some(0) => "by cross-memory attach where it is permitted".to_owned(),
            Some(bytes) => {
                format!("in pieces through shared memory; from {} on by cross-memory attach", Bytes(bytes))
            }
        };
        let why = match self.decided {
            Decided::Measured => "measured now",
            Decided::Disturbed => "measured now on a busy machine, to be measured again",
            Decided::Bound => "this process is bound to one core, and cannot measure it",
            Decided::Remembered => "measured since this machine was started",
            Decided::Told => "as WEFT_COPY says",
        };
        let mut lines = vec![format!("long messages are copied {how} ({why})")];
        lines.extend(self.measurements.iter().map(|measurement| {
            let Measurement { length, attach, ring } = *measurement;
            let line = format!("{}: attach {}", Bytes(length), Rate(attach));
            if self.decided == Decided::Bound { line } else { format!("{line}, shared memory {}", Rate(ring)) }
        }));
        lines
    }
}

struct Bytes(usize);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

struct Rate(u64);

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("does not work"),
            rate => write!(f, "{:.1} GB/s", rate as f64 / 1e9),
        }
    }
}

/// The methods for this process: told, remembered or measured, when it is first asked for.
pub fn copy_methods() -> &'static CopyMethods {
    static METHODS: OnceLock<CopyMethods> = OnceLock::new();
    METHODS.get_or_init(|| decide(std::env::var("WEFT_COPY").ok().as_deref(), cache_file().as_deref(), measure))
}

/// Measures, and remembers nothing.
#[must_use]
pub fn measure() -> CopyMethods {
    let bound = std::thread::available_parallelism().map_or(1, usize::from) == 1 && online_cores() > 1;
    let (measurements, quiet) = bench::measure_within(Duration::from_micros(CALIBRATE_BUDGET_US), !bound);
    let decided = match (bound, quiet) {
        (true, _) => Decided::Bound,
        (false, true) => Decided::Measured,
        (false, false) => Decided::Disturbed,
    };
    CopyMethods::from_measurements(measurements, decided)
}

/// Cores of the machine, whichever of them this process may use.
fn online_cores() -> i64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

fn decide(told: Option<&str>, file: Option<&Path>, measure: impl FnOnce() -> CopyMethods) -> CopyMethods {
    let told_methods =
        |attach_from_bytes| CopyMethods { attach_from_bytes, measurements: Vec::new(), decided: Decided::Told };
    match told {
        Some("attach") => return told_methods(Some(0)),
        Some("ring") => return told_methods(None),
        // Anything else is as good as nothing: a wrong word must not stop a program.
        _ => {}
    }
    let known = file.and_then(|file| remembered(file, &machine()));
    if let Some((known, true)) = known {
        return CopyMethods::from_measurements(known, Decided::Remembered);
    }
    let methods = match (measure(), known) {
        (measured, Some((known, _))) if measured.decided == Decided::Measured => {
            CopyMethods::from_measurements(best(&known, &measured.measurements), Decided::Measured)
        }
        // What was known is better than what says nothing.
        (_, Some((known, _))) => CopyMethods::from_measurements(known, Decided::Remembered),
        (measured, None) => measured,
    };
    if let Some(file) = file
        && matches!(methods.decided, Decided::Measured | Decided::Remembered)
    {
        // Where it cannot be kept, the next process measures again.
        let _ = remember(file, &machine(), &methods.measurements);
    }
    methods
}

/// The best of two measurements of the same lengths.
fn best(one: &[Measurement], other: &[Measurement]) -> Vec<Measurement> {
    let pairs = one.iter().zip(other);
    pairs.map(|(a, b)| Measurement { attach: a.attach.max(b.attach), ring: a.ring.max(b.ring), ..*a }).collect()
}

/// Where measurements are kept. `None`: this user has no such place.
fn cache_file() -> Option<PathBuf> {
    cache_file_in(std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from), std::env::var_os("HOME").map(PathBuf::from))
}

fn cache_file_in(cache: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    // A path that is not absolute means nothing.
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let cache = cache.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")))?;
    Some(cache.join("weft").join("copy-v1"))
}

/// What a measurement holds for: this start of this system, on this processor, with as many cores.
fn machine() -> String {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = online_cores();
    let (kernel, boot) = (line("/proc/sys/kernel/osrelease"), line("/proc/sys/kernel/random/boot_id"));
    format!("kernel {kernel}\nprocessor {model}\nboot {boot}\ncores {cores}\n")
}

const FIRST_LINE: &str = "weft copy methods, version 1\n";

/// The file's measurements, if it is whole and of this machine, and whether they are fresh.
fn remembered(file: &Path, machine: &str) -> Option<(Vec<Measurement>, bool)> {
    // Whatever lies there must not make us wait, as a pipe would.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(file).ok()?;
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let age = metadata.modified().ok().and_then(|written| written.elapsed().ok());
    let mut text = String::new();
    file.take(CALIBRATE_FILE_MAX_BYTES).read_to_string(&mut text).ok()?;
    Some((parse(&text, machine)?, age.is_some_and(|age| age.as_secs() < CALIBRATE_FRESH_S)))
}

fn parse(text: &str, machine: &str) -> Option<Vec<Measurement>> {
    let mut lines = text.strip_prefix(FIRST_LINE)?.strip_prefix(machine)?.lines();
    let mut measurements = Vec::with_capacity(CALIBRATE_LENGTHS.len());
    for length in CALIBRATE_LENGTHS {
        let mut words = lines.next()?.split(' ');
        let found = words.next()?.parse::<usize>().ok()?;
        let (attach, ring) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        if found != length || words.next().is_some() {
            return None;
        }
        measurements.push(Measurement { length, attach, ring });
    }
    (lines.next() == Some("end") && lines.next().is_none()).then_some(measurements)
}

fn format(machine: &str, measurements: &[Measurement]) -> String {
    let mut text = format!("{FIRST_LINE}{machine}");
    for Measurement { length, attach, ring } in measurements {
        let _ = writeln!(text, "{length} {attach} {ring}");
    }
    text.push_str("end\n");
    text
}

/// Writes beside the file, and then in its place: who reads it meanwhile sees the old one or the new one.
fn remember(file: &Path, machine: &str, measurements: &[Measurement]) -> io::Result<()> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let folder = file.parent().ok_or(io::ErrorKind::NotFound)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".copy-v1.{}.{number}", std::process::id()));
    // One that a process left which had the same number is in the way.
    let _ = fs::remove_file(&beside);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file: File| file.write_all(format(machine, measurements).as_bytes()))
        .and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn measurements(rates: [(u64, u64); 4]) -> Vec<Measurement> {
        let pairs = CALIBRATE_LENGTHS.into_iter().zip(rates);
        pairs.map(|(length, (attach, ring))| Measurement { length, attach, ring }).collect()
    }

    fn measured(rates: [(u64, u64); 4]) -> CopyMethods {
        CopyMethods::from_measurements(measurements(rates), Decided::Measured)
    }

    /// A folder that goes with its value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("weft-calibrate-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn attach_is_taken_from_where_the_ring_is_not_clearly_faster() {
        let from = |rates| measured(rates).attach_from_bytes;
        assert_eq!(from([(1, 2), (1, 2), (1, 2), (1, 2)]), None);
        assert_eq!(from([(2, 1), (2, 1), (2, 1), (2, 1)]), Some(64 << 10));
        assert_eq!(from([(2, 1), (1, 2), (2, 1), (2, 1)]), Some(1 << 20));
        assert_eq!(from([(1, 2), (2, 3), (1, 1), (2, 3)]), Some(256 << 10));
        assert_eq!(from([(2, 1), (2, 1), (2, 1), (3, 5)]), None);
        assert_eq!(from([(0, 0), (0, 0), (0, 0), (0, 0)]), None);
        assert_eq!(CopyMethods::from_measurements(Vec::new(), Decided::Measured).attach_from_bytes, None);
    }

    #[test]
    fn it_is_measured_once_and_then_remembered() {
        let folder = Folder::new("once");
        let file = cache_file_in(Some(folder.0.join("cache")), None).unwrap();
        let calls = Cell::new(0);
        let measure = || {
            calls.set(calls.get() + 1);
            measured([(1, 2), (1, 2), (3, 2), (3, 2)])
        };
        let first = decide(None, Some(&file), measure);
        let second = decide(Some("something else"), Some(&file), measure);
        assert_eq!((first.decided, second.decided.clone(), calls.get()), (Decided::Measured, Decided::Remembered, 1));
        assert_eq!((first.attach_from_bytes, &first.measurements), (Some(1 << 20), &second.measurements));
        let left: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left beside it: {left:?}");
    }

    /// Makes a file so old that it is measured again.
    fn age(file: &Path) {
        let old = std::time::SystemTime::now() - Duration::from_secs(CALIBRATE_FRESH_S + 1);
        File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    }

    #[test]
    fn the_best_of_all_measurements_is_kept() {
        let folder = Folder::new("best");
        let file = folder.0.join("copy-v1");
        // The processors are far from each other, then near.
        assert_eq!(decide(None, Some(&file), || measured([(4, 1); 4])).attach_from_bytes, Some(64 << 10));
        age(&file);
        let near = decide(None, Some(&file), || measured([(3, 7); 4]));
        assert_eq!((near.attach_from_bytes, near.decided), (None, Decided::Measured));
        assert_eq!(near.measurements, measurements([(4, 7); 4]));
        age(&file);
        let far = decide(None, Some(&file), || measured([(4, 1); 4]));
        assert_eq!(far.measurements, near.measurements);
        let known = decide(None, Some(&file), || panic!("it is fresh"));
        assert_eq!((known.decided, known.measurements), (Decided::Remembered, near.measurements));
    }

    #[test]
    fn what_says_nothing_is_not_remembered() {
        for decided in [Decided::Disturbed, Decided::Bound] {
            let folder = Folder::new("nothing");
            let file = folder.0.join("copy-v1");
            let nothing = || CopyMethods::from_measurements(measurements([(2, 1); 4]), decided.clone());
            let methods = decide(None, Some(&file), nothing);
            assert_eq!((methods, file.exists()), (nothing(), false));
            // Nor does it count beside what is known, though that is old.
            decide(None, Some(&file), || measured([(1, 2); 4]));
            age(&file);
            let methods = decide(None, Some(&file), nothing);
            assert_eq!((methods.decided, methods.measurements), (Decided::Remembered, measurements([(1, 2); 4])));
            assert_eq!(decide(None, Some(&file), || panic!("it is fresh again")).decided, Decided::Remembered);
        }
    }

    #[test]
    fn the_environment_decides_without_measuring() {
        let methods = |told| decide(Some(told), None, || panic!("not asked for"));
        assert_eq!(methods("attach").attach_from_bytes, Some(0));
        assert_eq!(methods("ring").attach_from_bytes, None);
        assert_eq!(methods("ring").decided, Decided::Told);
    }

    #[test]
    fn garbage_is_measured_over() {
        let folder = Folder::new("garbage");
        let file = folder.0.join("copy-v1");
        let good = format(&machine(), &measurements([(1, 2); 4]));
        let other_machine = format("kernel 1\nprocessor 2\nboot 3\ncores 4\n", &measurements([(1, 2); 4]));
        let mut bad = vec![String::new(), "\0".repeat(100_000), other_machine, format!("{good}more\n")];
        bad.extend((0..good.len()).step_by(7).map(|length| good.get(..length).unwrap_or_default().to_owned()));
        bad.push(good.replace("65536", "65537"));
        bad.push(good.replace(" 2\n", " -2\n"));
        bad.push(good.replace(" 2\n", " 99999999999999999999999\n"));
        bad.push(good.replace(" 2\n", " 2 2\n"));
        for text in bad {
            fs::write(&file, &text).unwrap();
            let methods = decide(None, Some(&file), || measured([(2, 1); 4]));
            assert_eq!(methods.decided, Decided::Measured, "{text:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), format(&machine(), &methods.measurements));
        }
        fs::write(&file, [0xFF; 100]).unwrap();
        assert_eq!(decide(None, Some(&file), || measured([(2, 1); 4])).decided, Decided::Measured);
        fs::remove_file(&file).unwrap();
        let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        assert_eq!(
            decide(None, Some(&file), || measured([(2, 1); 4])).decided,
            Decided::Measured,
            "no wait for a pipe"
        );
    }

    #[test]
    fn where_nothing_can_be_kept_it_is_measured() {
        for file in [None, Some(Path::new("/proc/nowhere/weft/copy-v1")), Some(Path::new("/dev/null/weft/copy-v1"))] {
            assert_eq!(decide(None, file, || measured([(2, 1); 4])).attach_from_bytes, Some(64 << 10));
        }
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache_file_in(None, None), None);
        assert_eq!(cache_file_in(path("relative"), path("")), None);
        assert_eq!(cache_file_in(path(""), path("/home/user")), path("/home/user/.cache/weft/copy-v1"));
        assert_eq!(cache_file_in(path("/cache"), path("/home/user")), path("/cache/weft/copy-v1"));
    }

    #[test]
    fn lines_for_people() {
        let rates = [(0, 10_000_000_000), (1_000_000_000, 2_000_000_000), (9_640_000_000, 1), (2, 1)];
        let lines = CopyMethods::from_measurements(measurements(rates), Decided::Remembered).describe();
        let expected = [
            "long messages are copied in pieces through shared memory; from 1 MiB on by cross-memory attach \
             (measured since this machine was started)",
            "64 KiB: attach does not work, shared memory 10.0 GB/s",
            "256 KiB: attach 1.0 GB/s, shared memory 2.0 GB/s",
        ];
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[..3], expected);
    }
}
