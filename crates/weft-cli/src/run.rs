//! `weft run`: a program of somebody else, on Weft.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;
use crate::plugin::{PLUGIN_VARIABLE, Plugin, Road};

pub(crate) const HELP: &str = "\
weft run: a program that uses libfabric, on Weft

  weft run [options] [--] PROGRAM [ARGUMENTS]
      --road ROAD                 auto: shared memory to peers on this machine, packets to others (default);
                                  packets: packets to all
  weft run [options] --print      show what it would set, as lines for a shell; no program

It sets the variables by which libfabric finds the plug-in and offers nothing else (FI_PROVIDER_PATH, FI_PROVIDER), and
those by which Open MPI and MPICH choose libfabric. Then PROGRAM takes its place. To set one of them otherwise, put
env before the program: weft run -- env MPIR_CVAR_NOLOCAL=0 PROGRAM.

The plug-in is the file that WEFT_PLUGIN names, or libweft_fi.so or libweft-fi.so beside this command, or in
../lib/libfabric from there.

  weft run -- fi_info
  weft run -- fi_pingpong         and, in another terminal: weft run -- fi_pingpong localhost
  weft run -- mpirun -n 2 PROGRAM

Exit status: that of PROGRAM; 2 the command line is wrong, 125 there is no plug-in, 126 PROGRAM cannot be started,
127 there is no PROGRAM.
";

/// As env(1) and its like have them.
const STATUS_NO_PLUGIN: u8 = 125;
const STATUS_CANNOT_START: u8 = 126;
const STATUS_NO_PROGRAM: u8 = 127;

/// `weft run WORDS`. Returns only when the program was not started.
pub(crate) fn run(words: &[OsString], out: &mut dyn Write) -> Result<(), Failure> {
    let request = match Request::parse(words).map_err(Failure::Usage)? {
        Some(request) => request,
        None => return Ok(out.write_all(HELP.as_bytes())?),
    };
    let plugin = Plugin::find().map_err(|why| Failure::Status(STATUS_NO_PLUGIN, why))?;
    let variables = plugin.variables(request.road);
    let [program, arguments @ ..] = request.program else {
        for (name, value) in variables {
            writeln!(out, "export {name}={}", quoted(&value)?)?;
        }
        return Ok(());
    };
    let error = Command::new(program).args(arguments).envs(variables).exec();
    let status = if error.kind() == ErrorKind::NotFound { STATUS_NO_PROGRAM } else { STATUS_CANNOT_START };
    Err(Failure::Status(status, format!("{}: {error}", program.to_string_lossy())))
}

#[derive(Debug, PartialEq)]
struct Request<'a> {
    road: Option<Road>,
    /// The program and its arguments; empty when the variables are to be shown.
    program: &'a [OsString],
}

impl<'a> Request<'a> {
    /// `None` when help is wanted.
    fn parse(words: &'a [OsString]) -> Result<Option<Request<'a>>, String> {
        let mut road = None;
        let mut print = false;
        let mut rest = words;
        let program = loop {
            let [word, after @ ..] = rest else { break rest };
            match word.to_str() {
                Some("--help" | "-h") => return Ok(None),
                Some("--print") => print = true,
                Some("--road") => {
                    let [name, after @ ..] = after else { return Err("--road takes auto or packets".to_string()) };
                    let known = name.to_str().and_then(Road::from_name);
                    road = Some(known.ok_or("--road takes auto or packets")?);
                    rest = after;
                    continue;
                }
                Some("--") => break after,
                Some(option) if option.starts_with('-') => {
                    return Err(format!("unknown option `{option}` of run; those of PROGRAM come after it"));
                }
                _ => break rest,
            }
            rest = after;
        };
        match (print, program) {
            (false, []) => Err("run takes a program: weft run -- fi_info".to_string()),
            (true, [word, ..]) => Err(format!("--print takes no program; what is `{}`?", word.to_string_lossy())),
            _ => Ok(Some(Request { road, program })),
        }
    }
}

/// `value` as a word of a shell.
fn quoted(value: &OsStr) -> Result<String, Failure> {
    let unreadable = || Failure::Told(format!("the plug-in's folder is not UTF-8; set {PLUGIN_VARIABLE} to another"));
    let value = value.to_str().ok_or_else(unreadable)?;
    Ok(format!("'{}'", value.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_keeps_its_own_options() {
        let words = |text: &str| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        for (line, road, program) in [
            ("fi_info -p weft --help", None, "fi_info -p weft --help"),
            ("-- fi_info --road", None, "fi_info --road"),
            ("--road packets -- a --print", Some(Road::Packets), "a --print"),
            ("--road auto a -- b", Some(Road::Auto), "a -- b"),
            ("-- -a", None, "-a"),
            ("--print", None, ""),
        ] {
            let (line, program) = (words(line), words(program));
            assert_eq!(Request::parse(&line), Ok(Some(Request { road, program: &program })), "{line:?}");
        }
        assert_eq!(Request::parse(&words("--road auto --help")), Ok(None));
        for (line, told) in [
            ("", "run takes a program"),
            ("--", "run takes a program"),
            ("--road", "--road takes"),
            ("--road train a", "--road takes"),
            ("--fast a", "unknown option `--fast`"),
            ("--print a", "what is `a`?"),
        ] {
            let error = Request::parse(&words(line)).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_shell_reads_back_what_is_printed() {
        assert_eq!(quoted(OsStr::new("a b")).unwrap(), "'a b'");
        assert_eq!(quoted(OsStr::new("it's")).unwrap(), r"'it'\''s'");
    }
}
