//! Makes a failing scenario small: faults are left out, then operations, then what is left of nodes, as long as the same
//! promise is broken.

use std::fmt;
use std::sync::Arc;

use weft_core::packet::Codec;

use crate::oracle::Violation;
use crate::run::run;
use crate::scenario::Scenario;

/// Parts of the trouble that can be left out.
pub const TROUBLES: [&str; 12] = [
    "crashes",
    "partitions",
    "narrow",
    "corrupt",
    "queue",
    "delayed",
    "late",
    "duplicate",
    "loss",
    "reorder",
    "jitter",
    "clocks",
];

/// Which parts of a seed's scenario are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Operations to leave out, by number.
    pub skipped: Vec<bool>,
    /// Troubles to leave out, as in [`TROUBLES`].
    pub without: Vec<&'static str>,
    /// Other chances of the network.
    pub salt: u64,
}

impl Mask {
    /// The scenario of a seed under the mask.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = Scenario::from_seed(seed);
        scenario.salt = self.salt;
        for trouble in &self.without {
            without(&mut scenario, trouble);
        }
        for (operation, skipped) in scenario.operations.iter_mut().zip(&self.skipped) {
            if *skipped {
                // Far behind the end, so that numbers stay what they were.
                operation.at = u64::MAX - 1;
            }
        }
        scenario
    }

    /// The operations left out, in hexadecimal; operation 0 is the highest bit of the first digit.
    #[must_use]
    pub fn skipped_text(&self) -> String {
        let digit = |bits: &[bool]| (0..4).fold(0u32, |digit, at| digit << 1 | u32::from(bits.get(at) == Some(&true)));
        self.skipped.chunks(4).filter_map(|bits| char::from_digit(digit(bits), 16)).collect()
    }

    /// Reads [`Mask::skipped_text`].
    pub fn parse_skipped(text: &str) -> Result<Vec<bool>, String> {
        let mut skipped = Vec::new();
        for letter in text.chars() {
            let digit = letter.to_digit(16).ok_or_else(|| format!("`{letter}` is no hexadecimal digit"))?;
            skipped.extend((0..4).rev().map(|bit| digit >> bit & 1 == 1));
        }
        Ok(skipped)
    }

    /// Finds a trouble by name.
    pub fn parse_trouble(name: &str) -> Result<&'static str, String> {
        let found = TROUBLES.iter().find(|trouble| **trouble == name);
        found.copied().ok_or_else(|| format!("`{name}` is none of {}", TROUBLES.join(", ")))
    }
}

impl fmt::Display for Mask {
    /// The options that `weft sim replay` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.skipped.contains(&true) {
            write!(f, " --skip {}", self.skipped_text())?;
        }
        if !self.without.is_empty() {
            write!(f, " --without {}", self.without.join(","))?;
        }
        if self.salt != 0 {
            write!(f, " --salt {}", self.salt)?;
        }
        Ok(())
    }
}

fn without(scenario: &mut Scenario, trouble: &str) {
    let faults = &mut scenario.faults;
    match trouble {
        "crashes" => scenario.crashes.clear(),
        "partitions" => scenario.partitions.clear(),
        "narrow" => scenario.narrowings.clear(),
        "corrupt" => faults.corrupt = 0,
        "queue" => faults.byte_time = 0,
        "delayed" => faults.delayed = 0,
        "late" => faults.late = 0,
        "duplicate" => faults.duplicate = 0,
        "loss" => faults.loss = 0,
        "reorder" => faults.reorder = 0,
        "jitter" => faults.jitter = 0,
        _ => scenario.nodes.iter_mut().for_each(|node| (node.rate, node.clock) = (1024, 0)),
    }
}

/// The smallest scenario found that still breaks the same promise, and how it breaks it.
#[must_use]
pub fn shrink(seed: u64, first: &Violation, codec: &Arc<Codec>, runs_max: u32) -> (Mask, Violation) {
    let count = Scenario::from_seed(seed).operations.len();
    let mut best = Mask { skipped: vec![false; count], ..Mask::default() };
    let mut violation = first.clone();
    let mut runs = 0;
    let mut attempt = |mask: &Mask, violation: &mut Violation, salts: u64| -> Option<Mask> {
        for salt in 0..salts {
            if runs >= runs_max {
                return None;
            }
            runs += 1;
            // The salt that worked last comes first.
            let mask = Mask { salt: mask.salt + salt, ..mask.clone() };
            if let Err(found) = run(&mask.scenario(seed), codec)
                && found.kind == first.kind
            {
                *violation = found;
                return Some(mask);
            }
        }
        None
    };
    for trouble in TROUBLES {
        let mut mask = best.clone();
        mask.without.push(trouble);
        if let Some(mask) = attempt(&mask, &mut violation, 3) {
            best = mask;
        }
    }
    let mut size = count.div_ceil(2).max(1);
    loop {
        for from in (0..count).step_by(size) {
            let mut mask = best.clone();
            let part = mask.skipped.iter_mut().skip(from).take(size);
            if part.filter(|skipped| !**skipped).map(|skipped| *skipped = true).count() == 0 {
                continue;
            }
            if let Some(mask) = attempt(&mask, &mut violation, 4) {
                best = mask;
            }
        }
        if size == 1 {
            break;
        }
        size = size.div_ceil(2);
    }
    // What needed a trouble may not need it any more.
    for trouble in TROUBLES {
        let mut mask = best.clone();
        if !mask.without.contains(&trouble) {
            mask.without.push(trouble);
            if let Some(mask) = attempt(&mask, &mut violation, 6) {
                best = mask;
            }
        }
    }
    (best, violation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_shown_as_options() {
        let skipped = vec![true, false, false, true, false, false, true, false];
        let mask = Mask { skipped, without: vec!["loss", "late"], salt: 7 };
        assert_eq!(mask.to_string(), " --skip 92 --without loss,late --salt 7");
        assert_eq!(Mask::parse_skipped("92"), Ok(mask.skipped));
        assert!(Mask::parse_skipped("x").is_err() && Mask::parse_trouble("rain").is_err());
    }
}
