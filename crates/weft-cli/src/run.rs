//! `weft run`: a program of somebody else, on Weft.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use crate::Failure;
use crate::plugin::{PLUGIN_VARIABLE, Plugin, Road};

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Arguments {
    /// Transport: auto is shared memory to peers on this machine and packets to others
    #[arg(long)]
    road: Option<Road>,
    /// Print what would be set, as lines for a shell
    #[arg(long, conflicts_with = "program")]
    print: bool,
    /// Program, and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "print")]
    program: Vec<OsString>,
}

const AFTER: &str = "\
It sets the variables by which libfabric finds the plug-in and offers nothing
else (FI_PROVIDER_PATH, FI_PROVIDER), those by which Open MPI and MPICH choose
libfabric and, with --road, FI_WEFT_ROAD. Then PROGRAM takes its place. To set
one of them otherwise, put env before the program:
  weft run -- env MPIR_CVAR_NOLOCAL=0 PROGRAM

The plug-in is the file that WEFT_PLUGIN names, or libweft_fi.so or
libweft-fi.so beside this command, or in ../lib/libfabric from there.

Exit status: that of PROGRAM; 2 the command line is wrong, 125 there is no
plug-in, 126 PROGRAM cannot be started, 127 there is no PROGRAM.

Examples:
  weft run -- fi_info
  weft run -- fi_pingpong
  weft run -- mpirun -n 2 PROGRAM
  eval \"$(weft run --print)\"";

/// As env(1) and its like have them.
const STATUS_NO_PLUGIN: u8 = 125;
const STATUS_CANNOT_START: u8 = 126;
const STATUS_NO_PROGRAM: u8 = 127;

/// `weft run`. Returns only when the program was not started.
pub(crate) fn run(request: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let plugin = Plugin::find().map_err(|why| Failure::Status(STATUS_NO_PLUGIN, why))?;
    let variables = plugin.variables(request.road);
    let [program, arguments @ ..] = request.program.as_slice() else {
        for (name, value) in variables {
            writeln!(out, "export {name}={}", quoted(&value)?)?;
        }
        return Ok(());
    };
    let error = Command::new(program).args(arguments).envs(variables).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { STATUS_NO_PROGRAM } else { STATUS_CANNOT_START };
    Err(Failure::Status(status, format!("{}: {error}", program.to_string_lossy())))
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
    use clap::Parser;
    use clap::error::ErrorKind;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("run").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn the_program_keeps_its_own_options() {
        for (line, road, program) in [
            ("fi_info -p weft --help", None, "fi_info -p weft --help"),
            ("-- fi_info --road", None, "fi_info --road"),
            ("--road packets -- a --print", Some(Road::Packets), "a --print"),
            ("--road auto a -- b", Some(Road::Auto), "a -- b"),
            ("-- -a", None, "-a"),
            ("--print", None, ""),
        ] {
            let request = parse(line).unwrap();
            let words: Vec<OsString> = program.split_whitespace().map(OsString::from).collect();
            assert_eq!((request.road, request.program), (road, words), "{line:?}");
        }
        for (line, kind) in [
            ("--road auto --help", ErrorKind::DisplayHelp),
            ("", ErrorKind::MissingRequiredArgument),
            ("--", ErrorKind::MissingRequiredArgument),
            ("--road", ErrorKind::InvalidValue),
            ("--road train a", ErrorKind::InvalidValue),
            ("--fast a", ErrorKind::UnknownArgument),
            ("--print a", ErrorKind::ArgumentConflict),
        ] {
            assert_eq!(parse(line).unwrap_err().kind(), kind, "{line:?}");
        }
    }

    #[test]
    fn a_shell_reads_back_what_is_printed() {
        assert_eq!(quoted(OsStr::new("a b")).unwrap(), "'a b'");
        assert_eq!(quoted(OsStr::new("it's")).unwrap(), r"'it'\''s'");
    }
}
