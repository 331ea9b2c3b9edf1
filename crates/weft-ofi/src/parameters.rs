//! What users set in the environment: `FI_WEFT_ROAD` and its kin.

use weft::link::fault::{Faults, Faulty};
use weft::{DomainBuilder, Road};
use weft_core::limits::GIVE_UP_MAX_US;

use crate::abi::FI_EINVAL;
use crate::fabric::Fabric;
use crate::log;

/// A NIC as the parameters want it.
pub(crate) fn builder(fabric: &Fabric) -> Result<DomainBuilder, weft::Error> {
    // Programs that compute do not poll for a while, and are not dead.
    let builder = fabric.fabric.domain().configure(|config| config.give_up_us = GIVE_UP_MAX_US).stand_in();
    let road = log::parameter(c"road");
    let builder = match road.as_deref() {
        None | Some("" | "auto") => builder,
        Some("packets") => builder.road(Road::Packets),
        Some(other) => {
            log::warning!(CORE, "FI_WEFT_ROAD is \"{other}\": write auto or packets");
            return Err(nonsense("read FI_WEFT_ROAD"));
        }
    };
    match log::parameter(c"faults").filter(|list| !list.is_empty()) {
        None => Ok(builder),
        Some(list) => {
            let (faults, seed) = faults(&list).map_err(|why| {
                log::warning!(CORE, "FI_WEFT_FAULTS is \"{list}\": {why}");
                nonsense("read FI_WEFT_FAULTS")
            })?;
            // Shared memory has no such faults: with a decorator all goes as packets, unless a road is asked for, and
            // the only one that can be asked for is the same.
            Ok(builder.decorate(move |link| Faulty::new(link, seed, faults, Faults::default())))
        }
    }
}

fn nonsense(doing: &'static str) -> weft::Error {
    weft::Error::System { doing, source: std::io::Error::from_raw_os_error(FI_EINVAL) }
}

/// Reads a list such as `loss=0.01,reorder=0.02,seed=7`: what happens to the datagrams that are sent, and the seed. The
/// names are those of [`Faults`].
fn faults(list: &str) -> Result<(Faults, u64), String> {
    let (mut faults, mut seed) = (Faults::default(), 0);
    for entry in list.split(',') {
        let (name, value) = entry.split_once('=').ok_or_else(|| format!("\"{entry}\" is not NAME=VALUE"))?;
        let (name, value) = (name.trim(), value.trim());
        let whole = || value.parse::<u64>().map_err(|_| format!("{name} is a whole number, not \"{value}\""));
        let chance = match name {
            "loss" => &mut faults.loss,
            "duplicate" => &mut faults.duplicate,
            "reorder" => &mut faults.reorder,
            "corrupt" => &mut faults.corrupt,
            "delay_us" => {
                faults.delay_us = whole()?;
                continue;
            }
            "jitter_us" => {
                faults.jitter_us = whole()?;
                continue;
            }
            "seed" => {
                seed = whole()?;
                continue;
            }
            _ => {
                let known = "loss, duplicate, reorder, corrupt, delay_us, jitter_us and seed";
                return Err(format!("there is no \"{name}\", only {known}"));
            }
        };
        *chance = value
            .parse()
            .ok()
            .filter(|chance| (0.0..=1.0).contains(chance))
            .ok_or_else(|| format!("{name} is a chance from 0 to 1, not \"{value}\""))?;
    }
    Ok((faults, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_faults_is_read() {
        let (read, seed) =
            faults("loss=0.25, duplicate=1,reorder=0,corrupt=0.5,delay_us=3,jitter_us=4,seed=7").unwrap();
        let wanted =
            Faults { loss: 0.25, duplicate: 1.0, corrupt: 0.5, delay_us: 3, jitter_us: 4, ..Faults::default() };
        assert_eq!((read, seed), (wanted, 7));
    }

    #[test]
    fn nonsense_is_told() {
        let said = |list| faults(list).unwrap_err();
        assert_eq!(said("loss"), "\"loss\" is not NAME=VALUE");
        assert_eq!(said("loss=0.1,"), "\"\" is not NAME=VALUE");
        for list in ["loss=2", "loss=-0.1", "loss=NaN", "loss=", "loss=much"] {
            assert!(said(list).starts_with("loss is a chance from 0 to 1"), "{list}");
        }
        assert_eq!(said("seed=x"), "seed is a whole number, not \"x\"");
        assert!(said("rain=1").starts_with("there is no \"rain\""));
    }
}
