//! The `weft` command. `weft help` says what it can do.
#![forbid(unsafe_code)]

mod bench;
mod decode;
mod demo;
mod dissect;
mod encode;
mod info;
mod input;
mod json;
mod plugin;
mod process;
mod protocol;
mod provider;
mod run;
mod sim;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::process::ExitCode;

use weft_wire::limits::DEFINITION_LENGTH_MAX_BYTES;
use weft_wire::table::{Source, Tables};

use decode::Format;

const HELP: &str = "\
weft: an RDMA NIC in software

  weft [demo]                     two NICs in two processes do all that Weft can do, and check every byte
  weft run [--road auto|packets] [--] PROGRAM [ARGUMENTS]
                                  a program that uses libfabric (fi_info, fi_pingpong, mpirun, ...), on Weft;
                                  weft run --help says more
  weft decode FILE [options]      show the RDMA packets of a pcap or pcapng file (also gzip; - is standard input)
      --json                      one JSON object a line
      --summary                   counts by protocol and opcode
      --protocols DIR             add the definitions (*.toml) in DIR; one of the same name replaces Weft's
      --session PORT              this UDP port carries SRDMA (its set-up is not in the capture)
  weft encode NAME OPCODE [FIELD=VALUE ...] [options]
                                  make a packet: opcode by name or number, fields as header.field, the rest by default
      --payload TEXT              its payload (0x… for bytes in hex)
      --out FILE                  append it to this pcap file
      --protocols DIR             as above
  weft protocol list              the protocols
  weft protocol show NAME         headers and opcodes of one
  weft protocol check FILE        check a definition
      --protocols DIR             with the definitions in DIR
  weft bench decode [--rounds N] [--json]
                                  cost of a packet, by tables and by hand-written code, in turns
  weft bench match [--rounds N] [--json]
                                  cost of matching a message, by how many receives or messages wait
  weft bench lat|bw|rate [options]
                                  Weft beside other libraries and bare sockets, in turns; weft bench --help says more
  weft bench device [options]     messages from and to memory of devices, beside plain copies
  weft bench ofi [options]        Weft beside other providers of libfabric, all by fi_pingpong
  weft info [--json]              the kinds of memory that are here or why they are absent, how copies are made, the
                                  libfabric plug-in, limits
%SIM%  weft help, weft --version

Exit status: 0 well (bad packets are marked in the output), 1 a file cannot be read or used, 2 the command line is wrong;
of run that of the program.
";

/// Why the command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// The input is at fault; the text says how.
    Told(String),
    /// As [`Failure::Told`], with an exit status of its own.
    Status(u8, String),
    /// Nobody reads the output any more.
    Closed,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe { Failure::Closed } else { Failure::Told(error.to_string()) }
    }
}

impl Failure {
    fn about(self, what: &str) -> Failure {
        match self {
            Failure::Told(text) => Failure::Told(format!("{what}: {text}")),
            other => other,
        }
    }
}

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match words.split_first() {
        // What follows is for another program, which may take any bytes.
        Some((first, rest)) if first == "run" => run::run(rest, &mut out),
        _ => arguments(words).and_then(|words| run(&words, &mut out)),
    };
    let outcome = outcome.and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Told(text)) => {
            // Where not even this can be written, the exit status still tells.
            let _ = writeln!(io::stderr(), "weft: {text}");
            ExitCode::from(1)
        }
        Err(Failure::Status(status, text)) => {
            let _ = writeln!(io::stderr(), "weft: {text}");
            ExitCode::from(status)
        }
        Err(Failure::Usage(text)) => {
            let _ = writeln!(io::stderr(), "weft: {text}\nTry `weft help`.");
            ExitCode::from(2)
        }
    }
}

fn arguments(words: Vec<OsString>) -> Result<Vec<String>, Failure> {
    let readable = |word: OsString| {
        word.into_string().map_err(|word| Failure::Usage(format!("{} is not UTF-8", word.to_string_lossy())))
    };
    words.into_iter().map(readable).collect()
}

fn help(out: &mut dyn Write) -> Result<(), Failure> {
    Ok(out.write_all(HELP.replace("%SIM%", sim::HELP).as_bytes())?)
}

