//! The `weft` command.
#![forbid(unsafe_code)]

mod bench;

use std::io::stdout;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", "decode", rest @ ..] => bench::Options::parse(rest).and_then(|options| {
            let report = bench::decode(&options)?;
            report.write(&options, &mut stdout().lock()).map_err(|error| error.to_string())
        }),
        _ => Err("write `weft bench decode [--rounds N] [--json]`".to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft: {error}");
            ExitCode::FAILURE
        }
    }
}
