//! Installs the command, the libfabric plug-in and the manual pages below a prefix.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::workspace::{Failure, Workspace, in_context, output, run};

const PROGRAM_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// The manual pages; the ending is the section.
const MANUAL: [&str; 2] = ["weft.1", "fi_weft.7"];

#[derive(Args)]
pub(crate) struct Request {
    /// Where to, such as /usr/local or ~/.local
    #[arg(long, value_name = "DIR", value_parser = folder)]
    prefix: PathBuf,
    /// Where libraries go [default: lib of the prefix]
    #[arg(long = "libdir", value_name = "DIR", value_parser = folder)]
    libraries: Option<PathBuf>,
}

/// Absolute: the folder is the caller's, whose current one this process still has.
fn folder(text: &str) -> io::Result<PathBuf> {
    std::path::absolute(text)
}

impl Request {
    /// libfabric's plug-ins.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.libraries.clone().unwrap_or_else(|| self.prefix.join("lib")).join("libfabric")
    }

    fn plugin(&self) -> PathBuf {
        self.plugins().join("libweft-fi.so")
    }

    fn command(&self) -> PathBuf {
        self.prefix.join("bin/weft")
    }

    /// What is installed: from where, to where, with which permissions.
    fn files(&self, workspace: &Workspace) -> Vec<(PathBuf, PathBuf, u32)> {
        let mut files = vec![
            (workspace.file("target/release/weft"), self.command(), PROGRAM_MODE),
            // libfabric wants a name that ends in `fi.so`; a hyphen before it is the custom.
            (workspace.file("target/release/libweft_fi.so"), self.plugin(), FILE_MODE),
        ];
        files.extend(MANUAL.iter().map(|page| {
            let section = page.rsplit('.').next().unwrap_or_default();
            let to = self.prefix.join("share/man").join(format!("man{section}")).join(page);
            (manual_page(workspace, page), to, FILE_MODE)
        }));
        files
    }
}

fn manual_page(workspace: &Workspace, page: &str) -> PathBuf {
    workspace.file("docs/man").join(page)
}

pub(crate) fn install(workspace: &Workspace, request: &Request) -> Result<(), Failure> {
    let mut build = workspace.cargo("build");
    // The folder is named, so that what is built is where it is looked for.
    build.args(["--release", "--locked", "-p", "weft-cli", "-p", "weft-ofi", "--target-dir", "target"]);
    run(&mut build)?;
    for (from, to, mode) in request.files(workspace) {
        put(&from, &to, mode).map_err(in_context(&format!("cannot install {}", to.display())))?;
        println!("{}", to.display());
    }
    println!(
        "\nRun programs with `{} run -- PROGRAM`, or set FI_PROVIDER_PATH={} for them.",
        request.command().display(),
        request.plugins().display()
    );
    Ok(())
}

/// Programs that use the old file keep it: the new one takes its name, not its place.
fn put(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    let folder = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    // Not a name that libfabric would load.
    name.push(".new");
    let new = folder.join(name);
    // Left behind by an installation that was interrupted; perhaps by another user.
    let _ = fs::remove_file(&new);
    fs::copy(from, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, to)
}

/// Installs below `target`, and starts a program of libfabric from there.
pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    for page in MANUAL {
        // Lines that are too long, unknown requests and the like are told on standard error.
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-z", "-ww"]).arg(manual_page(workspace, page));
        let told = groff.output().map_err(in_context("groff"))?;
        if !told.status.success() || !told.stderr.is_empty() {
            return Err(format!("{page}: {}", String::from_utf8_lossy(&told.stderr)));
        }
    }
    let prefix = workspace.file("target/installed");
    if prefix.exists() {
        fs::remove_dir_all(&prefix).map_err(in_context("cannot empty target/installed"))?;
    }
    let request = Request { prefix, libraries: None };
    install(workspace, &request)?;
    let shown = output(Command::new(request.command()).args(["run", "--", "fi_info", "-p", "weft"]))?;
    if !shown.contains("provider: weft\n") {
        return Err(format!("the installed plug-in is not offered by libfabric:\n{shown}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_installed_has_its_place() {
        let workspace = Workspace::locate().unwrap();
        let request = Request { prefix: PathBuf::from("/p"), libraries: None };
        let places: Vec<PathBuf> = request.files(&workspace).into_iter().map(|(_, to, _)| to).collect();
        let expected = [
            "/p/bin/weft",
            "/p/lib/libfabric/libweft-fi.so",
            "/p/share/man/man1/weft.1",
            "/p/share/man/man7/fi_weft.7",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
        assert!(MANUAL.iter().all(|page| manual_page(&workspace, page).is_file()));
    }

    #[test]
    fn a_file_in_use_is_replaced_and_not_written_into() {
        let folder = std::env::temp_dir().join(format!("weft-install-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (from, to) = (folder.join("from"), folder.join("deep/to"));
        fs::write(&from, "one").unwrap();
        put(&from, &to, FILE_MODE).unwrap();
        let kept = folder.join("kept");
        fs::hard_link(&to, &kept).unwrap();
        fs::write(&from, "two").unwrap();
        put(&from, &to, PROGRAM_MODE).unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!((read(&to), read(&kept)), ("two".to_string(), "one".to_string()));
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, PROGRAM_MODE);
        assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
