//! `weft info`: what Weft finds on this machine, and what it makes of it.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;

use serde_json::{Value, json};
use weft_mem::calibrate;
use weft_mem::device::{self, Capabilities, Kind};

use crate::Failure;
use crate::provider::Provider;

const NAME_WIDTH: usize = 12;
/// Where lists of names are broken.
const VALUE_WIDTH: usize = 88;
/// More network interfaces are not told of.
const INTERFACES_MAX: usize = 64;

pub(crate) const AFTER: &str = "\
Kinds of device memory are shown with the reason if they are absent, copies with
what was measured to choose between them, the plug-in with what libfabric says
of it.

Example:
  weft info --json";

/// All that there is to say.
struct Info {
    kinds: Vec<KindOfMemory>,
    copies: Vec<String>,
    network: Vec<(String, String)>,
    provider: Provider,
    limits: Vec<(&'static str, String)>,
}

/// A kind of memory that is there, or why it is not.
struct KindOfMemory {
    kind: Kind,
    found: Result<Present, String>,
}

struct Present {
    devices: Vec<String>,
    capabilities: Capabilities,
}

/// `weft info [--json]`.
pub(crate) fn info(json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let info =
        Info { kinds: kinds(), copies: copies(), network: network(), provider: Provider::look(), limits: limits() };
    if json { Ok(writeln!(out, "{}", info.json())?) } else { info.write(out) }
}

fn kinds() -> Vec<KindOfMemory> {
    let look = |kind| {
        let found = device::operations(kind).map_err(|absent| absent.0).map(|operations| Present {
            devices: (0..operations.devices()).map(|device| operations.describe(device)).collect(),
            capabilities: operations.capabilities(),
        });
        KindOfMemory { kind, found }
    };
    Kind::ALL.into_iter().map(look).collect()
}

/// How long messages are copied between processes of this machine, and what was measured to decide that.
fn copies() -> Vec<String> {
    let mut lines = vec![format!("peers of this user on this machine: {}", road())];
    lines.extend(calibrate::copy_methods().describe());
    lines.push(format!("cross-memory attach: {}", attach()));
    lines
}

/// Whether the road inside the node is open.
fn road() -> String {
    let opened =
        UdpSocket::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).and_then(weft_link::shm::Node::open);
    match opened {
        Ok(_) => "reached through shared memory".to_string(),
        Err(error) => format!("reached as packets, since no Unix socket can be opened: {error}"),
    }
}

fn attach() -> &'static str {
    let word = u64::from_ne_bytes(*b"attached");
    let process = i32::try_from(std::process::id()).unwrap_or(0);
    if !weft_mem::attach::can_attach(process, &raw const word as u64, word) {
        return "forbidden, even to this process itself (seccomp or the kernel)";
    }
    match read("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        None | Some("0") => "permitted between processes of one user (Yama does not restrict it)",
        Some("1") => "only to descendants, or to whom a process names (Yama's ptrace_scope is 1)",
        Some("2") => "only with CAP_SYS_PTRACE (Yama's ptrace_scope is 2)",
        Some(_) => "forbidden (Yama's ptrace_scope)",
    }
}

fn network() -> Vec<(String, String)> {
    let family = |address: &str| match UdpSocket::bind((address, 0)) {
        Ok(_) => "present".to_string(),
        Err(error) => format!("absent: {error}"),
    };
    let mut found = vec![("IPv4".to_string(), family("127.0.0.1")), ("IPv6".to_string(), family("::1"))];
    let mut names: Vec<String> = fs::read_dir("/sys/class/net").map_or_else(
        |_| Vec::new(),
        |entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect(),
    );
    names.sort();
    for name in names.into_iter().take(INTERFACES_MAX) {
        let folder = Path::new("/sys/class/net").join(&name);
        let Some(mtu) = read(folder.join("mtu")) else { continue };
        let state = read(folder.join("operstate")).unwrap_or_default();
        // The loopback has no notion of up and down.
        let state = if state == "unknown" || state.is_empty() { String::new() } else { format!(", {state}") };
        found.push((name, format!("MTU {mtu}{state}")));
    }
    found
}

