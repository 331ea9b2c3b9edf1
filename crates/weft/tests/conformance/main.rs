//! One suite over every link, both ways of progress and all kinds of memory: what holds for one combination holds for
//! all.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but not in the functions that tests call"
)]

#[path = "../common/mod.rs"]
mod common;

mod atomics;
mod endpoints;
mod errors;
mod flow;
mod lifetimes;
mod matching;
mod messages;
mod patterns;
mod peers;
mod remote_memory;
mod sharing;
mod support;
mod triggers;
mod vectors;
mod waiting;
mod waiting_messages;

/// Makes a module for each combination, with a test for each case.
macro_rules! combinations {
    ($($combination:ident: $ways:ident $progress:ident $first:ident $others:ident;)*) => {
        $(mod $combination {
            fn world() -> crate::support::World {
                use crate::support::{Memory, Ways, World};
                World::new(Ways::$ways, weft::Progress::$progress, Memory::$first, Memory::$others)
            }
            cases!();
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

macro_rules! cases {
    () => {
        case! {
            messages {
                every_length_arrives every_length_from_a_region injected_messages_arrive_in_order
                a_message_without_bytes lists_are_gathered_and_scattered immediate_data_comes_along
                datagrams_arrive_or_not datagrams_have_a_limit messages_to_myself more_to_follow
                shared_and_static_bytes long_and_short_mixed_keep_order
            }
            matching {
                unexpected_messages_wait tags_and_ignored_bits directed_receives wildcards_take_in_order
                multi_receive_fills_its_buffer truncation_is_told_to_both cancelled_receives_take_nothing
                unexpected_long_message
            }
            remote_memory {
                writes_of_every_length reads_of_every_length immediate_data_follows_the_bytes
                injected_writes fences_order_writes overlapping_regions_and_offsets write_from_and_to_regions
                chosen_keys addresses_up_to_the_last_one
                ordered_operations_see_those_before regions_count_what_peers_do
            }
            atomics {
                every_operation_on_every_type fetch_add_counts_each_once compare_and_swap_has_one_winner
                arrays_of_elements floats all_that_is_possible what_does_not_exist_is_refused
            }
            vectors {
                several_ranges_end_as_one a_bad_range_fails_the_whole immediate_data_follows_all_ranges
                ranges_that_do_not_fit_are_refused values_in_many_pieces atomics_on_several_ranges
                closing_ends_what_goes_in_parts nothing_is_posted_without_room
            }
            errors {
                unknown_key out_of_bounds missing_right after_deregistration unknown_peer queue_full
                closed_remote_endpoint read_only_buffers misaligned_atomics foreign_queue too_long_to_inject
            }
            endpoints {
                numbers_can_be_chosen completions_tell_what_ended multi_receives_say_when_they_end
                restricted_endpoints_have_one_peer queues_can_be_bound_later
                counters_can_be_bound_later sides_close_one_by_one datagrams_can_wait
            }
            flow {
                a_full_queue_holds_peers_back levels silent_operations counters_count
                refused_buffers_come_back thousands_of_messages
            }
            lifetimes {
                scopes_send_and_receive leaving_a_scope_cancels a_panic_in_a_scope_is_safe
                scopes_leave_completions_to_be_read closing_an_endpoint_ends_its_operations
                a_quiet_end_tells_nothing
                dropped_buffers_live_until_they_are_done handles_keep_things_open forgotten_scope_results
                long_sends_that_nobody_fetches_can_be_left leaving_after_the_last_message
            }
            peers {
                two_peers_do_not_mix many_endpoints all_to_all both_ways_at_once fabrics_do_not_hear_each_other
                many_threads
            }
            patterns {
                both_ways_with_short_queues synchronous_both_ways receives_come_late a_reader_pauses rings_of_nodes
                everybody_to_everybody remote_memory_both_ways waiting_messages_hold_up_no_remote_memory
            }
            triggers {
                deferred_sends_go_in_order_of_threshold messages_trigger_answers chains_run_by_themselves
                receives_and_atomics_are_deferred_too deferred_work_waits_for_room deferred_work_is_taken_back
                deferred_work_is_checked vectors_and_scattered_atomics_are_deferred writes_of_peers_trigger_work
            }
            sharing {
                one_pool_serves_several pools_have_tags_sources_and_long_buffers who_has_no_queue_reports_to_the_pool
                a_full_pool_holds_senders_back sharing_ends_in_any_order
            }
            waiting_messages {
                looking_changes_nothing claimed_messages_are_for_who_claimed_them
                a_claim_can_be_too_long_for_its_buffer discarded_messages_are_done_for_their_sender
                claims_end_with_their_endpoint a_claimed_message_can_be_lost
                announced_messages_wait_for_a_buffer
            }
            waiting {
                sleep_until_a_message_comes descriptors_lose_no_wake_up time_passes counters_wake
                waits_in_many_threads signals_end_waits receives_that_find_their_message_wake waits_for_several
            }
        }
    };
}

combinations! {
    udp_manual: Udp Manual Host Host;
    udp_automatic: Udp Automatic Host Host;
    udp_manual_from_device: Udp Manual Emulated Host;
    udp_manual_to_device: Udp Manual Host Emulated;
    udp_manual_between_devices: Udp Manual Emulated Emulated;
    udp_automatic_from_device: Udp Automatic Emulated Host;
    udp_automatic_to_device: Udp Automatic Host Emulated;
    udp_automatic_between_devices: Udp Automatic Emulated Emulated;
    loopback_manual: Loopback Manual Host Host;
    loopback_automatic: Loopback Automatic Host Host;
    shm_manual: Shm Manual Host Host;
    shm_manual_from_device: Shm Manual Emulated Host;
    shm_manual_to_device: Shm Manual Host Emulated;
    shm_manual_between_devices: Shm Manual Emulated Emulated;
    shm_automatic: Shm Automatic Host Host;
    shm_automatic_from_device: Shm Automatic Emulated Host;
    shm_automatic_to_device: Shm Automatic Host Emulated;
    shm_automatic_between_devices: Shm Automatic Emulated Emulated;
    faulty_udp_manual: FaultyUdp Manual Host Host;
    faulty_udp_automatic: FaultyUdp Automatic Host Host;
}
