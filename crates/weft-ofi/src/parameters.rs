//! What users set in the environment: `FI_WEFT_ROAD` and its kin.

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
    match road.as_deref() {
        None | Some("auto") => Ok(builder),
        Some("packets") => Ok(builder.road(Road::Packets)),
        Some(other) => {
            log::warning!(CORE, "FI_WEFT_ROAD is \"{other}\": write auto or packets");
            let source = std::io::Error::from_raw_os_error(FI_EINVAL);
            Err(weft::Error::System { doing: "read FI_WEFT_ROAD", source })
        }
    }
}
