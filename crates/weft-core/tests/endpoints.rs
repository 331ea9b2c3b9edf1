//! Endpoints that come and go.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::{TestMemory, codec};
use weft_core::delivery::{Bindings, EndpointKind, Opening};
use weft_core::engine::{Config, Engine};
use weft_core::time::Time;

/// Endpoints that others took their receives from are forgotten with them, and numbers of closed ones are used again.
#[test]
fn closed_endpoints_leave_nothing_behind() {
    let mut engine = Engine::new(Config::default(), codec(), [1; 32], TestMemory::default());
    let queue = engine.delivery_mut().open_queue(16);
    let bound = Bindings { receive_queue: Some(queue), ..Bindings::default() };
    let sharers = |engine: &Engine<TestMemory>, of| engine.delivery().sharing_queues(of).count();
    for _ in 0..3 {
        let pool = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, Bindings::default());
        let opening = Opening { srx: Some(pool), ..Opening::default() };
        let [a, b] = [(); 2]
            .map(|()| engine.delivery_mut().open_endpoint_with(EndpointKind::Reliable, bound, &opening).unwrap());
        assert_eq!((pool.0.max(a.0).max(b.0), sharers(&engine, pool)), (2, 2));
        engine.close_endpoint(Time::from_micros(1), a);
        assert_eq!(sharers(&engine, pool), 1);
        engine.close_endpoint(Time::from_micros(1), pool);
        // Another in the place of the first has nobody who shares.
        let next = engine.delivery_mut().open_endpoint(EndpointKind::Reliable, Bindings::default());
        assert_eq!((next, sharers(&engine, next)), (pool, 0));
        for endpoint in [b, next] {
            engine.close_endpoint(Time::from_micros(1), endpoint);
        }
    }
}
