//! Where the two processes of a run live: on the loopback, or in two network namespaces of their own.
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

/// Where a run happens.
pub(crate) struct Place {
    namespaces: Option<Namespaces>,
    /// What stands before a program that is to be killed with this process.
    killed_with_us: &'static [&'static str],
}

impl Place {
    pub(crate) fn loopback() -> Place {
        Place { namespaces: None, killed_with_us: killed_with_us() }
    }

    /// Makes two namespaces and joins them.
    pub(crate) fn namespaces() -> Result<Place, Failure> {
        let namespaces = Some(Namespaces::make()?);
        Ok(Place { namespaces, killed_with_us: killed_with_us() })
    }

    pub(crate) fn title(&self) -> &'static str {
        if self.namespaces.is_some() { "two network namespaces, MTU 1500" } else { "loopback" }
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
        words.extend(self.killed_with_us);
        words.push(program);
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        command
    }
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
pub(crate) fn clean_up_when_left(names: &[&str]) -> Result<(), Failure> {
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
    fn a_wrapped_program_stays_the_process_that_was_started() {
        let place = Place::loopback();
        let output = place.command(Role::Client, "sh").args(["-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
        let id = output.id();
        let shown = output.wait_with_output().unwrap().stdout;
        assert_eq!(String::from_utf8(shown).unwrap().trim(), id.to_string());
    }
}
