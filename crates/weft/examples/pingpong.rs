//! One message back and forth between two processes, then a remote read.
//!
//! ```sh
//! cargo run --release --example pingpong -- serve 127.0.0.1:4792   # prints where it is reached
//! cargo run --release --example pingpong -- ping THAT-ADDRESS      # in another terminal
//! ```
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::time::{Duration, Instant};

use weft::{Access, Completion, CompletionQueue, Domain, RemoteAddress};

const ROUNDS: u32 = 10_000;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", bind] => serve(bind),
        ["ping", server] => ping(server),
        _ => Err("pingpong serve BIND-ADDRESS, or pingpong ping SERVER-ADDRESS".into()),
    }
}

/// Answers every message with itself; the first one gets to know where some memory is.
fn serve(bind: &str) -> Result<(), Box<dyn Error>> {
    let domain = Domain::udp(bind)?;
    let queue = domain.completion_queue(64);
    let endpoint = domain.endpoint(&queue)?;
    println!("{}", endpoint.address());

    let region = domain.register(b"read by a peer while its owner sleeps".to_vec(), Access::REMOTE_READ)?;
    let RemoteAddress { address, key } = region.remote();
    let welcome = [address.to_le_bytes(), key.to_le_bytes()].concat();

    for round in 0..=ROUNDS {
        endpoint.receive(vec![0; 64])?;
        let ping = next(&queue)?;
        // Whoever wrote to us gets a name here, so that it can be answered.
        let client = domain.addresses().insert(ping.source.ok_or("no sender")?)?;
        endpoint.inject(client, if round == 0 { &welcome } else { b"pong" })?;
    }
    // Serves the read, until the client says that it has it.
    endpoint.receive(vec![0; 64])?;
    next(&queue)?;
    Ok(())
}

fn ping(server: &str) -> Result<(), Box<dyn Error>> {
    let domain = Domain::udp("127.0.0.1:0")?;
    let queue = domain.completion_queue(64);
    let endpoint = domain.endpoint(&queue)?;
    let server = domain.addresses().insert(server.parse()?)?;
    let exchange = || -> Result<Vec<u8>, Box<dyn Error>> {
        endpoint.receive(vec![0; 64])?;
        endpoint.inject(server, b"ping")?;
        Ok(next(&queue)?.into_bytes()?)
    };

    let welcome = exchange()?;
    let word = |at: usize| welcome.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let (Some(address), Some(key)) = (word(0), word(8)) else { return Err("an odd welcome".into()) };

    let start = Instant::now();
    for _ in 0..ROUNDS {
        exchange()?;
    }
    println!("{:.1} µs a round trip", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));

    endpoint.read(server, RemoteAddress { address, key }, vec![0; 37])?;
    println!("{}", String::from_utf8(next(&queue)?.into_bytes()?)?);
    endpoint.inject(server, b"done")?;
    Ok(())
}

/// The next completion, which must be a good one.
fn next(queue: &CompletionQueue) -> Result<Completion, Box<dyn Error>> {
    Ok(queue.wait(PATIENCE)?.ok_or("nothing came for a minute")?.ok()?)
}
