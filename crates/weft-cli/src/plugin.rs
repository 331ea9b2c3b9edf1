//! The libfabric plug-in: where it is, and the variables by which programs come to use it.
//!
//! libfabric loads every file whose name ends in `fi.so` from the folders of `FI_PROVIDER_PATH`. cargo names the plug-in
//! `libweft_fi.so` and puts it beside the command, so a folder that cargo built into can be named there as it is. An
//! installed plug-in is `lib/libfabric/libweft-fi.so`, beside the folder that the command is in.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// Names the plug-in, or the folder that it is in.
pub(crate) const PLUGIN_VARIABLE: &str = "WEFT_PLUGIN";
/// The name by which libfabric knows the provider.
pub(crate) const PROVIDER: &str = "weft";
/// Where libfabric looks for plug-ins.
pub(crate) const PATH_VARIABLE: &str = "FI_PROVIDER_PATH";
/// The only providers that libfabric offers.
pub(crate) const PROVIDER_VARIABLE: &str = "FI_PROVIDER";
/// The plug-in's parameter for the road that messages take.
pub(crate) const ROAD_VARIABLE: &str = "FI_WEFT_ROAD";

/// The plug-in as it is installed, and as cargo names it.
const NAMES: [&str; 2] = ["libweft-fi.so", "libweft_fi.so"];
/// What libfabric demands of the name of a plug-in.
const ENDING: &[u8] = b"fi.so";
/// Before the folders of [`PATH_VARIABLE`]: the first provider of a name wins, whatever its version.
const IN_ORDER: u8 = b'@';
const SEPARATOR: u8 = b':';
/// By these Open MPI chooses libfabric and Weft, for messages and for one-sided operations; the user may add to them
/// with `--mca`.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", PROVIDER),
    ("OMPI_MCA_osc", "^ucx"),
];
/// By these MPICH chooses libfabric, and does not go past it between processes of a machine.
const MPICH: [(&str, &str); 2] = [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")];

/// Which road messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Road {
    /// Shared memory to peers on this machine, packets to others.
    Auto,
    /// Packets to all.
    Packets,
}

impl Road {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Road::Auto => "auto",
            Road::Packets => "packets",
        }
    }
}

/// A plug-in that is there. Whether libfabric can load it is another matter.
#[derive(Debug)]
pub(crate) struct Plugin {
    file: PathBuf,
}

impl Plugin {
    /// The plug-in that `WEFT_PLUGIN` names, or else the one that belongs to this command; or what to do.
    pub(crate) fn find() -> Result<Plugin, String> {
        let named = env::var_os(PLUGIN_VARIABLE).filter(|named| !named.is_empty());
        let command = env::current_exe().map_err(|error| format!("it is not known where this command is: {error}"))?;
        Plugin::look(named.as_deref(), &command)
    }

    fn look(named: Option<&OsStr>, command: &Path) -> Result<Plugin, String> {
        let file = match named {
            Some(named) => Plugin::named(Path::new(named))?,
            None => Plugin::of(command)?,
        };
        let plugin = Plugin { file };
        if plugin.folder().as_os_str().as_bytes().contains(&SEPARATOR) {
            let file = plugin.file.display();
            return Err(format!(
                "{file}: {PATH_VARIABLE} cannot name a folder with a colon in its name; copy the plug-in elsewhere and \
                 set {PLUGIN_VARIABLE} to the copy"
            ));
        }
        Ok(plugin)
    }

    fn named(named: &Path) -> Result<PathBuf, String> {
        let told = |why: String| format!("{PLUGIN_VARIABLE} is {}: {why}", named.display());
        // Absolute, for the program may change its folder; links are not followed, for the name is what counts.
        let path = std::path::absolute(named).map_err(|error| told(error.to_string()))?;
        let data = path.metadata().map_err(|error| told(error.to_string()))?;
        if data.is_dir() {
            let found = NAMES.iter().map(|name| path.join(name)).find(|file| file.is_file());
            return found.ok_or_else(|| told(format!("neither {} is in it", NAMES.join(" nor "))));
        }
        if !path.as_os_str().as_bytes().ends_with(ENDING) {
            return Err(told("libfabric loads only files whose names end in fi.so; rename it".to_string()));
        }
        Ok(path)
    }

