//! The second process is killed in mid-transfer, and started again at the same address.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::{Access, Failure as Ended, RemoteAddress};

use super::stage::{Line, Outcome, PATIENCE, Stage, pattern, told};
use super::{ACTS, Amount, atomics, memory, messages, partner, row};
use crate::Failure;

/// The number of the second process's last act.
pub(super) const ACT: usize = ACTS.len();

const TRANSFER_BYTES: usize = 16 << 20;
const TRANSFERS: usize = 16;
/// The transfers are on their way when this many packets are.
const UNDER_WAY_PACKETS: u64 = 256;
/// How often the first contact with the new process may fail in doubt: the engine may still hold what it knew of the old.
const CONTACTS_MAX: usize = 3;

/// Kills it, starts it again, and goes on.
pub(super) fn restart(stage: &mut Stage<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let broken = |name: &'static str| move |text: String| Failure::Told(format!("demo: {name}: {text}"));
    let name = "killed in mid-transfer";
    out.flush()?;
    let (failed, after, memory) = kill(stage).map_err(broken(name))?;
    let verified = format!("OutcomeUnknown after {:.2} s, buffers back", after.as_secs_f64());
    row(out, name, failed, &verified)?;

    let name = "started again, same address";
    out.flush()?;
    let address = stage.other;
    let partner = partner::start(&address.socket.to_string())?;
    let went_on = go_on(stage, Box::new(partner), memory).map_err(broken(name))?;
    row(out, name, went_on, "send, write, fetch-add; old name reaches nobody")
}

/// What the second process does until it is killed.
pub(super) fn there(stage: &mut Stage<'_>) -> Outcome<()> {
    let region = stage.domain.register(TRANSFER_BYTES, Access::REMOTE).map_err(told)?;
    stage.offer(&region)?;
    stage.hear().map(|_| ())
}

/// Gives what failed, how long after the kill, and what was the memory of the dead.
fn kill(stage: &mut Stage<'_>) -> Outcome<(Amount, Duration, RemoteAddress)> {
    stage.begin(ACT)?;
    let remote = stage.learn()?;
    let bytes: Arc<[u8]> = pattern(1, TRANSFER_BYTES).into();
    let before = stage.domain.statistics().packets_sent;
    // Nobody will receive it, so that it is under way whatever becomes of the others.
    stage.endpoint.send(stage.peer, pattern(2, 1 << 20)).map_err(told)?;
    for _ in 0..TRANSFERS {
        stage.endpoint.write(stage.peer, remote, bytes.clone()).map_err(told)?;
    }
    let begun = Instant::now();
    while stage.domain.statistics().packets_sent < before + UNDER_WAY_PACKETS {
        if begun.elapsed() > PATIENCE {
            return Err("the transfer does not get on its way".to_string());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    stage.kill_other();
    let killed = Instant::now();
    let (mut failed, mut cut_bytes) = (0, 0);
    for _ in 0..=TRANSFERS {
        let ended = stage.settled()?;
        stage.check(ended.buffer.is_some(), "the buffer comes back")?;
        if ended.result.is_err() {
            stage.equal("a transfer that was cut off", ended.result, Err(Ended::OutcomeUnknown))?;
            failed += 1;
            cut_bytes += ended.buffer.map_or(0, |buffer| buffer.len() as u64);
        }
    }
    let after = killed.elapsed();
    stage.check(failed > 0, "what was under way has failed")?;
    stage.equal("commands kept for the dead", stage.domain.state().commands, 0)?;
    Ok((Amount { operations: failed, bytes: cut_bytes }, after, remote))
}

/// What was for the old process does not reach the new one; what is for the new one does.
fn go_on<'a>(stage: &mut Stage<'a>, partner: Box<dyn Line + 'a>, memory: RemoteAddress) -> Outcome<Amount> {
    let (old, address) = (stage.peer, stage.other);
    stage.replace_other(partner)?;
    stage.equal("address of the new process", stage.other.socket, address.socket)?;
    stage.check(stage.other != address, "its endpoint has another number")?;

    stage.endpoint.send(old, pattern(3, 8)).map_err(told)?;
    stage.endpoint.write(old, memory, pattern(3, 8)).map_err(told)?;
    for _ in 0..2 {
        let ended = stage.settled()?.result.err();
        let honest = [Ended::NoSuchEndpoint, Ended::AccessRefused, Ended::OutcomeUnknown];
        stage.check(ended.is_some_and(|ended| honest.contains(&ended)), "the old name reaches nobody")?;
    }

    let mut contacts = 0;
    loop {
        contacts += 1;
        stage.endpoint.read(stage.peer, memory, vec![0; 8]).map_err(told)?;
        match stage.settled()?.result {
            Err(Ended::OutcomeUnknown) if contacts < CONTACTS_MAX => {}
            // The memory of the dead is gone, but somebody is there to say so.
            other => break stage.equal("the old key at the new process", other, Err(Ended::AccessRefused))?,
        }
    }
    let mut all = Amount { operations: 0, bytes: 0 };
    for again in [messages::LENGTHS, memory::WRITE, atomics::FETCH_ADD] {
        let number = ACTS.iter().position(|act| act.name == again.name).unwrap_or(ACT);
        let amount = stage.perform(number, &again)?;
        all = Amount { operations: all.operations + amount.operations, bytes: all.bytes + amount.bytes };
    }
    Ok(all)
}
