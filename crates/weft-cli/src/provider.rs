//! What the libfabric of this machine makes of the plug-in. `fi_info` is asked, so nothing of it is loaded here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::json::Object;
use crate::plugin::{PATH_VARIABLE, PROVIDER, PROVIDER_VARIABLE, Plugin};
use crate::process::pair::{Event, Pair, Role};
use crate::process::{self, Fault, on_path};

const PROGRAM: &str = "fi_info";
/// It answers in milliseconds unless something is wrong.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Capabilities that are but the directions of others.
const DIRECTIONS: [&str; 6] = ["FI_READ", "FI_WRITE", "FI_SEND", "FI_RECV", "FI_REMOTE_READ", "FI_REMOTE_WRITE"];

/// The plug-in, and what libfabric says of it.
pub(crate) struct Provider {
    /// The plug-in's file, or what to do.
    file: Result<PathBuf, String>,
    /// The version of libfabric, or why it is not known.
    libfabric: Result<String, String>,
    /// What it offers, or why libfabric did not load it.
    offer: Result<Offer, String>,
}

/// What the provider says that it has.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Offer {
    version: String,
    endpoints: Vec<EndpointKind>,
    domains: BTreeSet<String>,
    formats: BTreeSet<String>,
    parameters: Vec<String>,
}

#[derive(Debug, PartialEq)]
struct EndpointKind {
    name: String,
    capabilities: Vec<String>,
}

impl Provider {
    pub(crate) fn look() -> Provider {
        let plugin = Plugin::find();
        let libfabric = libfabric();
        let offer = match (&plugin, &libfabric) {
            (Ok(plugin), Ok(_)) => Offer::of(plugin),
            (Err(_), _) => Err("there is no plug-in".to_string()),
            (_, Err(_)) => Err("there is no libfabric to ask".to_string()),
        };
        Provider { file: plugin.map(|plugin| plugin.file().to_path_buf()), libfabric, offer }
    }

    /// Names and values, in the order in which they are shown.
    pub(crate) fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, value: String| rows.push((name.to_string(), value));
        match &self.file {
            Ok(file) => row("plug-in", file.display().to_string()),
            Err(why) => row("plug-in", format!("absent: {why}")),
        }
        match (&self.libfabric, &self.offer) {
            (Err(why), _) => row("libfabric", format!("unknown: {why}")),
            (Ok(version), Ok(offer)) => {
                row("libfabric", format!("{version}, loads it as {PROVIDER} {}", offer.version))
            }
            (Ok(version), Err(_)) if self.file.is_err() => row("libfabric", version.clone()),
            (Ok(version), Err(why)) => row("libfabric", format!("{version}, does not offer it: {why}")),
        }
        let Ok(offer) = &self.offer else { return rows };
        for EndpointKind { name, capabilities } in &offer.endpoints {
            row(&short(name), capabilities.iter().map(|name| short(name)).collect::<Vec<_>>().join(", "));
        }
        let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        row("domains", list(&offer.domains));
        row("addresses", list(&offer.formats));
        row("parameters", offer.parameters.join(", "));
        rows
    }

    pub(crate) fn json(&self) -> Value {
        let mut object = Object::new();
        object.insert("present".into(), self.file.is_ok().into());
        object.insert("loads".into(), self.offer.is_ok().into());
        match &self.file {
            Ok(file) => object.insert("plugin".into(), file.to_string_lossy().into()),
            Err(why) => object.insert("why".into(), why.as_str().into()),
        };
        object.insert("libfabric".into(), self.libfabric.as_deref().ok().into());
        match &self.offer {
            Err(why) if self.file.is_ok() => {
                object.insert("why".into(), self.libfabric.as_ref().err().unwrap_or(why).as_str().into());
            }
            Err(_) => {}
            Ok(Offer { version, endpoints, domains, formats, parameters }) => {
                let endpoints = endpoints.iter().map(|endpoint| (endpoint.name.clone(), json!(endpoint.capabilities)));
                object.insert("version".into(), version.as_str().into());
                object.insert("endpoints".into(), endpoints.collect());
                object.insert("domains".into(), json!(domains));
                object.insert("addresses".into(), json!(formats));
                object.insert("parameters".into(), json!(parameters));
            }
        }
        Value::Object(object)
    }
}

