//! Progress of long work: one line on standard error, drawn only if that is a terminal and gone when the work is done.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressStyle};

/// A line for what is done at present.
pub(crate) fn stage() -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{msg}")
}

/// A line that counts to `total` of something.
pub(crate) fn count(total: u64, what: impl Into<Cow<'static, str>>) -> ProgressBar {
    styled(ProgressBar::new(total).with_message(what), "{pos} of {len} {msg}, {per_sec}, {eta} left")
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
