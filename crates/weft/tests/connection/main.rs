//! Connections over both roads and both ways of progress: what is promised, and what goes wrong.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod crowds;
mod faults;
mod processes;
mod support;

/// What a process does that one of the tests has started. Alone it has nothing to do.
#[test]
fn role() {
    processes::play();
}

/// Makes a module for each combination, with a test for each case.
macro_rules! combinations {
    ($($combination:ident: $road:ident $progress:ident $($faulty:ident)?;)*) => {
        $(mod $combination {
            fn world() -> crate::support::World {
                crate::support::World::new(weft::Road::$road, weft::Progress::$progress)$(.$faulty())?
            }
            case! {
                answers {
                    connected_ends_talk_both_ways data_of_every_length a_rejection_brings_its_data
                    a_dropped_request_is_a_rejection shutdown_is_told_once dropping_the_handle_shuts_down
                    what_cannot_be_is_refused accepted_on_the_listeners_own_domain
                    requests_wait_until_they_are_answered handles_know_their_peer events_of_dropped_handles_are_gone
                    sleepers_are_woken strangers_are_not_heard
                }
                crowds { many_connections_at_once many_connections_one_after_the_other many_threads }
                faults {
                    nobody_listens silence_is_unreachable a_closed_listener_rejects a_closed_listener_can_still_reject time_passes closed_while_connecting
                    shut_down_before_the_confirmation garbage_is_ignored a_reported_loss_is_a_shutdown
                    a_manager_that_closes_says_so
                }
            }
        })*
    };
}

macro_rules! case {
    ($($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                crate::$module::$case(&super::world());
            })*
        })*
    };
}

combinations! {
    udp_manual: Packets Manual;
    udp_automatic: Packets Automatic;
    faulty_udp_manual: Packets Manual faulty;
    faulty_udp_automatic: Packets Automatic faulty;
    shm_manual: Automatic Manual;
    shm_automatic: Automatic Automatic;
}