    /// Beside the command, or where `cargo xtask install` puts it.
    fn of(command: &Path) -> Result<PathBuf, String> {
        let beside = command.parent().unwrap_or(Path::new("/"));
        let mut folders = vec![beside.to_path_buf()];
        if let Some(prefix) = beside.parent() {
            let triplet = format!("lib/{}-linux-gnu", env::consts::ARCH);
            folders.extend(["lib", "lib64", &triplet].map(|library| prefix.join(library).join("libfabric")));
        }
        let files = folders.iter().flat_map(|folder| NAMES.iter().map(|name| folder.join(name)));
        files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
            let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!(
                "the libfabric plug-in ({}) is in none of {}. Build it with `cargo build --release`, install it with \
                 `cargo xtask install --prefix DIR`, or set {PLUGIN_VARIABLE} to its file",
                NAMES.join(" or "),
                folders.join(", ")
            )
        })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    /// The value of `FI_PROVIDER_PATH` with this plug-in before all others.
    pub(crate) fn path(&self) -> OsString {
        self.before(env::var_os(PATH_VARIABLE).as_deref())
    }

    fn before(&self, others: Option<&OsStr>) -> OsString {
        let others = others.unwrap_or_default().as_bytes();
        let (mark, others) = match others.split_first() {
            Some((&IN_ORDER, rest)) => (true, rest),
            _ => (false, others),
        };
        let folder = self.folder().as_os_str().as_bytes();
        let mut path = Vec::new();
        path.extend(mark.then_some(IN_ORDER));
        path.extend_from_slice(folder);
        for other in others.split(|byte| *byte == SEPARATOR).filter(|other| !other.is_empty() && *other != folder) {
            path.push(SEPARATOR);
            path.extend_from_slice(other);
        }
        OsString::from_vec(path)
    }

    /// What must be in the environment of a program that is to run on Weft. `road` as the user has it unless told.
    pub(crate) fn variables(&self, road: Option<Road>) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![(PATH_VARIABLE, self.path()), (PROVIDER_VARIABLE, PROVIDER.into())];
        variables.extend(road.map(|road| (ROAD_VARIABLE, road.name().into())));
        variables.extend(OPEN_MPI.iter().chain(&MPICH).map(|(name, value)| (*name, OsString::from(value))));
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder of its own for a test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = env::temp_dir().join(format!("weft-plugin-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_is_beside_the_command_or_where_it_is_installed() {
        let folder = Folder::new("places");
        let command = folder.file("bin/weft");
        let told = Plugin::look(None, &command).unwrap_err();
        assert!(told.contains("cargo build --release") && told.contains("bin, "), "{told}");
        let triplet = format!("lib/{}-linux-gnu/libfabric/libweft-fi.so", env::consts::ARCH);
        // Each place comes before those that were looked at earlier in this loop.
        for place in [&*triplet, "lib64/libfabric/libweft-fi.so", "lib/libfabric/libweft-fi.so", "bin/libweft_fi.so"] {
            let file = folder.file(place);
            assert_eq!(Plugin::look(None, &command).unwrap().file(), file);
        }
    }

    #[test]
    fn it_can_be_named() {
        let folder = Folder::new("named");
        let command = folder.file("bin/weft");
        folder.file("bin/libweft_fi.so");
        let other = folder.file("elsewhere/mine-fi.so");
        let look = |path: &Path| Plugin::look(Some(path.as_os_str()), &command);
        assert_eq!(look(&other).unwrap().file(), other);
        assert_eq!(look(&folder.0.join("bin")).unwrap().file(), folder.0.join("bin/libweft_fi.so"));
        for (path, told) in [
            (folder.0.join("elsewhere"), "neither libweft-fi.so nor libweft_fi.so is in it"),
            (folder.0.join("nowhere"), "No such file"),
            (folder.file("elsewhere/libweft.so"), "names end in fi.so"),
            (folder.file("a:b/libweft-fi.so"), "a colon"),
        ] {
            let error = look(&path).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn other_plugins_stay_in_the_path() {
        let plugin = Plugin { file: PathBuf::from("/here/libweft-fi.so") };
        let path = |others: Option<&str>| plugin.before(others.map(OsStr::new)).into_string().unwrap();
        assert_eq!(path(None), "/here");
        assert_eq!(path(Some("")), "/here");
        assert_eq!(path(Some("/one:/here:/two")), "/here:/one:/two");
        assert_eq!(path(Some("@/one:/two")), "@/here:/one:/two");
    }

    #[test]
    fn a_road_is_set_only_when_it_was_asked_for() {
        let plugin = Plugin { file: PathBuf::from("/here/libweft-fi.so") };
        let road = |road| {
            let variables = plugin.variables(road);
            variables.iter().find(|(name, _)| *name == ROAD_VARIABLE).map(|(_, value)| value.clone())
        };
        assert_eq!(road(None), None);
        assert_eq!(road(Some(Road::Packets)), Some(OsString::from("packets")));
    }
}