impl Offer {
    fn of(plugin: &Plugin) -> Result<Offer, String> {
        let variables = [(PATH_VARIABLE, plugin.path()), (PROVIDER_VARIABLE, PROVIDER.into())];
        let listed = match ask(&["-p", PROVIDER, "-v"], &variables) {
            Ok(listed) => listed,
            // It fails as well when nothing of that name is there.
            Err(fault) => return Err(load_failure(plugin).unwrap_or(fault.to_string())),
        };
        let mut offer = Offer::read(&listed);
        if offer.endpoints.is_empty() {
            return Err(load_failure(plugin).unwrap_or_else(|| format!("{PROGRAM} lists nothing")));
        }
        let parameters = ask(&["-e"], &variables).map_err(|fault| fault.to_string())?;
        offer.parameters = read_parameters(&parameters);
        Ok(offer)
    }

    /// Reads what `fi_info -v` shows. Providers that libfabric puts on top of this one are left out.
    fn read(listed: &[String]) -> Offer {
        let mut offer = Offer::default();
        for entry in listed.split(|line| line.trim() == "---") {
            let value = |section: &str, name: &str| find(entry, section, name);
            let Some(kind) =
                value("fi_ep_attr:", "type:").filter(|_| value("fi_fabric_attr:", "prov_name:") == Some(PROVIDER))
            else {
                continue;
            };
            offer.version = value("fi_fabric_attr:", "prov_version:").unwrap_or_default().to_string();
            offer.domains.extend(value("fi_domain_attr:", "name:").map(str::to_string));
            offer.formats.extend(value("fi_info:", "addr_format:").map(short));
            let listed = value("fi_info:", "caps:").unwrap_or_default().trim_matches(['[', ']']);
            let names = listed.split(',').map(str::trim).filter(|name| !name.is_empty() && !DIRECTIONS.contains(name));
            let known = offer.endpoints.iter().position(|endpoint| endpoint.name == kind);
            let known = known.and_then(|index| offer.endpoints.get_mut(index));
            match known {
                // An entry for each domain; usually all say the same.
                Some(known) => {
                    let new: Vec<String> = names
                        .filter(|name| !known.capabilities.iter().any(|old| old == name))
                        .map(str::to_string)
                        .collect();
                    known.capabilities.extend(new);
                }
                None => {
                    let capabilities = names.map(str::to_string).collect();
                    offer.endpoints.push(EndpointKind { name: kind.to_string(), capabilities });
                }
            }
        }
        offer
    }
}

/// The value of `name` in a section of an entry. What is not in a section of its own stands first, in `fi_info:`.
fn find<'a>(entry: &'a [String], section: &str, name: &str) -> Option<&'a str> {
    let mut here = "";
    for line in entry.iter().map(|line| line.trim()) {
        // Sections are named after structures, and stand alone on their line.
        if line.starts_with("fi_") && line.ends_with(':') {
            here = line;
            continue;
        }
        let value = line.strip_prefix(name).filter(|_| here == section);
        if let Some(value) = value {
            return Some(value.trim());
        }
    }
    None
}

/// Lines such as `# FI_WEFT_ROAD: String`.
fn read_parameters(shown: &[String]) -> Vec<String> {
    let ours = format!("FI_{}_", PROVIDER.to_uppercase());
    let name = |line: &String| Some(line.strip_prefix("# ")?.split_once(':')?.0.to_string());
    shown.iter().filter_map(name).filter(|name| name.starts_with(&ours)).collect()
}

/// `FI_EP_RDM` as `rdm`.
fn short(name: &str) -> String {
    let name = name.strip_prefix("FI_").unwrap_or(name);
    name.strip_prefix("EP_").unwrap_or(name).to_lowercase()
}

/// The version of libfabric.
fn libfabric() -> Result<String, String> {
    if !on_path(PROGRAM) {
        return Err(format!("{PROGRAM} is not installed: apt-get install libfabric-bin"));
    }
    let shown = ask(&["--version"], &[]).map_err(|fault| fault.to_string())?;
    let version = shown.iter().find_map(|line| line.strip_prefix("libfabric: "));
    version.map(|version| version.trim().to_string()).ok_or_else(|| format!("{PROGRAM} does not tell"))
}

fn ask(arguments: &[&str], variables: &[(&str, OsString)]) -> Result<Vec<String>, Fault> {
    let mut command = process::command(PROGRAM);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    let mut pair = Pair::new(PROGRAM, ANSWER_MAX);
    pair.start(Role::Client, command)?;
    let mut lines = Vec::new();
    loop {
        match pair.next()? {
            Event::Line(_, line) => lines.push(line),
            Event::Ended(_) => return Ok(lines),
        }
    }
}

