//! How a run ends: the trouble stops, everything must finish; late copies come and do no harm; then nothing is kept.

use weft_core::engine::State;
use weft_core::event::Counter;
use weft_core::memory::LocalKey;

use crate::node::CELL;
use crate::oracle::{Oracle, Start, Violation};
use crate::scenario::Place;
use crate::workload::{CELLS, Operation, What};
use crate::world::World;

/// Receives that wait at each endpoint when a run is wound up.
const SPARE_RECEIVES: usize = 3;

impl World<'_> {
    /// The trouble is over: everything must finish.
    pub(crate) fn wind_up(&mut self) -> Result<(), Violation> {
        self.network.heal();
        self.winding_up = true;
        self.trace.line(self.now, || "the trouble is over".to_string());
        for node in 0..self.nodes.len() {
            if self.nodes.get(node).is_some_and(Option::is_none) {
                self.start(node);
            }
        }
        for node in 0..self.nodes.len() {
            (0..self.nodes.len()).for_each(|other| self.learn(node, other));
            self.poll(node)?;
            self.spare_receives(node)?;
            self.settle(node)?;
        }
        let deadline = self.now + self.scenario.finish_within();
        while self.agenda.next_at().is_some_and(|at| at <= deadline) && !self.is_finished() {
            // Looking at everything after each event would cost more than the run.
            for _ in 0..16 {
                if self.agenda.next_at().is_some_and(|at| at <= deadline) {
                    self.step()?;
                }
            }
        }
        match self.unfinished() {
            None => Ok(()),
            Some((operation, text)) => {
                self.now = deadline;
                let node = self.oracle.records.get(operation as usize).map(|record| record.start.0);
                Err(Violation { operation: Some(operation), ..self.violation("does not finish", node, text) })
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.unfinished().is_none()
    }

    fn unfinished(&self) -> Option<(u32, String)> {
        self.oracle.records.iter().find_map(|record| {
            let id = record.operation.id;
            match record.operation.what {
                What::Receive { .. } | What::Cancel { .. } | What::Close | What::TooBig { .. } => return None,
                // Without a buffer nobody hears of the end.
                _ if record.operation.is_unreported() && record.given.local == LocalKey::NONE => {}
                _ if self.oracle.is_pending(record) => return Some((id, format!("no completion: {record}"))),
                _ => {}
            }
            let closed = record.operation.peer().is_some_and(|peer| self.oracle.is_closed(record.target, peer));
            let alive = record.target.is_some_and(|target| self.is_alive(target)) && !closed;
            let sent = matches!(record.operation.what, What::Send { .. });
            let succeeded = matches!(record.outcome, Some((_, Ok(()))));
            let missing = alive && sent && succeeded && record.deliveries.is_empty();
            missing.then(|| (id, format!("not delivered: {record}")))
        })
    }

    fn is_alive(&self, start: Start) -> bool {
        self.nodes.get(start.0).and_then(Option::as_ref).is_some_and(|node| node.incarnation == start.1)
    }

    /// Keeps receives for anything posted at every reliable endpoint.
    pub(crate) fn spare_receives(&mut self, node: usize) -> Result<(), Violation> {
        let Some(Some(up)) = self.nodes.get(node) else { return Ok(()) };
        let start = (node, up.incarnation);
        let length = self.longest();
        let wanted: Vec<_> = (0..up.endpoints.len() - 1)
            .flat_map(|endpoint| [(endpoint, None), (endpoint, Some((0, u64::MAX)))])
            .collect();
        let mut refused = false;
        for (endpoint, tag) in wanted {
            let place = Place { node, endpoint };
            if self.oracle.is_closed(Some(start), place) {
                continue;
            }
            let what = What::Receive { tag, source: None, length, multi: None };
            let waiting = |oracle: &Oracle| {
                let mine = oracle.records.iter().rev().take_while(|r| r.operation.at == u64::MAX);
                mine.filter(|r| r.operation.place == place && r.operation.what == what && r.start == start)
                    .filter(|r| oracle.is_pending(r))
                    .count()
            };
            for _ in waiting(&self.oracle)..SPARE_RECEIVES {
                let id = self.oracle.records.len() as u32;
                let operation = Operation { id, at: u64::MAX, place, what: what.clone() };
                self.oracle.add(operation.clone());
                self.oracle.begin(self.now, id, start, None);
                let Some(Some(up)) = self.nodes.get_mut(node) else { return Ok(()) };
                let posted = up.post_receive(&operation, None);
                self.oracle.begun(id, posted.as_ref().ok().copied());
                self.trace.line(self.now, || format!("{node} posts {id}: {:?} {posted:?}", operation.what));
                if posted.is_err() {
                    refused = true;
                    break;
                }
            }
        }
        self.spare_refused.iter_mut().skip(node).take(1).for_each(|slot| *slot = refused);
        self.flush(node)
    }

    fn longest(&self) -> u64 {
        let length = |operation: &Operation| match operation.what {
            What::Send { length, .. } => u64::from(length),
            _ => 0,
        };
        self.scenario.operations.iter().map(length).max().unwrap_or(0).max(8)
    }

    /// Copies that come late do no harm, and then everything is forgotten.
    pub(crate) fn rest(&mut self) -> Result<(), Violation> {
        self.trace.line(self.now, || "everything has finished".to_string());
        while let Some(last) = self.agenda.last_arrival() {
            self.run_until(last)?;
        }
        self.run_until(self.now + self.scenario.forget_within())?;
        for node in 0..self.nodes.len() {
            let pending: Vec<u32> = self
                .oracle
                .records
                .iter()
                .filter(|record| record.start.0 == node && self.oracle.is_pending(record))
                .map(|record| record.operation.id)
                .collect();
            for id in pending {
                self.end_receive(node, id)?;
            }
        }
        let alive: Vec<Start> = self.nodes.iter().flatten().map(|node| (node.number, node.incarnation)).collect();
        self.oracle.finish(self.now, |start| alive.contains(&start))?;
        for node in 0..self.nodes.len() {
            self.check_state(node)?;
        }
        Ok(())
    }

    fn end_receive(&mut self, node: usize, id: u32) -> Result<(), Violation> {
        let Some(record) = self.oracle.records.get(id as usize) else { return Ok(()) };
        let place = record.operation.place;
        // The end of a receive without buffer is not told when its endpoint is closed and the queue is full.
        let closed = self.oracle.is_closed(Some(record.start), place) && record.given.local == LocalKey::NONE;
        let silent = record.operation.is_unreported() || closed;
        let Some(Some(up)) = self.nodes.get_mut(node) else { return Ok(()) };
        let (local, endpoint) = (up.local_time(self.now), up.endpoints.get(place.endpoint).copied());
        if endpoint.is_some_and(|endpoint| up.engine.cancel(local, endpoint, u64::from(id))) {
            self.oracle.cancelled(id);
        }
        self.poll(node)?;
        self.settle(node)?;
        let left = self.oracle.records.get(id as usize).filter(|record| !silent && self.oracle.is_pending(record));
        match left {
            None => Ok(()),
            Some(record) => Err(Violation {
                operation: Some(id),
                ..self.violation("a receive neither ends nor can be cancelled", Some(node), record.to_string())
            }),
        }
    }

    /// After everything was settled and forgotten, nothing is kept.
    fn check_state(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.now;
        let Some(Some(up)) = self.nodes.get_mut(node) else { return Ok(()) };
        let local = up.local_time(now);
        up.engine.handle_timeout(local);
        let state = up.engine.state();
        let start = (node, up.incarnation);
        let open = up.engine.delivery().memory().check_all();
        let (cells, _) = up.engine.delivery().memory().region(CELL);
        let cells: Vec<u64> = cells.as_chunks::<8>().0.iter().map(|cell| u64::from_le_bytes(*cell)).collect();
        let empty = State { tracker_bytes: 0, life_bytes: 0, tombstone_bytes: 0, ..state } == State::default();
        if !empty {
            return Err(self.violation("something is kept for ever", Some(node), format!("{state:?}")));
        }
        let wanted: Vec<u64> = (0..CELLS).map(|cell| self.oracle.cell(start, cell)).collect();
        if cells != wanted {
            return Err(self.violation("a cell changed by itself", Some(node), format!("{cells:x?}, not {wanted:x?}")));
        }
        match open {
            Ok(0) => Ok(()),
            Ok(open) => Err(self.violation("buffers were not given back", Some(node), format!("{open} of them"))),
            Err(text) => Err(self.violation("memory", Some(node), text)),
        }
    }

    /// Counters show what ended.
    fn check_counters(&self, node: usize, (start, counters): (Start, [Counter; 3])) -> Result<(), Violation> {
        let mut wanted = [(0, 0); 3];
        for record in self.oracle.records.iter().filter(|record| record.start == start && record.posted.is_some()) {
            let at = match record.operation.what {
                What::Send { .. } | What::Datagram { .. } => 0,
                What::Read { .. } | What::Atomic { fetch: true, .. } => 1,
                What::Write { .. } | What::Atomic { fetch: false, .. } => 2,
                _ => continue,
            };
            let failed = matches!(record.outcome, Some((_, Err(_))));
            if let Some((all, bad)) = wanted.get_mut(at) {
                (*all, *bad) = (*all + 1, *bad + u64::from(failed));
            }
        }
        let shown = counters.map(|counter| (counter.value + counter.errors, counter.errors));
        if shown == wanted {
            return Ok(());
        }
        let text = format!("sends, reads, writes, each with failures: {shown:?} instead of {wanted:?}");
        Err(self.violation("counters are wrong", Some(node), text))
    }

    /// Closes everything.
    pub(crate) fn close(&mut self) -> Result<(), Violation> {
        for node in 0..self.nodes.len() {
            let now = self.now;
            let Some(Some(up)) = self.nodes.get_mut(node) else { continue };
            let local = up.local_time(now);
            for endpoint in up.endpoints.clone() {
                up.engine.close_endpoint(local, endpoint);
            }
            let counters = up.counters();
            self.check_counters(node, counters)?;
            self.settle(node)?;
            if self.poll(node)? {
                return Err(self.violation("a completion after the end", Some(node), String::new()));
            }
            if let Some(up) = self.nodes.get_mut(node).and_then(Option::take) {
                self.count(&up);
            }
        }
        Ok(())
    }
}