/// What bounds Weft here: the system's bounds that it meets, then its own.
fn limits() -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let processors = std::thread::available_parallelism().map_or_else(|_| "unknown".to_string(), |n| n.to_string());
    found.push(("processors", processors));
    for (name, file) in [
        ("socket receive buffer, bytes (net.core.rmem_max)", "/proc/sys/net/core/rmem_max"),
        ("socket send buffer, bytes (net.core.wmem_max)", "/proc/sys/net/core/wmem_max"),
    ] {
        found.push((name, read(file).unwrap_or_else(|| "unknown".to_string())));
    }
    let table = read("/proc/self/limits").unwrap_or_default();
    for (name, row) in [("open files", "Max open files"), ("locked memory, bytes", "Max locked memory")] {
        let soft = table.lines().find_map(|line| line.strip_prefix(row)?.split_whitespace().next());
        found.push((name, soft.unwrap_or("unknown").to_string()));
    }
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let huge = huge.split(['[', ']']).nth(1).unwrap_or("unknown");
    found.push(("huge pages (transparent_hugepage)", huge.to_string()));
    found.push(("longest message, bytes", weft_core::limits::MESSAGE_LENGTH_MAX_BYTES.to_string()));
    found.push(("longest atomic, bytes", weft_core::limits::ATOMIC_MAX_BYTES.to_string()));
    found.push(("operations under way, each NIC", weft_core::limits::HANDLES_MAX.to_string()));
    found.push(("regions, each NIC", weft_mem::limits::REGIONS_MAX.to_string()));
    found
}

/// The text of a small file of the system, without the space around it.
fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

impl Info {
    fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        writeln!(out, "weft {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(out, "\nmemory")?;
        for KindOfMemory { kind, found } in &self.kinds {
            let name = kind.to_string();
            match found {
                Err(why) => writeln!(out, "  {name:NAME_WIDTH$} absent: {why}")?,
                Ok(present) => {
                    writeln!(out, "  {name:NAME_WIDTH$} present{}", present.abilities())?;
                    for (number, device) in present.devices.iter().enumerate() {
                        writeln!(out, "  {:NAME_WIDTH$} device {number}: {device}", "")?;
                    }
                }
            }
        }
        writeln!(out, "\ncopies between processes")?;
        self.copies.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        writeln!(out, "\nnetwork")?;
        self.network.iter().try_for_each(|(name, value)| writeln!(out, "  {name:NAME_WIDTH$} {value}"))?;
        writeln!(out, "\nlibfabric provider")?;
        for (name, value) in self.provider.rows() {
            let mut name = name.as_str();
            for line in broken(&value) {
                writeln!(out, "  {name:NAME_WIDTH$} {line}")?;
                name = "";
            }
        }
        writeln!(out, "\nlimits")?;
        let width = self.limits.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.limits.iter().try_for_each(|(name, value)| writeln!(out, "  {name:width$}  {value}"))?;
        Ok(())
    }

    fn json(&self) -> Value {
        let memory = self.kinds.iter().map(|KindOfMemory { kind, found }| {
            let found = match found {
                Err(why) => json!({ "present": false, "why": why }),
                Ok(Present { devices, capabilities }) => {
                    let Capabilities { handles, descriptors, register_host, asynchronous } = *capabilities;
                    json!({
                        "present": true, "devices": devices, "handles": handles, "descriptors": descriptors,
                        "register_host": register_host, "asynchronous": asynchronous,
                    })
                }
            };
            (kind.to_string(), found)
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "memory": memory.collect::<Value>(),
            "copies": self.copies,
            "network": self.network.iter().cloned().collect::<Value>(),
            "libfabric_provider": self.provider.json(),
            "limits": self.limits.iter().cloned().collect::<Value>(),
        })
    }
}

/// A list of names in lines that are not too long. A sentence stays whole: it may hold a path that is to be copied.
fn broken(value: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in value.split_inclusive(", ") {
        let listed = !part.trim().contains(' ');
        match lines.last_mut() {
            Some(line) if !listed || line.is_empty() || line.len() + part.len() <= VALUE_WIDTH => line.push_str(part),
            _ => lines.push(part.to_string()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_string()).collect()
}

impl Present {
    fn abilities(&self) -> String {
        let Capabilities { handles, descriptors, register_host, asynchronous } = self.capabilities;
        let words = [
            (handles, "other processes can open it"),
            (descriptors, "some of it by descriptors"),
            (register_host, "knows registered host memory"),
            (asynchronous, "copies in the background"),
        ];
        let words: Vec<&str> = words.into_iter().filter_map(|(can, word)| can.then_some(word)).collect();
        if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_broken() {
        assert_eq!(broken("one, two"), ["one, two"]);
        assert_eq!(broken(""), [""]);
        let lines = broken(&["capability"; 20].join(", "));
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= VALUE_WIDTH), "{lines:?}");
        assert!(lines[0].ends_with(','));
    }
}
