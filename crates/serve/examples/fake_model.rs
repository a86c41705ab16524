//! A server without a model, to try clients on: `cargo run -p oarlock-serve --example fake_model -- [PORT] [KEY]`.
//!
//! It answers what `say` asks for, and otherwise words that follow from the seed. It ends with its standard input.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use oarlock_serve::{ApiKey, Options, serve, stop};

#[path = "../tests/suite/fake.rs"]
#[allow(dead_code, reason = "the tests look at more of it")]
mod fake;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let api_keys = arguments.filter_map(|key| ApiKey::new(&key)).collect();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("http://{}/v1", listener.local_addr()?);
    let (stop, stopped) = stop();
    std::thread::spawn(move || {
        // Whatever it says, it ends.
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.stop();
    });
    let fake = fake::Fake { delay: Duration::from_millis(2), remembers: false, ..fake::Fake::new() };
    let ended = serve(listener, Arc::new(fake), Options { api_keys, ..Options::local() }, stopped)?;
    println!("ended; {} connections were cut off", ended.n_cut_off);
    Ok(())
}