/// Why the plug-in cannot be loaded. libfabric keeps it to itself, so the loader is asked, which tells when it is to
/// load the plug-in before a program.
fn load_failure(plugin: &Plugin) -> Option<String> {
    let mut command = Command::new(PROGRAM);
    command.arg("--version").env("LD_PRELOAD", plugin.file()).env("LD_BIND_NOW", "1").stdin(Stdio::null());
    let told = command.output().ok()?.stderr;
    let told = String::from_utf8_lossy(&told);
    let line = told.lines().find(|line| line.contains("cannot be preloaded") || line.contains("error"))?;
    let why = line.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')')).map_or(line, |(why, _)| why);
    Some(format!("it cannot be loaded: {}", why.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_string).collect()
    }

    fn entry(capabilities: &str, kind: &str, domain: &str, provider: &str) -> String {
        format!(
            "fi_info:\n    caps: [ {capabilities} ]\n    mode: [  ]\n    addr_format: FI_SOCKADDR_IN\n    fi_tx_attr:\n        \
             caps: [ FI_SEND ]\n    fi_ep_attr:\n        type: {kind}\n    fi_domain_attr:\n        domain: 0x0\n        name: \
             {domain}\n        caps: [  ]\n    fi_fabric_attr:\n        name: fabric\n        prov_name: {provider}\n        \
             prov_version: 1.2\n    nic: (nil)\n"
        )
    }

    #[test]
    fn the_offer_is_read() {
        let shown = [
            "---\n".to_string(),
            entry("FI_MSG, FI_SEND, FI_TAGGED", "FI_EP_RDM", "lo", "weft"),
            entry("FI_MSG, FI_RMA", "FI_EP_RDM", "eth0", "weft"),
            entry("FI_MSG", "FI_EP_DGRAM", "lo", "weft"),
            entry("FI_ATOMIC", "FI_EP_RDM", "lo", "weft;ofi_rxm"),
        ]
        .join("---\n");
        let offer = Offer::read(&lines(&shown));
        let endpoints: Vec<(&str, String)> =
            offer.endpoints.iter().map(|kind| (kind.name.as_str(), kind.capabilities.join(" "))).collect();
        assert_eq!(
            endpoints,
            [("FI_EP_RDM", "FI_MSG FI_TAGGED FI_RMA".to_string()), ("FI_EP_DGRAM", "FI_MSG".to_string())]
        );
        assert_eq!(offer.version, "1.2");
        assert_eq!(offer.domains.iter().collect::<Vec<_>>(), ["eth0", "lo"]);
        assert_eq!(offer.formats.iter().collect::<Vec<_>>(), ["sockaddr_in"]);
        assert_eq!(Offer::read(&lines("fi_getinfo: -61 (No data available)")), Offer::default());
    }

    #[test]
    fn parameters_are_read() {
        let shown = "# FI_LOG_LEVEL: String\n# Say (default: warn)\n\n# FI_WEFT_ROAD: String\n# weft: which road\n";
        assert_eq!(read_parameters(&lines(shown)), ["FI_WEFT_ROAD"]);
        assert_eq!((short("FI_EP_RDM"), short("FI_RMA")), ("rdm".to_string(), "rma".to_string()));
    }

    #[test]
    fn what_is_absent_is_told() {
        let absent = |file: Result<PathBuf, String>, libfabric: Result<String, String>| Provider {
            file,
            libfabric,
            offer: Err("it cannot be loaded: file too short".to_string()),
        };
        let here = || Ok(PathBuf::from("/here/libweft-fi.so"));
        let rows = absent(here(), Ok("1.17.0".to_string())).rows();
        assert_eq!(rows.last().unwrap().1, "1.17.0, does not offer it: it cannot be loaded: file too short");
        let rows = absent(Err("build it".to_string()), Ok("1.17.0".to_string())).rows();
        assert_eq!((&*rows[0].1, &*rows[1].1), ("absent: build it", "1.17.0"));
        let json = absent(here(), Err("fi_info is not installed".to_string())).json().to_string();
        assert!(json.ends_with(r#""libfabric":null,"why":"fi_info is not installed"}"#), "{json}");
    }
}
