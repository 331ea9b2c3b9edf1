//! The manual page weft(1): names, options and help texts come from the command line's definition, the sections behind
//! them from `manual.roff`.

use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::Arguments;

/// Sections that the command line has no place for.
const SECTIONS: &str = include_str!("manual.roff");

const SYNOPSIS: &str = r".SH SYNOPSIS
.nf
\fBweft\fR [\fICOMMAND\fR [\fIOPTIONS\fR]]
\fBweft help\fR [\fICOMMAND\fR], \fBweft \-\-version\fR
.fi
";
const DATE: &str = "2026-11-18";

/// A part of a page, as [`Man`] writes it.
type Render = fn(&Man, &mut dyn io::Write) -> io::Result<()>;

/// The page.
pub(crate) fn page() -> io::Result<String> {
    let mut weft = Arguments::<crate::Command>::command().disable_help_subcommand(true).disable_help_flag(true);
    weft.build();
    let source = format!("Weft {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(weft.clone()).title("WEFT").date(DATE).source(source).manual("Weft Manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    page += &format!(".SH NAME\n{}", body(&man, Man::render_name_section)?);
    page += SYNOPSIS;
    page += &format!(".SH DESCRIPTION\n{}", body(&man, Man::render_description_section)?);
    page += ".SH COMMANDS\n";
    for command in weft.get_subcommands().filter(|command| !command.is_hide_set()) {
        page += &section(command)?;
    }
    Ok(without_unicode(&(page + SECTIONS)))
}

/// Troff reads ASCII unless it is told otherwise.
fn without_unicode(text: &str) -> String {
    text.chars().fold(String::new(), |text, letter| match letter.is_ascii() {
        true => text + letter.encode_utf8(&mut [0; 4]),
        false => text + &format!("\\[u{:04X}]", u32::from(letter)),
    })
}

/// A command, then those below it.
fn section(command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut text = format!(".SS {}\n", command.get_bin_name().unwrap_or_default());
    if !command.has_subcommands() {
        text += &body(&man, Man::render_synopsis_section)?;
        text += ".PP\n";
    }
    text += &body(&man, Man::render_description_section)?;
    text += &body(&man, Man::render_options_section)?;
    text += ".PP\n";
    text += &body(&man, Man::render_extra_section)?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        text += &section(command)?;
    }
    Ok(text)
}

/// What a part has behind its heading.
fn body(man: &Man, render: Render) -> io::Result<String> {
    let mut text = Vec::new();
    render(man, &mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().skip_while(|line| !line.starts_with(".SH")).skip(1);
    Ok(lines.fold(String::new(), |all, line| all + line.trim_end() + "\n"))
}