fn run(arguments: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if words.iter().any(|word| matches!(*word, "--help" | "-h")) {
        return if words.first() == Some(&"bench") { Ok(out.write_all(bench::HELP.as_bytes())?) } else { help(out) };
    }
    if let Some(outcome) = bench::child(&words, out).or_else(|| demo::child(&words, out)) {
        return outcome;
    }
    match words.as_slice() {
        ["help", "bench"] => Ok(out.write_all(bench::HELP.as_bytes())?),
        ["help", "run"] => Ok(out.write_all(run::HELP.as_bytes())?),
        ["help", ..] => help(out),
        ["--version" | "-V"] => Ok(writeln!(out, "weft {}", env!("CARGO_PKG_VERSION"))?),
        ["decode", rest @ ..] => {
            let options = Options::parse(rest, &["--json", "--summary", "--protocols", "--session"])?;
            let file = options.one("decode takes one file")?;
            let format = match (options.json, options.summary) {
                (false, false) => Format::Lines,
                (true, false) => Format::Json,
                (false, true) => Format::Summary,
                (true, true) => return Err(Failure::Usage("--json or --summary, not both".to_string())),
            };
            decode::decode(&options.tables(&[])?, file, format, options.sessions, out)
        }
        ["encode", rest @ ..] => {
            let options = Options::parse(rest, &["--payload", "--out", "--protocols"])?;
            let [name, opcode, fields @ ..] = options.plain.as_slice() else {
                return Err(Failure::Usage("encode takes the names of a protocol and an opcode".to_string()));
            };
            let request =
                encode::Request { protocol: name, opcode, fields, payload: options.payload, file: options.out };
            encode::encode(&options.tables(&[])?, &request, out)
        }
        ["protocol", "list", rest @ ..] => {
            let options = Options::parse(rest, &["--protocols"])?;
            options.nothing_else()?;
            protocol::list(&options.tables(&[])?, out)
        }
        ["protocol", "show", rest @ ..] => {
            let options = Options::parse(rest, &["--protocols"])?;
            let name = options.one("protocol show takes the name of a protocol")?;
            protocol::show(&options.tables(&[])?, name, out)
        }
        ["protocol", "check", rest @ ..] => {
            let options = Options::parse(rest, &["--protocols"])?;
            let file = options.one("protocol check takes a definition file")?;
            let before = options.tables(&[])?.protocols().count();
            let tables = options.tables(&[file])?;
            let (_, checked) = tables.protocols().last().ok_or_else(|| Failure::Told("no protocol".to_string()))?;
            let replaces = if tables.protocols().count() == before { " (replaces the one of that name)" } else { "" };
            writeln!(out, "{file}: good: `{}`, {} opcodes{replaces}", checked.name(), checked.opcodes().count())?;
            Ok(())
        }
        ["protocol", ..] => Err(Failure::Usage("protocol list, show NAME or check FILE".to_string())),
        ["info", rest @ ..] => {
            let options = Options::parse(rest, &["--json"])?;
            options.nothing_else()?;
            info::info(options.json, out)
        }
        ["sim", rest @ ..] => sim::sim(rest, out),
        ["bench", rest @ ..] => bench::run(rest, out),
        ["demo", rest @ ..] => {
            Options::parse(rest, &[])?.nothing_else()?;
            demo::demo(out)
        }
        [] => demo::demo(out),
        [other, ..] => Err(Failure::Usage(format!("unknown command `{other}`"))),
    }
}

/// What stands behind a command.
#[derive(Default)]
struct Options<'a> {
    plain: Vec<&'a str>,
    json: bool,
    summary: bool,
    protocols: Vec<&'a str>,
    payload: &'a str,
    out: Option<&'a str>,
    sessions: Vec<u16>,
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a str], known: &[&str]) -> Result<Options<'a>, Failure> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if !word.starts_with("--") {
                options.plain.push(word);
                continue;
            }
            if !known.contains(word) {
                return Err(Failure::Usage(format!("unknown option `{word}`; known here: {}", known.join(", "))));
            }
            let mut value = || words.next().ok_or_else(|| Failure::Usage(format!("{word} takes a value")));
            match *word {
                "--json" => options.json = true,
                "--summary" => options.summary = true,
                "--protocols" => options.protocols.push(value()?),
                "--payload" => options.payload = value()?,
                "--out" => options.out = Some(value()?),
                "--session" => {
                    let port = value()?;
                    let bad = |_| Failure::Usage(format!("`{port}` is no UDP port"));
                    options.sessions.push(port.parse().map_err(bad)?);
                }
                _ => return Err(Failure::Usage(format!("unknown option `{word}`"))),
            }
        }
        Ok(options)
    }

    /// The one plain word.
    fn one(&self, usage: &str) -> Result<&'a str, Failure> {
        match self.plain.as_slice() {
            [one] => Ok(one),
            _ => Err(Failure::Usage(usage.to_string())),
        }
    }

    fn nothing_else(&self) -> Result<(), Failure> {
        match self.plain.first() {
            None => Ok(()),
            Some(word) => Err(Failure::Usage(format!("what is `{word}`?"))),
        }
    }

    /// Weft's protocols, those of `--protocols`, and `more` files.
    fn tables(&self, more: &[&str]) -> Result<Tables, Failure> {
        let mut files: Vec<(String, String)> = Vec::new();
        for directory in &self.protocols {
            let entries = std::fs::read_dir(directory).map_err(|error| Failure::from(error).about(directory))?;
            let mut paths = Vec::new();
            for entry in entries {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    paths.push(path);
                }
            }
            paths.sort();
            if paths.is_empty() {
                return Err(Failure::Told(format!("{directory}: there is no definition (*.toml) in it")));
            }
            for path in paths {
                files.push(read_definition(&path.to_string_lossy())?);
            }
        }
        for path in more {
            files.push(read_definition(path)?);
        }
        let sources: Vec<Source<'_>> = files.iter().map(|(file, text)| Source { file, text }).collect();
        Tables::builtin_and(&sources).map_err(|error| Failure::Told(error.to_string()))
    }
}

fn read_definition(path: &str) -> Result<(String, String), Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| {
        // One byte more than allowed, so that a file that is too long is seen to be.
        file.take(DEFINITION_LENGTH_MAX_BYTES as u64 + 1).read_to_string(&mut text)
    });
    read.map_err(|error| Failure::from(error).about(path))?;
    Ok((path.to_string(), text))
}
