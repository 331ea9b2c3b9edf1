//! Where the two processes of a run live: on the loopback, in two network namespaces of their own, or on a processor
//! each.
//!
//! The namespaces are removed by a process of their own, started before they are made: it waits until its standard input
//! is closed, which happens when this process ends, however it ends. As it is in a process group of its own, a Ctrl-C
//! does not reach it. Should it be killed too, the next run removes what it finds under the same prefix.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Failure;
use crate::process::pair::Role;
use crate::process::{killed_with_us, on_path};

/// The hidden command that waits, then removes namespaces.
pub(crate) const JANITOR: &str = "bench-janitor";

const PREFIX: &str = "weft-bench-";
const MTU_BYTES: &str = "1500";
const DEVICE: &str = "veth0";
/// More processors are not looked at.
const PROCESSORS_MAX: usize = 4096;

/// Where a run happens.
pub(crate) struct Place {
    namespaces: Option<Namespaces>,
    /// What stands before a program that is to be killed with this process.
    killed_with_us: &'static [&'static str],
    /// The processors of the server and of the client, where each has one of its own.
    processors: Option<[String; 2]>,
}

impl Place {
    pub(crate) fn loopback() -> Place {
        Place { namespaces: None, killed_with_us: killed_with_us(), processors: None }
    }

    /// On a processor each, as far as that can be; with a remark where it cannot.
    pub(crate) fn processors() -> (Place, Option<String>) {
        let place = Place::loopback();
        if !on_path("taskset") {
            let told = "taskset is not installed, so no process is pinned: apt-get install util-linux";
            return (place, Some(told.to_string()));
        }
        match two_processors() {
            Some(processors) => (Place { processors: Some(processors), ..place }, None),
            None => (place, Some("there are not two processors: the two processes take turns".to_string())),
        }
    }

    /// Makes two namespaces and joins them.
    pub(crate) fn namespaces() -> Result<Place, Failure> {
        let namespaces = Some(Namespaces::make()?);
        Ok(Place { namespaces, ..Place::loopback() })
    }

    pub(crate) fn title(&self) -> String {
        match (&self.namespaces, &self.processors) {
            (Some(_), _) => "two network namespaces, MTU 1500".to_string(),
            (None, Some([server, client])) => format!("processors {server} and {client}"),
            (None, None) => "loopback".to_string(),
        }
    }

    /// The address of a role.
    pub(crate) fn address(&self, role: Role) -> IpAddr {
        match (&self.namespaces, role) {
            (None, _) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            (Some(_), Role::Server) => IpAddr::V4(Ipv4Addr::new(10, 177, 0, 1)),
            (Some(_), Role::Client) => IpAddr::V4(Ipv4Addr::new(10, 177, 0, 2)),
        }
    }

    /// The network interface that has that address.
    pub(crate) fn device(&self) -> &'static str {
        if self.namespaces.is_some() { DEVICE } else { "lo" }
    }

    /// `program` as it is started in a role's place. The wrappers all replace themselves with it, so that the process
    /// that is started is the one that is killed.
    pub(crate) fn command(&self, role: Role, program: &str) -> Command {
        let mut words = Vec::new();
        if let Some(namespaces) = &self.namespaces {
            words.extend(["ip", "netns", "exec", namespaces.name(role)]);
        }
        if let Some([server, client]) = &self.processors {
            words.extend(["taskset", "-c", if role == Role::Server { server } else { client }]);
        }
        words.extend(self.killed_with_us);
        words.push(program);
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        command
    }
}

/// Two processors that this process may use, on different cores where there are some.
fn two_processors() -> Option<[String; 2]> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let allowed = numbers(allowed.trim());
    let first = *allowed.first()?;
    let siblings = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    // Where the kernel does not tell, none are known to share a core.
    let siblings = numbers(std::fs::read_to_string(siblings).unwrap_or_default().trim());
    let others = || allowed.iter().filter(|other| **other != first);
    let second = others().find(|other| !siblings.contains(other)).or_else(|| others().next())?;
    Some([first.to_string(), second.to_string()])
}

/// The numbers of a text such as `0-3,8`.
fn numbers(list: &str) -> Vec<u32> {
    let ranges = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().take(PROCESSORS_MAX).collect()
}

struct Namespaces {
    names: [String; 2],
    janitor: Child,
}

impl Namespaces {
    fn make() -> Result<Namespaces, Failure> {
        if !on_path("ip") {
            return Err(Failure::Told("--netns needs the `ip` command: apt-get install iproute2".to_string()));
        }
        remove_stale();
        let names = Role::BOTH.map(|role| format!("{PREFIX}{}-{role}", std::process::id()));
        let janitor = Command::new(std::env::current_exe()?)
            .arg(JANITOR)
            .args(&names)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let made = Namespaces { names, janitor };
        made.set_up().map_err(|told| {
            let hint = if told.contains("ermitted") || told.contains("ermission") { " (it takes root)" } else { "" };
            Failure::Told(format!("--netns: {told}{hint}"))
        })?;
        Ok(made)
    }

    fn set_up(&self) -> Result<(), String> {
        let [server, client] = &self.names;
        ip(&["netns", "add", server])?;
        ip(&["netns", "add", client])?;
        let ends = ["link", "add", DEVICE, "mtu", MTU_BYTES, "netns", server, "type", "veth"];
        let other = ["peer", "name", DEVICE, "mtu", MTU_BYTES, "netns", client];
        ip(&[&ends[..], &other[..]].concat())?;
        for (name, address) in [(server, "10.177.0.1/24"), (client, "10.177.0.2/24")] {
            ip(&["-n", name, "address", "add", address, "dev", DEVICE])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", DEVICE, "up"])?;
        }
        Ok(())
    }

    fn name(&self, role: Role) -> &str {
        let [server, client] = &self.names;
        match role {
            Role::Server => server,
            Role::Client => client,
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.janitor.stdin = None;
        let _ = self.janitor.wait();
    }
}

/// The janitor: waits until its parent is gone or lets go, then removes the namespaces that are still there.
pub(crate) fn clean_up_when_left(names: &[String]) -> Result<(), Failure> {
    // Nothing is ever written to it: the read ends when the other end is closed.
    let _ = std::io::stdin().read(&mut [0]);
    for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
        if Path::new("/run/netns").join(name).exists() {
            ip(&["netns", "delete", name]).map_err(Failure::Told)?;
        }
    }
    Ok(())
}

/// Removes namespaces of runs whose process is gone.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let gone = process.is_some_and(|process| !Path::new("/proc").join(process).exists());
        if gone {
            // Another run may be at the same work; what stays is in nobody's way.
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(numbers("3"), [3]);
        assert_eq!(numbers(""), [] as [u32; 0]);
        assert_eq!(numbers("0-4294967295").len(), PROCESSORS_MAX);
    }

    #[test]
    fn a_wrapped_program_stays_the_process_that_was_started() {
        for place in [Place::loopback(), Place::processors().0] {
            let mut command = place.command(Role::Client, "sh");
            let output = command.args(["-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
            let id = output.id();
            let shown = output.wait_with_output().unwrap().stdout;
            assert_eq!(String::from_utf8(shown).unwrap().trim(), id.to_string());
        }
    }
}
