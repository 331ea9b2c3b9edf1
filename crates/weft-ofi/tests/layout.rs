//! The definitions in `abi` against the installed headers of libfabric.
//!
//! The lists that define the interface also describe it (`RECORDS`, `CONSTANTS`); this test writes a C program that
//! prints the same description and compares. `WEFT_OFI_INCLUDE` names another folder of headers to compare with.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test: a panic is a failed test")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use weft_fi::abi::{BASE, CONSTANTS, Constants, FI_VERSION, NEWEST, RECORDS, Record, Version};

const INSTALL: &str = "install libfabric-dev 1.17 or newer and a C compiler (apt-get install libfabric-dev gcc)";

const PROLOGUE: &str = "\
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>
#define HAS(major, minor) (FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION) >= FI_VERSION(major, minor))
#define SHOW(name, value) printf(\"%s %llu\\n\", name, (unsigned long long) (value))
int main(void) {
SHOW(\"major\", FI_MAJOR_VERSION);
SHOW(\"minor\", FI_MINOR_VERSION);
SHOW(\"version\", FI_VERSION(2, 5));
";

#[test]
fn definitions_match_the_installed_headers() {
    let folder = Scratch::new();
    let header = describe(&folder.0, env::var_os("WEFT_OFI_INCLUDE").map(PathBuf::from).as_deref());
    let version = (header["major"] as u32, header["minor"] as u32);
    assert!(version >= BASE, "the headers are of libfabric {version:?}: {INSTALL}");
    assert_eq!(header["version"], u64::from(FI_VERSION(2, 5)));

    let mut faults = Vec::new();
    let mut compared = 0;
    let mut compare = |name: String, ours: u64| {
        compared += 1;
        match header.get(&name) {
            Some(&theirs) if theirs == ours => {}
            theirs => faults.push(format!("{name}: ours {ours}, theirs {theirs:?}")),
        }
    };
    for record in records(version) {
        for field in record.fields.iter().filter(|field| field.since <= version) {
            let name = format!("{}.{}", record.name, plain(field.name));
            if field.size > 0 && field.grown <= version {
                compare(format!("{name}.size"), field.size as u64);
            }
            compare(name, field.offset as u64);
        }
        if whole(record, version) {
            compare(record.name.to_owned(), record.size as u64);
        }
    }
    for group in constants(version) {
        for &(name, value) in group.values {
            compare(name.to_owned(), value);
        }
    }
    // A structure that grew after these headers is larger here; one that grew after ours is larger there.
    for record in records(version).filter(|record| version <= NEWEST && !whole(record, version)) {
        let (ours, theirs) = (record.size as u64, header[record.name]);
        if theirs > ours {
            faults.push(format!("{}: ours {ours} bytes, theirs {theirs}", record.name));
        }
    }
    assert!(faults.is_empty(), "differences from libfabric {version:?}:\n{}", faults.join("\n"));
    assert!(compared > 1000, "only {compared} values were compared");
}

fn records(version: Version) -> impl Iterator<Item = &'static Record> {
    RECORDS.iter().copied().flatten().filter(move |record| record.since <= version)
}

fn constants(version: Version) -> impl Iterator<Item = &'static Constants> {
    CONSTANTS
        .iter()
        .copied()
        .flatten()
        .filter(move |group| group.since <= version && group.until.is_none_or(|until| version < until))
}

/// Whether headers of this version have every field that we know, and no others.
fn whole(record: &Record, version: Version) -> bool {
    version <= NEWEST && record.fields.iter().all(|field| field.since.max(field.grown) <= version)
}

/// Compiles and runs the program; the result maps each name to its value.
fn describe(folder: &Path, include: Option<&Path>) -> HashMap<String, u64> {
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, program()).unwrap();
    let mut compiler = Command::new("cc");
    // The newer headers warn of every value that they deprecate.
    compiler.arg("-w");
    if let Some(include) = include {
        compiler.arg("-I").arg(include);
    }
    let built = compiler.arg("-o").arg(&binary).arg(&source).output();
    let built = built.unwrap_or_else(|error| panic!("cc did not start ({error}): {INSTALL}"));
    assert!(built.status.success(), "{}\n{INSTALL}", String::from_utf8_lossy(&built.stderr));
    let run = Command::new(&binary).output().unwrap();
    assert!(run.status.success(), "the layout program failed: {}", run.status);
    let text = String::from_utf8(run.stdout).unwrap();
    text.lines().map(|line| line.split_once(' ').unwrap()).map(|(name, n)| (name.into(), n.parse().unwrap())).collect()
}

fn program() -> String {
    let mut c = PROLOGUE.to_owned();
    for record in RECORDS.iter().copied().flatten() {
        let name = record.name;
        guarded(&mut c, record.since, None, |c| {
            writeln!(c, "SHOW(\"{name}\", sizeof(struct {name}));").unwrap();
            for field in record.fields {
                let member = plain(field.name);
                guarded(c, field.since, None, |c| {
                    writeln!(c, "SHOW(\"{name}.{member}\", offsetof(struct {name}, {member}));").unwrap();
                    if field.size > 0 {
                        writeln!(c, "SHOW(\"{name}.{member}.size\", sizeof(((struct {name} *) 0)->{member}));")
                            .unwrap();
                    }
                });
            }
        });
    }
    for group in CONSTANTS.iter().copied().flatten() {
        guarded(&mut c, group.since, group.until, |c| {
            for (name, _) in group.values {
                writeln!(c, "SHOW(\"{name}\", {name});").unwrap();
            }
        });
    }
    c.push_str("return 0;\n}\n");
    c
}

/// Keeps from the compiler what headers of its version do not have.
fn guarded(c: &mut String, since: Version, until: Option<Version>, body: impl FnOnce(&mut String)) {
    let before = until.map_or(String::new(), |(major, minor)| format!(" && !HAS({major}, {minor})"));
    writeln!(c, "#if HAS({}, {}){before}", since.0, since.1).unwrap();
    body(c);
    writeln!(c, "#endif").unwrap();
}

/// The C spelling of a field whose name is a Rust keyword.
fn plain(name: &str) -> &str {
    name.trim_start_matches("r#")
}

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("weft-ofi-layout-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
